"""A plain T5 training loop, without federation: `python -m benchmarks.plain_t5 --batches 8 32`.

The shape is that of `vt5_full` (`gpu_works`): T5-base over 709 tokens, padded to 712, with an answer of 16 tokens, a
vocabulary of 32,128, an output matrix of its own, and dropout 0; the frozen page reader (6 % of the work) is left out.
Attention is torch's own, with the position bias as its mask; the gradient of the bias table is a sum along diagonals
and a product with one-hot rows. The step is compiled, weights and moments are float32, products are bf16, and AdamW is
torch's fused one. A row is the median step after the first few; its ratio to a row of `benchmarks.gpu` is one of
examples per second.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import flops

WIDTH, INNER, HEADS, LAYERS, VOCABULARY = 768, 3072, 12, 12, 32_128
TOKENS, PADDED, ANSWER, BUCKETS = 709, 712, 16, 32
HIDDEN = -1e9  # score of padding
SKIPPED = 3  # steps before the median: the first compiles


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [..., d]."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    """Attention of T5: no bias of the projections, no scale."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor, states: Tensor | None = None) -> Tensor:
        """Return x plus attention to x, or to `states`."""
        y = self.norm(x)
        source = y if states is None else states
        q, k, v = (
            own(given).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for own, given in ((self.q, y), (self.k, source), (self.v, source))
        )
        found = functional.scaled_dot_product_attention(q, k, v, mask.to(q.dtype), scale=1.0)
        return x + self.o(found.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Feed-forward with a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = Norm(), nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus its feed-forward."""
        return x + self.down(self.up(self.norm(x)).relu())


class PositionBias(nn.Module):
    """Bias by bucket of the distance: a product of one-hot rows, one for each distance, repeated along diagonals."""

    def __init__(self, length: int, causal: bool) -> None:
        super().__init__()
        self.length = length
        self.table = nn.Parameter(torch.randn(BUCKETS, HEADS) * 0.05)
        place = torch.arange(2 * length)
        distance = torch.where(place < length, place, place - 2 * length)  # from a query to a key
        exact, most = BUCKETS // (2 if causal else 4), BUCKETS // (1 if causal else 2)
        size = (-distance).clamp_min(0) if causal else distance.abs()
        far = exact + (size.clamp_min(1) / exact).log() / np.log(128 / exact) * (most - exact)
        bucket = torch.where(size < exact, size, far.long().clamp_max(most - 1))
        bucket = bucket if causal else bucket + (distance > 0) * most
        self.register_buffer("one_hot", functional.one_hot(bucket, BUCKETS).float(), persistent=False)
        hidden = torch.full((length, length), HIDDEN if causal else 0.0).triu(1)
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self) -> Tensor:
        """Return the bias [1, H, L, L], with later positions hidden where it is causal."""
        one_hot, hidden, length = cast(Tensor, self.one_hot), cast(Tensor, self.hidden), self.length
        values = (one_hot @ self.table).T[:, None].expand(-1, length, -1)
        rows = values.reshape(HEADS, -1)[:, : length * (2 * length - 1)].unflatten(1, (length, -1))
        return rows[None, :, :, :length] + hidden


class PlainT5(nn.Module):
    """Encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder_bias, self.decoder_bias = PositionBias(PADDED, False), PositionBias(ANSWER, True)
        self.encoder = nn.ModuleList(nn.ModuleList([Attention(), FeedForward()]) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(nn.ModuleList([Attention(), Attention(), FeedForward()]) for _ in range(LAYERS))
        self.encoder_norm, self.decoder_norm = Norm(), Norm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        padding = torch.where(torch.arange(PADDED) < TOKENS, 0.0, HIDDEN)
        self.register_buffer("padding", padding[None, None, None], persistent=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of texts [B, 712] and answers [B, 16]."""
        padding = cast(Tensor, self.padding)
        x, bias = self.words(ids), self.encoder_bias() + padding
        for attention, feed_forward in cast(Any, self.encoder):
            x = feed_forward(attention(x, bias))
        states, bias = self.encoder_norm(x), self.decoder_bias()
        y = self.words(functional.pad(labels[:, :-1], (1, 0)))
        for attention, cross, feed_forward in cast(Any, self.decoder):
            y = feed_forward(cross(attention(y, bias), padding, states))
        logits = self.head(self.decoder_norm(y) * WIDTH**-0.5)
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def flops_of_example() -> float:
    """Return the operations of a training step of one example, without padding."""
    encoder = flops.layers(LAYERS, TOKENS, WIDTH, INNER)
    decoder = flops.layers(LAYERS, ANSWER, WIDTH, INNER) + flops.cross_attention(LAYERS, ANSWER, TOKENS, WIDTH)
    return flops.Forward(encoder + decoder + 2 * ANSWER * WIDTH * VOCABULARY).training()


def measure(batch: int, steps: int, compiled: bool = True) -> dict[str, Any]:
    """Train and return throughput, MFU and peak memory."""
    device = torch.device("cuda")
    torch.cuda.reset_peak_memory_stats()
    with device:
        network = PlainT5()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, fused=True)
    draw = torch.Generator(device).manual_seed(0)
    ids = torch.randint(2, 32_000, (batch, PADDED), generator=draw, device=device)
    labels = torch.randint(2, 32_000, (batch, ANSWER), generator=draw, device=device)
    forward = torch.compile(network, dynamic=False) if compiled else network
    spent = []
    for _ in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(ids, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
    rate = batch / float(np.median(spent[SKIPPED:]))
    return {
        "work": "plain_t5",
        "batch": batch,
        "program": "compiled" if compiled else "eager",
        "examples_per_second": rate,
        "mfu": flops.share(rate * flops_of_example(), torch.cuda.get_device_name()),
        "start_seconds": spent[0],
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "loss": float(loss.detach()),
    }


def as_line(row: dict[str, Any]) -> str:
    """Format a row for a terminal."""
    share = "?" if row["mfu"] is None else f"{100 * row['mfu']:.1f} %"
    return (
        f"{row['work']:10} batch {row['batch']:3} {row['program']:9} {row['examples_per_second']:7.1f} examples/s"
        f"  MFU {share}  start {row['start_seconds']:.1f} s  {row['peak_bytes'] / 2**30:.2f} GiB"
    )


def main() -> None:
    """Measure all batch sizes, print the rows, and write them if a file is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_t5", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for batch in given.batches:
        row = measure(batch, given.steps, not given.eager)
        rows.append(row)
        print(as_line(row), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
