"""Run one of the processes of `pfl_gpu`: `python -m benchmarks.peers.pfl_process RESULT ROUNDS`.

pfl initializes torch.distributed with NCCL when it is imported. NCCL needs a GPU for each process, so this module
replaces the initialization by one with Gloo before the import.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch.distributed


def main(result: str, rounds: int) -> None:
    """Initialize torch.distributed with Gloo and train."""
    original = torch.distributed.init_process_group

    def through_gloo(backend: str | None = None, **kwargs: Any) -> None:
        original("gloo", **kwargs)

    torch.distributed.init_process_group = through_gloo  # type: ignore[assignment]
    from benchmarks.peers import pfl_gpu

    pfl_gpu.serve(Path(result), rounds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
