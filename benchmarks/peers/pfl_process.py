"""One of the processes of `pfl_gpu`, which talk through Gloo: `python -m benchmarks.peers.pfl_process RESULT ROUNDS`.

pfl joins the others as soon as it is imported and asks for NCCL, so what it will find is put in its place before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch.distributed


def main(result: str, rounds: int) -> None:
    """Join through Gloo and take part."""
    join = torch.distributed.init_process_group

    def through_gloo(backend: str | None = None, **given: Any) -> None:
        join("gloo", **given)

    torch.distributed.init_process_group = through_gloo
    from benchmarks.peers import pfl_gpu

    pfl_gpu.serve(Path(result), rounds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
