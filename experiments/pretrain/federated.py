"""Export a run of `layout_t5` as pretrained weights: tensors in half precision, tokenizer, and the loss of every round.

python experiments/pretrain/federated.py runs/self_pretraining build/self_pretrained

If the run does not exist, `federated.yaml` is run first.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from simfl import api
from simfl.models.layout_t5 import LayoutT5
from simfl.runs.results import Run


def main(run: str, folder: str, recipe: str = str(Path(__file__).with_suffix(".yaml"))) -> None:
    """Write the global model of `run` to `folder` and print the files; run `recipe` first if the run does not exist."""
    trained = Run(run) if Path(run).exists() else api.run(recipe, run)
    into = Path(folder)
    network = trained.model()
    into.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().to("cpu", torch.float16).contiguous() for name, p in network.named_parameters()}
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    assert isinstance(trained.experiment.model, LayoutT5)
    plain = replace(trained.experiment.model, special_tokens=False)
    plain.tokenizer().backend.save(str(into / "tokenizer.json"))  # `special_tokens: true` adds the special tokens again
    with (into / "curve.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("round", "loss"))
        rows.writerows((row["round"], f"{row['loss']:.4f}") for row in trained.rounds().to_pylist())
    print(f"{sum(t.numel() for t in tensors.values()):,} parameters")
    for name in ("model.safetensors", "tokenizer.json", "curve.csv"):
        data = (into / name).read_bytes()
        print(f"{name} {len(data):,} B {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
