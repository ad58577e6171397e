"""Attack the runs of `attacked_sweep.yaml` on drawn invoices and real receipts; write table and figure of the README.

    python experiments/privacy/attacks.py all FOLDER [--processes 8] [--gpus-per-run 0.125]    # everything below
    python experiments/privacy/attacks.py sweep FOLDER       # 40 runs
    python experiments/privacy/attacks.py collect FOLDER     # attacks every run; writes attacks.jsonl here
    python experiments/privacy/attacks.py show               # writes attacks.png and the table of README.md
    python experiments/privacy/attacks.py choose FOLDER      # trials of settings, with other providers than the table

`collect` attacks membership of providers and documents and erased fields, with the runs of the same budget as shadow
runs of each other, and audits noise with canaries.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from simfl.audit import extraction, membership, one_run
from simfl.audit.shadows import shadow_runs
from simfl.audit.statistics import CONFIDENCE, Estimate, roc
from simfl.runs.folder import RUN
from simfl.runs.results import Run

HERE = Path(__file__).parent
ROWS = HERE / "attacks.jsonl"
DATA = {"invoices": "attacked.yaml", "receipts": "attacked_receipts.yaml"}
ALONE, SHADOWED = "loss less initial", "loss less shadows"
RATES = (0.01, 0.001)
MARKED = re.compile(r"(?<=<!-- attacks -->\n).*(?=<!-- /attacks -->)", re.DOTALL)
AUDITED_ROUNDS, CANARIES, FIELDS, EXAMPLES, DOCUMENTS = 2, 300, 60, 4, 40
SMALLER: dict[str, Any] = {"data.providers": 200, "data.train": 200, "privacy.groups_per_client": 12}
TRIALS: dict[str, dict[str, Any]] = {  # settings that were tried, without noise
    "400 providers": {"data.providers": 400, "data.train": 400, "privacy.groups_per_client": 25},
    "steps16": {"phases.0.local.steps": 16, "phases.0.rounds": 5, "evaluate.every": 5, **SMALLER},
    "200 providers": SMALLER,
    "fast": {"phases.0.local.learning_rate": 1e-2, **SMALLER},
    "noisy": {"privacy.epsilon": 8, "privacy.noise_multiplier": None, **SMALLER},
    "average": {"phases.0.server": {"optimizer": "sgd", "learning_rate": 1.0}, **SMALLER},
    "clip20": {"privacy.clip": 20.0, **SMALLER},
    "rank32": {"model.adapters.rank": 32, "model.adapters.alpha": 64, "privacy.clip": 10.0, **SMALLER},
}
Row = dict[str, Any]


def sweep(folder: Path, options: argparse.Namespace) -> None:
    """Make the runs: four budgets and five seeds on each data set."""
    for name, experiment in DATA.items():
        if name in options.data:
            _simfl("sweep", HERE / "attacked_sweep.yaml", "--set", f"experiment={experiment}", options, folder / name)


def choose(folder: Path, options: argparse.Namespace) -> None:
    """Try settings without noise on other providers than those of the table, and print the success of attacks."""
    trials = {
        label: {"data.seed": 2, "privacy.epsilon": None, "privacy.noise_multiplier": 0, **settings}
        for label, settings in TRIALS.items()
    }
    file = folder / "trials.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"experiment": str(HERE / DATA["invoices"]), "variants": trials}))
    _simfl("sweep", file, options, folder / "trials")
    with _pool(options.processes) as pool:
        for line in pool.map(_tried, sorted(path.parent for path in (folder / "trials").rglob(RUN))):
            print(line, flush=True)


def _tried(folder: Path) -> str:
    found = membership.unit_scores(Run(folder), membership.MembershipSettings(examples=EXAMPLES, loss_only=True))
    final, control = (roc(*pair).auc for pair in (found.final[ALONE], found.control["loss"]))
    return f"{folder.name}: AUC {final}, initial model {control}, {Run(folder).summary['final']}"


def _simfl(command: str, file: Path, *rest: Any) -> None:
    *settings, options, out = rest
    backend = ["--backend", options.backend]
    if options.backend == "ray":
        backend += ["--workers", str(options.processes)]
        backend += ["--gpus-per-run", str(options.gpus_per_run)] if options.gpus_per_run else []
    words = [sys.executable, "-m", "simfl", command, str(file), *settings, "--out", str(out), *backend]
    words += [word for one in options.set for word in ("--set", one)]
    subprocess.run(words + ["--resume"] * out.exists(), check=True)


def collect(folder: Path, options: argparse.Namespace) -> None:
    """Attack every run and write one row for each."""
    runs = [(name, path.parent) for name in DATA for path in sorted((folder / name).rglob(RUN), reverse=True)]
    with _pool(options.processes) as pool, ROWS.open("w") as out:
        for done in as_completed([pool.submit(attacked, folder, run) for run in runs]):
            out.write(json.dumps(done.result()) + "\n")
            out.flush()


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def attacked(folder: Path, found: tuple[str, Path]) -> Row:
    """Attack one run."""
    name, path = found
    run = Run(path)
    privacy = run.experiment.privacy
    assert privacy is not None
    shadows = shadow_runs(run, folder / name)
    provider, document = (
        membership.unit_scores(
            run, membership.MembershipSettings(unit, shadows=shadows, examples=EXAMPLES, limit=most, loss_only=True)
        )
        for unit, most in (("provider", None), ("document", DOCUMENTS))
    )
    row: Row = {"data": name, "epsilon": f"{privacy.epsilon:g}" if privacy.adds_noise else "inf"}
    row |= {"seed": run.experiment.seed, "anls": run.summary["final"].get("anls"), "shadows": len(shadows)}
    row["auc"] = {
        "provider": roc(*provider.final[ALONE]).auc.value,
        "initial": roc(*provider.control["loss"]).auc.value,
        "shadows": roc(*provider.final[SHADOWED]).auc.value,
        "document": roc(*document.final[ALONE]).auc.value,
        "document, shadows": roc(*document.final[SHADOWED]).auc.value,
    }
    row["scores"] = [np.round(side, 4).tolist() for side in provider.final[ALONE]]
    row["extraction"] = asdict(extraction.extract(run, extraction.ExtractionSettings(shadows=shadows, limit=FIELDS)))
    if privacy.adds_noise:
        rounds = min(AUDITED_ROUNDS, run.experiment.phases[0].rounds)
        row["canaries"] = asdict(one_run.audit(run, one_run.AuditSettings(CANARIES, rounds)))
    print(f"{path}: attacked", file=sys.stderr, flush=True)
    return row


def mean_auc(rows: Sequence[Row], attack: str) -> Estimate:
    """Return the mean AUC over seeds with Student's interval; the seeds draw members independently."""
    values = np.array([row["auc"][attack] for row in rows])
    if len(values) < 2:
        return Estimate(float(values[0]), 0.0, 1.0)
    spread = float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)
    mean = float(values.mean())
    return Estimate(mean, max(0.0, mean - spread), min(1.0, mean + spread))


def pooled(rows: Sequence[Row], rate: float) -> Estimate | None:
    """Return the rate of true positives at a rate of false positives over the units of all seeds."""
    members, others = (np.concatenate([row["scores"][side] for row in rows]) for side in (0, 1))
    return roc(members, others, (rate,)).true_positives[rate]


def bounds(row: Row) -> list[tuple[float, float]]:
    """Return bound and claim of each view."""
    views = row.get("canaries", {}).get("views", [])
    return [(max(view["one_run"], view["gaussian"] or 0.0), view["claim"]) for view in views]


def extracted(rows: Sequence[Row], name: str) -> float:
    """Return the share of right answers of the row of the extraction with this name."""
    found = [one for row in rows for one in row["extraction"]["rates"] if one["name"] == name]
    asked = sum(one["fields"] for one in found)
    return sum(one["extracted"]["value"] * one["fields"] for one in found) / max(1, asked)


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Group rows by data set and epsilon, ascending."""
    budgets = sorted({row["epsilon"] for row in rows}, key=float)
    groups = {key: [row for row in rows if (row["data"], row["epsilon"]) == key] for key in product(DATA, budgets)}
    return {key: group for key, group in groups.items() if group}


LABELS = {"provider": "less initial model", "shadows": "less shadow runs", "initial": "initial model (control)"}
HEADER = (
    "data", "ε", "seeds", "ANLS", "provider AUC", "initial model", "provider AUC, shadow runs", "TPR at 1 % FPR",
    "TPR at 0.1 % FPR", "document AUC, shadow runs", "fields right", "fields right, shadow runs", "bound / claim",
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Return the table, one line for each data set and epsilon."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    for (data, epsilon), group in grouped(rows).items():
        ratios = [bound / claim for row in group for bound, claim in bounds(row)]
        rates = [pooled(group, rate) for rate in RATES]
        cells = (
            data,
            "∞" if epsilon == "inf" else epsilon,
            len(group),
            f"{np.mean([row['anls'] for row in group]):.3f}",
            *(mean_auc(group, attack) for attack in ("provider", "initial", "shadows")),
            *("too few units" if one is None else one for one in rates),
            mean_auc(group, "document, shadows"),
            f"{extracted(group, 'trained documents'):.3f}",
            f"{extracted(group, 'trained documents, shadow runs'):.3f}",
            f"{max(ratios):.2f}" if ratios else "-",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def figure(rows: Sequence[Row], path: Path) -> None:
    """Draw AUC by epsilon with intervals, and canary bounds against claims."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # must follow the choice of the backend

    plot, axes = plt.subplots(1, 3, figsize=(11, 3.4), constrained_layout=True)
    groups = grouped(rows)
    for axis, data in zip(axes, DATA, strict=False):
        own = {epsilon: group for (name, epsilon), group in groups.items() if name == data}
        for k, group in enumerate(own.values()):
            _draw(axis, k - 0.2, group, "provider", "C0")
            _draw(axis, k, group, "shadows", "C2")
            _draw(axis, k + 0.2, group, "initial", "0.6")
        axis.axhline(0.5, color="0.3", linewidth=0.8, linestyle="--")
        axis.set_xticks(range(len(own)), ["∞" if epsilon == "inf" else epsilon for epsilon in own])
        axis.set(title=data, xlabel="ε of the run", ylabel="AUC of provider membership", ylim=(0.3, 1))
        for attack, color in (("provider", "C0"), ("shadows", "C2"), ("initial", "0.6")):
            axis.plot([], [], color=color, label=LABELS[attack])
        axis.legend(loc="upper left", fontsize=8)
    pairs = [pair for row in rows for pair in bounds(row)]
    if pairs:
        found, claimed = zip(*pairs, strict=True)
        axes[2].plot(claimed, found, "o", color="C1", markersize=4)
        axes[2].plot([0, max(claimed)], [0, max(claimed)], color="0.3", linewidth=0.8, linestyle="--")
    axes[2].set(title="canaries", xlabel="claimed ε of the audited rounds", ylabel="lower bound (95 %)")
    plot.savefig(path, dpi=120)


def _draw(axis: Any, x: float, group: Sequence[Row], attack: str, color: str) -> None:
    mean = mean_auc(group, attack)
    axis.plot([x, x], [mean.low, mean.high], color=color, linewidth=2)
    axis.plot([x - 0.06, x + 0.06], [mean.value] * 2, color=color, linewidth=2)
    axis.plot([x] * len(group), [row["auc"][attack] for row in group], "o", color=color, markersize=3)


def show() -> None:
    """Write figure and table from the collected rows."""
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    figure(rows, HERE / "attacks.png")
    readme = HERE / "README.md"
    readme.write_text(MARKED.sub(lambda _: table(rows), readme.read_text()))


def main() -> None:
    """Run, collect, show, or all of these."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["all", "sweep", "collect", "show", "choose"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/privacy_attacked"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--gpus-per-run", type=float)
    parser.add_argument("--backend", default="ray")
    parser.add_argument("--data", nargs="*", choices=DATA, default=list(DATA))
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="override a setting")
    options = parser.parse_args()
    if options.command == "choose":
        choose(options.folder, options)
    if options.command in ("all", "sweep"):
        sweep(options.folder, options)
    if options.command in ("all", "collect"):
        collect(options.folder, options)
    if options.command in ("all", "show"):
        show()


if __name__ == "__main__":
    main()
