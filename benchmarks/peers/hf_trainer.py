"""Train T5-base with the Trainer of transformers on one GPU: `python -m benchmarks.peers.hf_trainer --batches 8 32`.

The shape is that of `benchmarks.plain_t5`: 709 tokens padded to 712, an answer of 16 tokens, no dropout, bf16 and
torch's fused AdamW. Every step is one batch of random tokens; a row is the median step after the first few, timed by a
callback when the GPU has finished. With `--compiled`, the Trainer compiles the model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainerCallback, TrainingArguments

from benchmarks import flops, plain_t5
from benchmarks.plain_t5 import ANSWER, HEADS, INNER, LAYERS, PADDED, SKIPPED, TOKENS, VOCABULARY, WIDTH


class Pages(Dataset[dict[str, torch.Tensor]]):
    """Random texts and answers."""

    def __init__(self, count: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.ids = torch.randint(2, VOCABULARY, (count, PADDED), generator=draw)
        self.labels = torch.randint(2, VOCABULARY, (count, ANSWER), generator=draw)
        self.mask = (torch.arange(PADDED) < TOKENS).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "attention_mask": self.mask, "labels": self.labels[index]}


class Clock(TrainerCallback):
    """Seconds between the ends of steps."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Wait for the GPU and keep the time."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())


def network() -> T5ForConditionalGeneration:
    """Return T5-base with an output matrix of its own."""
    model = T5ForConditionalGeneration(
        T5Config(
            d_model=WIDTH, d_ff=INNER, d_kv=WIDTH // HEADS, num_heads=HEADS, num_layers=LAYERS, vocab_size=VOCABULARY,
            dropout_rate=0.0, decoder_start_token_id=0,
        )
    )  # fmt: skip
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def measure(batch: int, steps: int, compiled: bool) -> dict[str, Any]:
    """Train and return throughput, MFU and peak memory."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=batch, max_steps=steps, bf16=on_gpu, use_cpu=not on_gpu,
            optim="adamw_torch_fused", learning_rate=1e-4, max_grad_norm=0.0, torch_compile=compiled, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_drop_last=True,
        )  # fmt: skip
        trainer = Trainer(network(), arguments, train_dataset=Pages(batch * steps), callbacks=[clock])
        began = time.perf_counter()
        trainer.train()
    rate = batch / float(np.median(np.diff(clock.marks)[SKIPPED - 1 :]))
    card = torch.cuda.get_device_name() if on_gpu else "CPU"
    return {
        "work": "hf_trainer",
        "batch": batch,
        "program": "compiled" if compiled else "eager",
        "examples_per_second": rate,
        "mfu": flops.share(rate * plain_t5.flops_of_example(), card),
        "start_seconds": clock.marks[0] - began,
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
    }


def main() -> None:
    """Measure all batch sizes, print the rows, and write them if a file is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.hf_trainer", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--compiled", action="store_true", help="with torch.compile")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for batch in given.batches:
        rows.append(measure(batch, given.steps, given.compiled))
        print(plain_t5.as_line(rows[-1]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
