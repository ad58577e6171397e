"""Time of a step of Shampoo and of AdamW: `python benchmarks/shampoo_step.py [--device cuda]`.

The parameters have the shapes of a small T5, with random gradients. Statistics and roots are updated at the paper's
intervals of 10 and 100 steps, and at those of the small benchmark, 3 and 6. Times are means over whole intervals.
"""

from __future__ import annotations

import argparse
import time

import torch

from simfl.optimizers.shampoo import Shampoo

SHAPES = [(1024, 128)] + 24 * [(128, 128)] + 8 * [(512, 128), (128, 512)] + 20 * [(128,)]  # of a small T5


def parameters(device: str) -> list[torch.nn.Parameter]:
    """Return parameters with gradients."""
    draw = torch.Generator().manual_seed(0)
    found = [torch.nn.Parameter(torch.randn(shape, generator=draw).to(device)) for shape in SHAPES]
    for tensor in found:
        tensor.grad = torch.randn(tensor.shape, generator=draw).to(device) * 0.01
    return found


def seconds_per_step(optimizer: torch.optim.Optimizer, steps: int, device: str) -> float:
    """Return the mean seconds of a step, after one interval of warming up."""
    for _ in range(steps):
        optimizer.step()
    _wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    _wait(device)
    return (time.perf_counter() - began) / steps


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Print milliseconds per step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = parser.parse_args().device
    plain = seconds_per_step(torch.optim.AdamW(parameters(device)), 100, device)
    print(f"AdamW: {1e3 * plain:.2f} ms")
    for statistics, roots in ((10, 100), (3, 6)):
        own = Shampoo(parameters(device), statistics_every=statistics, roots_every=roots)
        found = seconds_per_step(own, roots, device)
        print(
            f"Shampoo, statistics every {statistics}, roots every {roots}: {1e3 * found:.2f} ms, {found / plain:.1f} x"
        )


if __name__ == "__main__":
    main()
