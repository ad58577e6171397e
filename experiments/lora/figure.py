"""Write a table of README.md and its figure from runs of sweep.yaml: `python figure.py MODEL FOLDER [FOLDER …]`.

MODEL is `vt5_tiny` or `smollm2`, and each folder that of a sweep. Scores are means over the seeds with the standard
deviation: after the last round, and at equal bytes, those of the cheapest rule in all its rounds. Between two
evaluations the score at equal bytes is interpolated. Differences from `fedit` are paired: means over the seeds that
both have, with p of a test over these, corrected by Holm for the rules of one partition.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

from simfl.reports.statistical_tests import SIGNIFICANCE_LEVEL, hierarchical_bootstrap, holm
from simfl.runs import tables

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # must follow the choice of the backend

HERE = Path(__file__).parent
PARTITIONS = {"provider": "by provider", "iid": "IID"}
AGAINST = "fedit"


@dataclass(frozen=True)
class Curve:
    """A run after each of its evaluations, and the deviation of each round."""

    rounds: np.ndarray  # [e]
    megabytes: np.ndarray  # [e], sent so far
    scores: np.ndarray  # [e]
    deviations: np.ndarray  # [T]; NaN where a rule has none

    def at(self, megabytes: float) -> float:
        """Return the score after this many megabytes."""
        return float(np.interp(megabytes, self.megabytes, self.scores))


Curves = dict[tuple[str, str], dict[int, Curve]]  # partition and rule -> seed -> run


def main() -> None:
    """Read the runs, write the table and draw the figure."""
    model, *folders = sys.argv[1:]
    found = curves([Path(folder) for folder in folders])
    write(model, table(found))
    draw(found, HERE / f"{model}.png")


def write(model: str, text: str) -> None:
    """Replace the table of a model in README.md."""
    readme = HERE / "README.md"
    start, end = f"<!-- {model} -->", f"<!-- /{model} -->"
    before, _, rest = readme.read_text(encoding="utf-8").partition(start)
    readme.write_text(f"{before}{start}\n{text}{end}{rest.partition(end)[2]}", encoding="utf-8")


def curves(folders: list[Path]) -> Curves:
    """Return the curves of all completed runs."""
    found: Curves = defaultdict(dict)
    for path in sorted(path for folder in folders for path in folder.glob("runs/*/summary.json")):
        if json.loads(path.read_text())["status"] == "completed":
            rule, partition, seed = path.parent.name.rsplit("_", 2)
            found[partition, rule][int(seed.rpartition("-")[2])] = curve(path.parent)
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
        "| partition | rule | seeds | MB in all | ANLS, equal rounds | difference (p) | ANLS, equal bytes"
        " | difference (p) | deviation |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for partition in (name for name in PARTITIONS if any(key[0] == name for key in found)):
        own = {rule: runs for (name, rule), runs in found.items() if name == partition}
        budget = min(cost(runs) for runs in own.values())
        last = {rule: {seed: float(run.scores[-1]) for seed, run in runs.items()} for rule, runs in own.items()}
        equal = {rule: {seed: run.at(budget) for seed, run in runs.items()} for rule, runs in own.items()}
        off_last, off_equal = against(last), against(equal)
        for rule in sorted(own, key=lambda rule: -np.mean(differences(last[AGAINST], last[rule]))):
            deviation = np.mean([run.deviations[-1] for run in own[rule].values()])
            cells = [PARTITIONS[partition], f"`{rule}`", str(len(own[rule])), f"{cost(own[rule]):.1f}"]
            cells += [spread(last[rule]), off_last.get(rule, "–"), spread(equal[rule]), off_equal.get(rule, "–")]
            cells += ["–" if np.isnan(deviation) else f"{deviation:.2g}"]
            lines.append("| " + " | ".join(cells) + " |")
        start = spread({seed: float(run.scores[0]) for seed, run in own[AGAINST].items()})
        lines.append(f"| {PARTITIONS[partition]} | before training | | | {start} | | {start} | | |")
    return "\n".join(lines) + "\n"


def cost(runs: dict[int, Curve]) -> float:
    """Return the megabytes of a run, which are the same for all seeds."""
    return float(next(iter(runs.values())).megabytes[-1])


def against(scores: dict[str, dict[int, float]]) -> dict[str, str]:
    """Return each rule's mean difference from `AGAINST` and its corrected p; the ones below the level are bold."""
    pairs = {rule: differences(scores[AGAINST], own) for rule, own in scores.items() if rule != AGAINST}
    pairs = {rule: found for rule, found in pairs.items() if len(found)}
    tested = {rule: found for rule, found in pairs.items() if len(found) > 1}
    ps = dict(zip(tested, holm([hierarchical_bootstrap(found[:, None]).p for found in tested.values()]), strict=True))
    return {rule: f"{found.mean():+.3f} ({shown(ps.get(rule))})" for rule, found in pairs.items()}


def differences(a: dict[int, float], b: dict[int, float]) -> np.ndarray:
    """Return the differences of the common seeds."""
    return np.array([b[seed] - a[seed] for seed in sorted(a.keys() & b.keys())])


def shown(p: float | None) -> str:
    """Return the printed form of a p; a dash for a single seed."""
    if p is None:
        return "–"
    return f"**{p:.2g}**" if p < SIGNIFICANCE_LEVEL else f"{p:.2f}"


def spread(scores: dict[int, float]) -> str:
    """Return mean ± standard deviation, or the value alone."""
    values = list(scores.values())
    return f"{np.mean(values):.3f}" + (f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else "")


def draw(found: Curves, path: Path) -> None:
    """Draw scores over rounds, scores over bytes and deviations over rounds, a row for each partition."""
    names = [name for name in PARTITIONS if any(key[0] == name for key in found)]
    figure, axes = plt.subplots(len(names), 3, figsize=(15, 4.4 * len(names)), squeeze=False)
    rules = sorted({rule for _, rule in found})
    colours = dict(zip(rules, plt.cm.turbo(np.linspace(0.05, 0.95, len(rules))), strict=True))
    for row, name in zip(axes, names, strict=True):
        for rule in (rule for rule in rules if (name, rule) in found):
            runs = list(found[name, rule].values())
            scores = np.mean([run.scores for run in runs], 0)
            row[0].plot(runs[0].rounds, scores, color=colours[rule], marker="o", markersize=3, label=rule)
            row[1].plot(runs[0].megabytes, scores, color=colours[rule], marker="o", markersize=3)
            deviations = np.mean([run.deviations for run in runs], 0)
            if not np.isnan(deviations).all() and deviations.max() > 1e-6:  # rules without rounding errors alone
                row[2].plot(np.arange(len(deviations)) + 1, deviations, color=colours[rule], marker="o", markersize=3)
        for axis, label in zip(row, ("round", "MB sent, both directions", "round"), strict=True):
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
        row[0].set_ylabel(f"ANLS, {PARTITIONS[name]}")
        row[1].set_xscale("symlog", linthresh=10)
        row[1].set_xlim(left=0)
        row[2].set_ylabel("deviation from the mean product")
        row[2].set_yscale("log")  # factors that are initialized again deviate by nearly 1, others by some percent
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
