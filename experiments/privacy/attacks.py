"""Attack the runs of `attacked_sweep.yaml`, and write the table and the figure of the README.

    python experiments/privacy/attacks.py collect runs/privacy_attacked attacks.jsonl
    python experiments/privacy/attacks.py show attacks.jsonl

`collect` attacks every run below a folder: membership of providers, extraction of fields, and canaries where there is
noise. `show` writes `attacks.png` next to this file, and the table between the marks `attacks` of README.md.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from simfl.audit import extraction, membership, one_run
from simfl.runs.results import Run

HERE = Path(__file__).parent
MAIN = "loss less initial"
MARKED = re.compile(r"(?<=<!-- attacks -->\n).*(?=<!-- /attacks -->)", re.DOTALL)
AUDITED_ROUNDS, FIELDS = 3, 100
Row = dict[str, Any]


def collect(folder: Path) -> list[Row]:
    """Attack every run below a folder, and return one row for each."""
    rows = []
    for manifest in sorted(folder.rglob("manifest.json")):
        run = Run(manifest.parent)
        privacy = run.experiment.privacy
        noisy = privacy is not None and privacy.adds_noise
        epsilon = str(privacy.epsilon) if noisy and privacy is not None else "inf"
        row: Row = {"epsilon": epsilon.removesuffix(".0"), "seed": run.experiment.seed}
        row["membership"] = asdict(membership.attack(run, membership.MembershipSettings()))
        row["extraction"] = asdict(extraction.extract(run, extraction.ExtractionSettings(limit=FIELDS)))
        if noisy:
            row["canaries"] = asdict(one_run.audit(run, one_run.AuditSettings(rounds=AUDITED_ROUNDS)))
        rows.append(row)
        print(f"{manifest.parent}: attacked", file=sys.stderr)
    return rows


def auc(row: Row) -> Row:
    """Return the AUC of the main score with its interval."""
    found: Row = next(one["roc"]["auc"] for one in row["membership"]["attacks"] if one["name"] == MAIN)
    return found


def bounds(row: Row) -> list[tuple[float, float]]:
    """Return bound and claim of each view."""
    views = row.get("canaries", {}).get("views", [])
    return [(max(view["one_run"], view["gaussian"] or 0.0), view["claim"]) for view in views]


def extracted(row: Row, name: str) -> float:
    """Return the share of right answers of the row of the extraction with this name."""
    return float(next(one["extracted"]["value"] for one in row["extraction"]["rates"] if one["name"] == name))


def by_epsilon(rows: list[Row]) -> dict[str, list[Row]]:
    """Group rows by epsilon, ascending."""
    order = sorted({row["epsilon"] for row in rows}, key=float)
    return {epsilon: [row for row in rows if row["epsilon"] == epsilon] for epsilon in order}


def table(rows: list[Row]) -> str:
    """Return the table, one line for each epsilon."""
    lines = [
        "| ε | seeds | provider AUC | intervals that hold 0.5 | fields right | fields right, initial model |"
        " largest canary bound over its claim |",
        "|---|---|---|---|---|---|---|",
    ]
    for epsilon, group in by_epsilon(rows).items():
        areas = [auc(row) for row in group]
        values = np.array([one["value"] for one in areas])
        hold = sum(one["low"] <= 0.5 <= one["high"] for one in areas)
        asked = [row for row in group if "extraction" in row]
        ratios = [bound / claim for row in group for bound, claim in bounds(row)]
        shares = ["-", "-"]
        if asked:
            names = ("trained documents", "trained documents, initial model")
            shares = [f"{np.mean([extracted(row, name) for row in asked]):.3f}" for name in names]
        spread = f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else ""
        worst = f"{max(ratios):.2f}" if ratios else "-"
        cells = (
            "∞" if epsilon == "inf" else epsilon,
            len(group),
            f"{values.mean():.3f}{spread}",
            f"{hold}/{len(group)}",
        )
        lines.append("| " + " | ".join(map(str, (*cells, *shares, worst))) + " |")
    return "\n".join(lines) + "\n"


def figure(rows: list[Row], path: Path) -> None:
    """Draw AUC with intervals, and canary bounds against claims."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # must follow the choice of the backend

    groups = by_epsilon(rows)
    plot, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    for k, group in enumerate(groups.values()):
        for j, one in enumerate(auc(row) for row in group):
            x = k + 0.12 * (j - (len(group) - 1) / 2)
            left.plot([x, x], [one["low"], one["high"]], color="0.6", linewidth=1)
            left.plot([x], [one["value"]], "o", color="C0", markersize=4)
    left.axhline(0.5, color="0.3", linewidth=0.8, linestyle="--")
    left.set_xticks(range(len(groups)), ["∞" if epsilon == "inf" else epsilon for epsilon in groups])
    left.set(xlabel="ε of the run", ylabel="AUC of provider membership", ylim=(0, 1))
    pairs = [pair for row in rows for pair in bounds(row)]
    if pairs:
        found, claimed = zip(*pairs, strict=True)
        right.plot(claimed, found, "o", color="C1", markersize=4)
        right.plot([0, max(claimed)], [0, max(claimed)], color="0.3", linewidth=0.8, linestyle="--")
    right.set(xlabel="claimed ε of the audited rounds", ylabel="lower bound by canaries (95 %)")
    plot.savefig(path, dpi=150)


def main() -> None:
    """Collect, or show what was collected."""
    match sys.argv[1:]:
        case ["collect", folder, target]:
            rows = collect(Path(folder))
            Path(target).write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ["show", source]:
            rows = [json.loads(line) for line in Path(source).read_text().splitlines()]
            figure(rows, HERE / "attacks.png")
            readme = HERE / "README.md"
            readme.write_text(MARKED.sub(lambda _: table(rows), readme.read_text()))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
