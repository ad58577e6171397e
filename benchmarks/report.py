"""Write the tables of RESULTS.md from the latest measurements: `python -m benchmarks.report [MARK …]`.

Without marks all tables are written. `--note TEXT` describes the conditions of the CPU table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import backbones, clients, gpu, memory, overlap, scaling
from benchmarks.bench import LATEST
from benchmarks.result import measured_on
from benchmarks.scaling_tables import gpus_table, nodes_table
from benchmarks.systems import ENVIRONMENTS, REFERENCE, SYSTEMS

RESULTS = Path(__file__).parent / "RESULTS.md"
PACKAGES = ("torch", "ray", "transformers", "peft", "flwr", "pfl")


def cpu_table(rows: list[dict[str, Any]], note: str) -> str:
    """Format one row per work and system; `note` follows the versions."""
    lines = [
        f"`make bench`, {measured_on(LATEST)}, {os.cpu_count()} cores, one thread per process, {platform.system()},"
        f" Python {platform.python_version()}. {versions()}{note}",
        "",
        "| work | system | s / round | ratio | clients / s | first step, s | total, s | peak RSS, MB | same work |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        name = f"**{row['system']}**" if row["system"].startswith("simfl") else row["system"]
        lines.append(
            f"| {row['work']} | {name} | {row['seconds_per_round']:.3f} | {row['ratio_to_bare_loop']:.2f}"
            f" | {_short(row['clients_per_second'])} | {row['startup_seconds']:.1f} | {row['total_seconds']:.1f}"
            f" | {row['peak_rss_bytes'] / 1e6:.0f} | {'yes' if row['same_work'] else 'NO'} |"
        )
    missing = sorted(set(SYSTEMS) - {row["system"] for row in rows})
    return "\n".join(lines + ([f"\nNot measured: {'; '.join(missing)}."] if missing else []))


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def versions() -> str:
    """Return the package versions of every environment."""
    named = {"simfl": SYSTEMS[REFERENCE].python} | {
        folder.name: folder / "bin" / "python" for folder in sorted(ENVIRONMENTS.glob("*"))
    }
    lines = []
    for name, python in named.items():
        listed = subprocess.run([python, "-m", "pip", "list", "--format", "freeze"], capture_output=True, text=True)
        found = dict(line.split("==") for line in listed.stdout.splitlines() if "==" in line)
        lines.append(f"{name}: " + ", ".join(f"{p} {found[p]}" for p in PACKAGES if p in found))
    return "Versions: " + "; ".join(lines) + "."


def memory_table(rows: list[dict[str, Any]], _: str) -> str:
    """Format the resident memory of the driver process, one row per number of clients."""
    lines = [
        f"`python -m benchmarks.memory`, {measured_on(memory.LATEST)}.",
        "",
        "| clients | before the first round, MB | after 10 rounds, MB | after 100 rounds, MB |",
        "|--:|--:|--:|--:|",
    ]
    names = ("before", "after_10_rounds", "after_100_rounds")
    for row in rows:
        lines.append(f"| {row['clients']:,} | " + " | ".join(f"{row[name] / 1e6:.0f}" for name in names) + " |")
    return "\n".join(lines)


def clients_table(found: dict[str, Any], _: str) -> str:
    """Format a million clients, and clients with large states, after some of the rounds."""
    lines = [
        f"`python -m benchmarks.clients`, {measured_on(clients.LATEST)}, {os.cpu_count()} cores,"
        " shared with other processes.",
        "",
        "| clients | rounds | s / round | driver RSS, MB | states on disk | GB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for scale, measured in found.items():
        rows, name = measured["rows"], f"{measured['clients']:,} {scale}"
        for number in sorted({0, 1, 2, len(rows) // 4, len(rows) // 2, len(rows) - 1}):
            row = rows[number]
            lines.append(
                f"| {name} | {number} | {row['seconds']:.1f} | {row['rss'] / 1e6:.0f} | {row['states']:,.0f}"
                f" | {row['disk'] / 1e9:.1f} |"
            )
    return "\n".join(lines)


def gpu_table(rows: list[dict[str, Any]], _: str) -> str:
    """Format works of published size on one GPU, one row per program, then the plain training loop."""
    cards = sorted({f"{row['gpu']}, torch {row['torch']}" for row in rows if "gpu" in row})
    lines = [
        f"`python -m benchmarks.gpu`, {measured_on(gpu.LATEST)}, inline, {'; '.join(cards)}.",
        "",
        "| work | program | deterministic | rounds / s | clients / s | examples / s | MFU | to plain PyTorch"
        " | first two rounds, s | peak, GiB |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        deterministic = "–" if row.get("deterministic") is None else str(row["deterministic"]).lower()
        plain = row["work"] == "plain_t5"
        name = f"plain T5, batch {row['batch']}" if plain else row["work"]
        rates = "– | –" if plain else f"{row['rounds_per_second']:.1f} | {_short(row['clients_per_second'])}"
        share = "–" if row.get("mfu") is None else f"{100 * row['mfu']:.1f} %"
        ratio = f"{row['ratio_to_plain']:.2f}" if "ratio_to_plain" in row else "–"
        lines.append(
            f"| {name} | {row['program']} | {deterministic} | {rates} | {_short(row['examples_per_second'])}"
            f" | {share} | {ratio} | {row['start_seconds']:.1f} | {row['peak_bytes'] / 2**30:.1f} |"
        )
    return "\n".join(lines)


def backbones_table(rows: list[dict[str, Any]], _: str) -> str:
    """Format the training steps of every backbone, both precisions in one row."""
    cards = sorted({f"{row['gpu']}, torch {row['torch']}" for row in rows})
    lines = [
        f"`python -m benchmarks.backbones`, {measured_on(backbones.LATEST)}, {'; '.join(cards)}.",
        "",
        "| backbone | batch | trained | float32, examples / s | peak, GiB | bf16, examples / s | peak, GiB |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in dict.fromkeys(row["backbone"] for row in rows):
        both = {row["precision"]: row for row in rows if row["backbone"] == name}
        known = next(iter(both.values()))
        cells = [f"| {name} | {known['batch']} | {known['trained']:,}"]
        for precision in backbones.PRECISIONS:
            row = both.get(precision)
            cells.append(f"{_short(row['examples_per_second'])} | {row['peak_bytes'] / 2**30:.2f}" if row else "– | –")
        lines.append(" | ".join(cells) + " |")
    return "\n".join(lines)


TABLES = (
    ("cpu", LATEST, cpu_table),
    ("memory", memory.LATEST, memory_table),
    ("clients", clients.LATEST, clients_table),
    ("gpu", gpu.LATEST, gpu_table),
    ("backbones", backbones.LATEST, backbones_table),
    ("overlap", overlap.LATEST, overlap.table),
    ("nodes", scaling.LATEST, nodes_table),
    ("gpus", scaling.LATEST, gpus_table),
)


def replace_table(text: str, mark: str, table: str) -> str:
    """Return the text of RESULTS.md with a table between its marks."""
    marked = f"<!-- {mark} -->\n{table}\n<!-- /{mark} -->"
    return re.sub(rf"<!-- {mark} -->.*?<!-- /{mark} -->", lambda _: marked, text, flags=re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write each table that was measured between its marks in RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.splitlines()[0])
    parser.add_argument("--note", default="", help="conditions of the CPU table")
    parser.add_argument("marks", nargs="*", default=[mark for mark, _, _ in TABLES], help="tables; by default all")
    given = parser.parse_args(arguments)
    note, shown = given.note, [entry for entry in TABLES if entry[0] in given.marks]
    text = RESULTS.read_text()
    for mark, source, table in shown:
        if not source.exists():
            print(f"{source.name} does not exist: its table is unchanged")
            continue
        text = replace_table(text, mark, table(json.loads(source.read_text()), note and f" {note}"))
    RESULTS.write_text(text)
    print(f"written: {RESULTS.name}")


if __name__ == "__main__":
    main()
