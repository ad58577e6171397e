"""Draw time to a target score against concurrency and buffer size, and scores over virtual time.

    python experiments/time/figure.py runs/time_{scene_vqa,concurrency,invoices,fedbuff,fedscale}

Writes `time.png` and `times.jsonl`, a line per run with its scores and virtual seconds, next to this file. Folders of
sweeps that are missing are left out.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from simfl.reports.curves import run_curves
from simfl.reports.results import RunResult, results_of

HERE = Path(__file__).parent
TARGETS = {"time_scene_vqa": 0.3, "time_invoices": 0.25, "time_fedbuff": 0.9, "time_fedscale": 0.9}  # scores
Line = Mapping[str, Any]


def line_of(result: RunResult, folder: Path) -> Line:
    """Return the scores of a run over virtual time."""
    curves, settings = run_curves(result), result.run.settings
    asynchronous = settings["phases"][0].get("asynchronous")
    scores = curves.scores[result.metric]
    return {
        "experiment": "time_scene_vqa" if "concurrency" in folder.name else folder.name,
        "method": str(result.varied.get("variant", "fedbuff")),
        "seed": settings["seed"],
        "concurrency": None if asynchronous is None else asynchronous["concurrency"],
        "buffer": None if asynchronous is None else asynchronous["buffer"],
        "seconds": [curves.seconds[step] for step in scores],
        "megabytes": [curves.bytes[step] / 1e6 for step in scores],
        "scores": list(scores.values()),
    }


def time_to(line: Line, target: float) -> float | None:
    """Return the virtual seconds until a score is reached; None: never."""
    reached = (at for at, score in zip(line["seconds"], line["scores"], strict=True) if score >= target)
    return next(reached, None)


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw scores over time of each experiment's methods, and time to target against concurrency and buffer."""
    names = [name for name in TARGETS if any(line["experiment"] == name for line in lines)]
    paces = [line for line in lines if line["experiment"] == "time_scene_vqa" and line["from"] == "concurrency"]
    panels = len(names) + bool(paces)
    columns = (panels + 1) // 2
    figure, grid = pyplot.subplots(2, columns, figsize=(5 * columns, 7.2), squeeze=False)
    axes = list(grid.flat)
    for axis in axes[panels:]:
        axis.set_visible(False)
    for axis, name in zip(axes, names, strict=False):
        _curves(axis, [line for line in lines if line["experiment"] == name and line["from"] == "methods"], name)
    if paces:
        _concurrency(axes[panels - 1], paces)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _curves(axis: Any, lines: Sequence[Line], name: str) -> None:
    methods: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        methods[line["method"]].append(line)
    for number, (method, own) in enumerate(methods.items()):
        for seed, line in enumerate(own):
            axis.plot(line["seconds"], line["scores"], f"C{number}", alpha=0.8, label=None if seed else method)
    axis.axhline(TARGETS[name], color="grey", linewidth=0.8, linestyle=":")
    metric = "ANLS" if name == "time_invoices" else "accuracy"
    axis.set(title=name.removeprefix("time_"), xlabel="virtual seconds", ylabel=metric, xscale="symlog")
    axis.set_xlim(0)
    axis.legend(fontsize=7)


def _concurrency(axis: Any, lines: Sequence[Line]) -> None:
    cells: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        seconds = time_to(line, TARGETS["time_scene_vqa"])
        if line["method"] == "fedbuff" and seconds is not None:
            cells[line["buffer"]][line["concurrency"]].append(seconds)
    for buffer, own in sorted(cells.items()):
        at = sorted(own)
        means = [fmean(own[one]) for one in at]
        errors = [stdev(own[one]) if len(own[one]) > 1 else 0.0 for one in at]
        axis.errorbar(at, means, yerr=errors, marker="o", capsize=3, label=f"buffer {buffer}")
    target = TARGETS["time_scene_vqa"]
    axis.set(title="FedBuff, scene_vqa", xlabel="concurrency", ylabel=f"virtual seconds to {target}")
    axis.legend(fontsize=7)


def main() -> None:
    """Read the sweeps, write their curves and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    folders = [folder for folder in parser.parse_args().folders if folder.exists()]
    stored = HERE / "times.jsonl"
    if folders:
        lines = [
            {**line_of(result, folder), "from": "concurrency" if "concurrency" in folder.name else "methods"}
            for folder in folders
            for result in results_of([folder])
            if result.scores
        ]
        stored.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    draw([json.loads(text) for text in stored.read_text().splitlines()], HERE / "time.png")


if __name__ == "__main__":
    main()
