"""Draw the pictures of the documentation: `python docs/make_pictures.py`; `--check` tests that they are current.

round.svg and run_folder.svg are drawn here, speed.svg from the first table of benchmarks/RESULTS.md. They are plain SVG
in the colours of both themes of the site. The maps of partitions are drawn by `simfl partition show --png`.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
BLUE, ORANGE, GREEN, GREY, INK = "#2f6fb7", "#c8641b", "#2e8b57", "#8a94a0", "#1d2733"
FONT = "font-family='Helvetica, Arial, sans-serif'"


def text(x: float, y: float, words: str, size: int = 14, anchor: str = "middle", colour: str = INK) -> str:
    """Return a line of text; one in a colour or of a large size is bold."""
    weight = " font-weight='600'" if size > 14 or colour in (BLUE, ORANGE, GREEN) else ""
    place = f"x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}'"
    return f"<text {place} fill='{colour}'{weight} {FONT}>{escape(words)}</text>"


def box(x: float, y: float, width: float, height: float, colour: str, title: str, *lines: str) -> str:
    """Return a box with a title and lines below it."""
    parts = [
        f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='7' fill='{colour}' fill-opacity='0.10'"
        f" stroke='{colour}' stroke-width='1.5'/>",
        text(x + width / 2, y + 23, title, 15, colour=colour),
    ]
    parts += [text(x + width / 2, y + 44 + 18 * number, line, 13) for number, line in enumerate(lines)]
    return "".join(parts)


def arrow(x1: float, y1: float, x2: float, y2: float, label: str = "", dy: float = -8) -> str:
    """Return an arrow, with a label at its middle."""
    ends = f"x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}'"
    line = f"<line {ends} stroke='{GREY}' stroke-width='2' marker-end='url(#tip)'/>"
    return line + (text((x1 + x2) / 2, (y1 + y2) / 2 + dy, label, 12, colour=GREY) if label else "")


def svg(width: int, height: int, title: str, *parts: str) -> str:
    """Return a picture on white, which is readable on dark pages too."""
    marker = "viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' orient='auto'"
    tip = f"<defs><marker id='tip' {marker}><path d='M0 0 L10 5 L0 10 z' fill='{GREY}'/></marker></defs>"
    size = f"viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    paper = f"<rect width='{width}' height='{height}' fill='white'/>"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img'><title>{escape(title)}</title>"
    return head + tip + paper + "".join(parts) + "</svg>\n"


def round_picture() -> str:
    """Draw one round: server, messages, clients, sum, step."""
    clients = [
        box(
            330,
            34 + 92 * number,
            230,
            74,
            BLUE,
            f"client {name}",
            "local steps on its own examples",
            "state stays here",
        )
        for number, name in enumerate(("3", "8", "17"))
    ]
    down = [arrow(232, 150, 326, 71 + 92 * number) for number in range(3)]
    up = [arrow(562, 71 + 92 * number, 656, 150) for number in range(3)]
    back = f"fill='none' stroke='{GREY}' stroke-width='2' marker-end='url(#tip)'"
    end = "6  ledger, tables and checkpoint: a round counts whole or not at all; then the next round"
    labels = (
        text(266, 36, "2  parts", 13, colour=GREY),
        text(266, 53, "bytes counted", 12, colour=GREY),
        text(445, 24, "3  client updates, on any worker", 13, colour=BLUE),
        text(630, 36, "4  uploads", 13, colour=GREY),
        text(630, 53, "clip, noise, codec", 12, colour=GREY),
        text(447, 344, end, 13),
    )
    server = ("1  server samples", "clients of this round", "algorithm.download", "codec encodes")
    total = ("5  sum on one tree", "independent of workers", "algorithm.aggregate", "server optimizer steps")
    boxes = (box(20, 96, 210, 110, ORANGE, *server), *clients, box(658, 96, 222, 110, GREEN, *total))
    path = f"<path d='M769 206 V324 H125 V210' {back}/>"
    return svg(900, 360, "One round of federated learning in simfl", *boxes, *down, *up, path, *labels)


FILES = (
    ("experiment.yaml", "the resolved experiment, defaults included", ORANGE),
    ("manifest.json", "versions, hashes, hardware, execution mode", ORANGE),
    ("partition.json", "training rows of each client", ORANGE),
    ("summary.json", "scores, bytes, baselines, status", GREEN),
    ("rounds, clients, evaluations .parquet", "losses and scores by round, client, group", GREEN),
    ("ledger.parquet", "bytes of every message and part", GREEN),
    ("samples, scores .parquet", "predictions; the score of each example", GREEN),
    ("log.jsonl, clients.jsonl", "events, timings, failures", GREEN),
    ("checkpoints/, client_states/", "what --resume and replay start from", BLUE),
    ("privacy.md, report.html, trace.json", "with privacy; simfl report; run --profile", GREY),
)


def folder_picture() -> str:
    """Draw the files of a run folder, in groups: what was asked, what came out, what resumes."""
    rows = []
    for number, (name, meaning, colour) in enumerate(FILES):
        y = 58 + 32 * number
        rows.append(f"<rect x='34' y='{y}' width='8' height='22' rx='2' fill='{colour}'/>")
        rows.append(text(54, y + 16, name, 14, "start") + text(420, y + 16, meaning, 14, "start"))
    legend = [("what was asked", ORANGE), ("what came out", GREEN), ("what resumes it", BLUE), ("on request", GREY)]
    keys = []
    for number, (name, colour) in enumerate(legend):
        x = 250 + 150 * number
        keys.append(
            f"<rect x='{x}' y='18' width='12' height='12' rx='2' fill='{colour}'/>"
            + text(x + 18, 29, name, 13, "start")
        )
    return svg(860, 390, "Files of a run folder", text(24, 31, "runs/NAME/", 17, "start"), *keys, *rows)


def speed_rows() -> list[tuple[str, str, float]]:
    """Return work, system and seconds per round from the table of the CPU benchmark."""
    page = (ROOT / "benchmarks/RESULTS.md").read_text(encoding="utf-8")
    lines = page.partition("<!-- cpu -->")[2].partition("<!-- /cpu -->")[0].splitlines()
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| W")]
    return [(row[0], row[1], float(row[2])) for row in cells]


def speed_picture() -> str:
    """Draw seconds per round as bars, one group for each work, systems with two processes alone."""
    names = {
        "bare loop, 2 processes": ("bare loop", GREY), "simfl, Ray, 2 workers": ("simfl, Ray", BLUE),
        "pfl-research, 2 processes": ("pfl-research", GREEN), "Flower, strategy API": ("Flower, strategy API", ORANGE),
    }  # fmt: skip
    rows, parts = speed_rows(), []
    for place, work in enumerate(dict.fromkeys(row[0] for row in rows)):
        found = [(system, seconds) for name, system, seconds in rows if name == work and system in names]
        top, largest = 40 + 140 * place, max(seconds for _, seconds in found)
        parts.append(text(20, top + 62, work, 16, "start"))
        for number, (system, seconds) in enumerate(found):
            label, colour = names[system]
            y, width = top + 30 * number, 430 * seconds / largest
            parts.append(text(220, y + 16, label, 13, "end"))
            parts.append(f"<rect x='230' y='{y}' width='{width:.1f}' height='22' fill='{colour}'/>")
            parts.append(text(238 + width, y + 16, f"{seconds:.2f} s a round", 13, "start"))
    return svg(840, 460, "Seconds per round on two cores, from benchmarks/RESULTS.md", *parts)


DRAWN = {"round.svg": round_picture, "run_folder.svg": folder_picture, "speed.svg": speed_picture}


def main(arguments: list[str]) -> int:
    """Draw the pictures, or compare them with `--check`."""
    stale = []
    for name, draw in DRAWN.items():
        path, drawn = PICTURES / name, draw()
        if "--check" not in arguments:
            PICTURES.mkdir(exist_ok=True)
            path.write_text(drawn, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != drawn:
            stale.append(name)
    if stale:
        print(f"not current: {', '.join(stale)}; run python docs/make_pictures.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
