"""Write the ViLT of a finished run as a checkpoint, without heads: weights in float16, dimensions and tokenizer.

simfl run experiments/fedvqa/start.yaml
python experiments/fedvqa/start.py runs/fedvqa_start packages/simfl-benchmarks/simfl_benchmarks/pretrained/vilt_tiny
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from simfl.models.vilt import SIZES
from simfl.runs.results import Run


def main(run: str, folder: str) -> None:
    """Write the global model of `run` to `folder`."""
    trained, into = Run(run), Path(folder)
    network = trained.model()
    into.mkdir(parents=True, exist_ok=True)
    kept = {name: p for name, p in network.named_parameters() if not name.startswith("head.")}
    tensors = {name: p.detach().to(torch.float16).contiguous() for name, p in kept.items()}
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    dims = {key: getattr(network.config, key) for key in SIZES["tiny"]}
    (into / "config.json").write_text(json.dumps(dims, indent=1) + "\n")
    trained.experiment.model.tokenizer().backend.save(str(into / "tokenizer.json"))


if __name__ == "__main__":
    main(*sys.argv[1:])
