"""What lies in a folder where a run is looked for."""

from __future__ import annotations

from pathlib import Path

from simfl.errors import RunError

RUN, SWEEP = "experiment.yaml", "sweep.json"  # in the folder of a run; of a sweep, whose runs lie further down


def is_taken(folder: Path) -> bool:
    """Whether a run or a sweep lies there."""
    return (folder / SWEEP).exists() or (folder / RUN).exists()


def refuse_taken(folder: Path) -> None:
    """RunError where a run or a sweep lies already."""
    if (folder / SWEEP).exists():
        raise RunError(f"{folder}: holds a sweep already; give another --out")
    if (folder / RUN).exists():
        raise RunError(f"{folder}: holds a run already; go on with --resume, or give another --out")


def require_run(folder: Path) -> None:
    """RunError where no run lies; where a sweep does, one of its runs may be meant."""
    if (folder / SWEEP).exists():
        runs = sorted(path.parent for path in folder.glob(f"runs/*/{RUN}"))
        raise RunError(f"{folder}: a sweep lies here" + (f"; name one of its runs, such as {runs[0]}" if runs else ""))
    if not (folder / RUN).exists():
        raise RunError(f"{folder}: no run lies here")
