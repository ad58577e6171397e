"""Format the tables of RESULTS.md that `benchmarks.scaling` measures."""

from __future__ import annotations

import os
from statistics import median
from typing import Any

from benchmarks import scaling
from benchmarks.result import measured_on


def nodes_table(rows: list[dict[str, Any]], _: str) -> str:
    """Format two workers on one node and on two nodes: medians over all turns, which pair the two."""
    found = [row for row in rows if row["kind"] == "nodes"]
    lines = [
        f"`python -m benchmarks.scaling nodes`, {measured_on(scaling.LATEST)}, {os.cpu_count()} cores,"
        " shared with other processes.",
        "",
        "| work | turns | rounds each | 1 node, s / round | 2 nodes, s / round"
        " | ratio | ratio of each turn | same bits |",
        "|---|--:|--:|--:|--:|--:|---|---|",
    ]
    for work in dict.fromkeys(row["work"] for row in found):
        halves = [{row["turn"]: row for row in found if row["work"] == work and len(row["nodes"]) == n} for n in (1, 2)]
        whole = sorted(halves[0].keys() & halves[1].keys())  # turns in which both were measured
        both = [[half[turn] for turn in whole] for half in halves]
        one, two = (median(s for row in half for s in row["seconds"][scaling.SKIPPED :]) for half in both)
        turns = ", ".join(f"{b['seconds_per_round'] / a['seconds_per_round']:.2f}" for a, b in zip(*both, strict=True))
        same = len({row["state_sha256"] for half in both for row in half}) == 1
        lines.append(
            f"| {work} | {len(both[0])} | {both[0][0]['rounds']} | {one:.3f} | {two:.3f} | {two / one:.2f} | {turns}"
            f" | {'yes' if same else 'NO'} |"
        )
    return "\n".join(lines)


def gpus_table(rows: list[dict[str, Any]], _: str) -> str:
    """Format 1,000 clients per round on each number of GPUs."""
    found = [row for row in rows if row["kind"] == "gpus"]
    devices = "; ".join(sorted({row["device"] for row in found}))
    lines = [
        f"`python -m benchmarks.scaling gpus`, {measured_on(scaling.LATEST)}, {devices}.",
        "",
        "| work | deterministic | GPUs | s / round | clients / s | speed-up over 1 GPU | slowdown by deterministic"
        " | driver overhead | busiest worker | GPU utilization | bits of 1 GPU |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    at = {(row["work"], row["deterministic"], row["workers"]): row for row in found}
    for (work, deterministic, gpus), row in at.items():
        seconds = row["seconds_per_round"]
        alone, baseline = at.get((work, deterministic, 1)), at.get((work, False, gpus))
        cells = [work, str(deterministic).lower(), str(gpus), f"{seconds:.3f}", f"{row['clients_per_second']:.0f}"]
        cells.append(f"{alone['seconds_per_round'] / seconds:.2f}" if alone and gpus > 1 else "")
        cells.append(f"{seconds / baseline['seconds_per_round']:.2f}" if baseline and deterministic else "")
        cells += [f"{1 - row['calls_share']:.0%}", f"{row['work_share']:.0%}"]
        cells.append("" if row["gpu_use"] is None else f"{row['gpu_use']:.0%}")
        same = alone is not None and alone["state_sha256"] == row["state_sha256"]
        cells.append(("yes" if same else "no") if gpus > 1 else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
