"""Write the table of README.md and figure.png from the runs of sweep.yaml: `python figure.py FOLDER [FOLDER …]`.

Each folder is that of a sweep. Scores are means over the seeds with the standard deviation: after the last round, and
at equal bytes, the last evaluation of each run up to the bytes that the cheapest rule has sent in all its rounds.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

from simfl.runs import tables

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # must follow the choice of the backend

HERE = Path(__file__).parent
MARKS = "<!-- scores -->", "<!-- /scores -->"
PARTITIONS = {"provider": "by provider", "iid": "IID"}


@dataclass(frozen=True)
class Curve:
    """A run after each of its evaluations, and the deviation of each round."""

    rounds: np.ndarray  # [e]
    megabytes: np.ndarray  # [e], sent so far
    scores: np.ndarray  # [e]
    deviations: np.ndarray  # [T]; NaN where a rule has none


Curves = dict[tuple[str, str], list[Curve]]  # partition and rule -> one of each seed


def main() -> None:
    """Read the runs, write the table and draw the figure."""
    found = curves([Path(folder) for folder in sys.argv[1:]])
    readme = HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    readme.write_text(f"{before}{MARKS[0]}\n{table(found)}{MARKS[1]}{after}", encoding="utf-8")
    draw(found)


def curves(folders: list[Path]) -> Curves:
    """Return the curves of all completed runs."""
    found: Curves = defaultdict(list)
    for path in sorted(path for folder in folders for path in folder.glob("runs/*/summary.json")):
        if json.loads(path.read_text())["status"] == "completed":
            rule, partition, _ = path.parent.name.rsplit("_", 2)
            found[partition, rule].append(curve(path.parent))
    return found


def curve(folder: Path) -> Curve:
    """Return the curve of a run."""
    rows = tables.read(folder / "rounds.parquet").to_pylist()
    sent = np.cumsum([0, *(row["total_bytes"] for row in rows)]) / 1e6
    scored = [
        (row["step"], row["value"])
        for row in tables.read(folder / "evaluations.parquet").to_pylist()
        if (row["split"], row["model"], row["by"], row["metric"]) == ("test", "global", "all", "anls")
    ]
    steps, scores = zip(*sorted(scored), strict=True)
    deviations = [np.nan if row.get("metric:deviation") is None else row["metric:deviation"] for row in rows]
    return Curve(np.array(steps), sent[list(steps)], np.array(scores), np.array(deviations))


def table(found: Curves) -> str:
    """Return the table in Markdown."""
    lines = [
        "| partition | rule | seeds | MB in all | ANLS, equal rounds | ANLS, equal bytes | deviation, last round |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for partition in (name for name in PARTITIONS if any(key[0] == name for key in found)):
        own = {rule: runs for (name, rule), runs in found.items() if name == partition}
        budget = min(runs[0].megabytes[-1] for runs in own.values())
        for rule in sorted(own, key=lambda rule: -np.mean([run.scores[-1] for run in own[rule]])):
            runs = own[rule]
            at_budget = [run.scores[run.megabytes <= budget * (1 + 1e-9)][-1] for run in runs]
            deviation = np.mean([run.deviations[-1] for run in runs])
            cells = [PARTITIONS[partition], f"`{rule}`", str(len(runs)), f"{runs[0].megabytes[-1]:.1f}"]
            cells += [spread([run.scores[-1] for run in runs]), spread(at_budget)]
            cells += ["–" if np.isnan(deviation) else f"{deviation:.2g}"]
            lines.append("| " + " | ".join(cells) + " |")
        start = spread([run.scores[0] for runs in own.values() for run in runs][:1])
        lines.append(f"| {PARTITIONS[partition]} | before training | | | {start} | {start} | |")
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    """Return mean ± standard deviation, or the value alone."""
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def draw(found: Curves) -> None:
    """Draw scores over rounds, scores over bytes and deviations over rounds, a row for each partition."""
    names = [name for name in PARTITIONS if any(key[0] == name for key in found)]
    figure, axes = plt.subplots(len(names), 3, figsize=(15, 4.4 * len(names)), squeeze=False)
    rules = sorted({rule for _, rule in found})
    colours = dict(zip(rules, plt.cm.turbo(np.linspace(0.05, 0.95, len(rules))), strict=True))
    for row, name in zip(axes, names, strict=True):
        for rule in (rule for rule in rules if (name, rule) in found):
            runs = found[name, rule]
            scores = np.mean([run.scores for run in runs], 0)
            row[0].plot(runs[0].rounds, scores, color=colours[rule], marker="o", markersize=3, label=rule)
            row[1].plot(runs[0].megabytes, scores, color=colours[rule], marker="o", markersize=3)
            deviations = np.mean([run.deviations for run in runs], 0)
            if not np.isnan(deviations).all():
                row[2].semilogy(np.arange(len(deviations)) + 1, deviations, color=colours[rule])
        for axis, label in zip(row, ("round", "MB sent", "round"), strict=True):
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
        row[0].set_ylabel(f"ANLS, {PARTITIONS[name]}")
        row[2].set_ylabel("deviation from the mean product")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE / "figure.png", dpi=90)


if __name__ == "__main__":
    main()
