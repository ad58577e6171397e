"""Compare the memory that `simfl plan` predicts with the peak of a run on one GPU: `python -m benchmarks.memory`.

Each work trains one client at a time for two rounds in this process. The predicted peak is that of a worker with one
client, and of the server, which shares the GPU with it here. Without a GPU, the predictions alone are printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_works import WORKS
from simfl import config, files, simulation
from simfl.experiment import Execution, Experiment
from simfl.plans.plan import plan
from simfl.session.options import RunOptions

LATEST = Path(__file__).parent / "latest_memory.json"
WIDTH = 512
DECODER: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 12, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 32_000,
}  # fmt: skip
LORA: dict[str, Any] = {"kind": "lora", "rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]}
CHATS: Mapping[str, Mapping[str, Any]] = {  # models of transformers, with random weights
    "llama": {"config": {"model_type": "llama"} | DECODER},
    "llama-lora": {"config": {"model_type": "llama"} | DECODER, "adapters": LORA},
    "llama-recomputed": {"config": {"model_type": "llama"} | DECODER, "checkpointing": True},
    "qwen3": {"config": {"model_type": "qwen3", "head_dim": 64, **DECODER}},
    "gemma": {"config": {"model_type": "gemma", "head_dim": 64, **DECODER}},
    "gpt2": {"config": {"model_type": "gpt2", "n_embd": WIDTH, "n_layer": 12, "n_head": 8, "vocab_size": 32_000}},
    "t5": {"config": {"model_type": "t5", "d_model": WIDTH, "d_ff": 4 * WIDTH, "num_layers": 6, "vocab_size": 32_000}},
}
CLASSIFIER = {
    "config": {"model_type": "bert", "hidden_size": WIDTH, "num_hidden_layers": 12, "num_attention_heads": 8},
    "task": "sequence_classification",
}
PUBLISHED = ("cifar", "femnist", "t5_lora", "vt5_full", "vilt", "feddat")


def text_experiment(name: str, model: Mapping[str, Any], objective: Mapping[str, Any]) -> Experiment:
    """Return an experiment with texts of some 500 tokens."""
    rows = [
        {"text": " ".join(["word"] * 120), "question": " ".join(["word"] * 120), "answers": ["a few more words"],
         "label": ["no", "yes"][n % 2]}
        for n in range(64)
    ]  # fmt: skip
    return config.parse(
        {
            "name": name,
            "data": {"train": rows, "valid": rows[:4]},
            "partition": {"by": "iid", "clients": 4},
            "model": {"name": "hf"} | dict(model),
            "phases": [
                {
                    "objective": objective, "rounds": 2, "clients_per_round": 1,
                    "local": {"optimizer": "adamw", "learning_rate": 1e-4, "batch_size": 8, "epochs": 1},
                }
            ],
            "evaluate": {"every": 0, "limit": 1, "loss": False, "samples": 0},
        }
    )  # fmt: skip


def experiments() -> dict[str, Experiment]:
    """Return all works by name."""
    found = {name: WORKS[name] for name in PUBLISHED}
    found |= {name: text_experiment(name, model, {"name": "chat", "max_answer": 8}) for name, model in CHATS.items()}
    found["bert"] = text_experiment("bert", CLASSIFIER, {"name": "text_classification"})
    one = Execution(mode="sequential", clients_per_batch=1)
    return {
        name: replace(work, execution=one, phases=tuple(replace(p, rounds=2, clients_per_round=1) for p in work.phases))
        for name, work in found.items()
    }


def measure(name: str, experiment: Experiment) -> dict[str, Any]:
    """Return predicted and measured bytes of a work."""
    (phase,) = plan(experiment, files.cache_folder()).phases
    row = {"work": name, "worker": phase.memory.worker, "server": phase.memory.server, "measured": None}
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as folder:
            simulation.run(experiment, RunOptions(Path(folder) / "run", backend="inline"))
        row["measured"] = torch.cuda.max_memory_allocated() - before
    return row


def main() -> None:
    """Measure all works, print the rows and write them to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="*", default=None)
    parser.add_argument("--out", type=Path, default=LATEST)
    given = parser.parse_args()
    rows = []
    for name, experiment in experiments().items():
        if given.works is None or name in given.works:
            rows.append(measure(name, experiment))
            print(_line(rows[-1]), flush=True)
    given.out.write_text(json.dumps(rows, indent=1) + "\n")


def _line(row: Mapping[str, Any]) -> str:
    parts = f"{row['work']:18} worker {row['worker'] / 2**20:9.1f} MiB  server {row['server'] / 2**20:8.1f} MiB"
    if row["measured"] is None:
        return parts
    ratio = row["worker"] / row["measured"]
    return f"{parts}  measured {row['measured'] / 2**20:9.1f} MiB  predicted/measured {ratio:.2f}"


if __name__ == "__main__":
    main()
