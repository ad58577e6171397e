"""Draw docs/reference/codecs.png from the runs of sweep.yaml: `python experiments/codecs/picture.py [SWEEP]`.

One panel per data set: bytes of all messages against accuracy on the test split, with one marker per codec at the mean
of its seeds and a line from the worst seed to the best.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # must follow the choice of the backend

HERE = Path(__file__).parent
OUT = HERE.parent.parent / "docs/reference/codecs.png"
TITLES = {"domains": "domains, cnn", "scene_vqa": "scene_vqa, tiny ViLT"}
SHAPES = {"topk": "v", "randomk": "^", "svd": "D", "sign": "P", "nf4": "s", "int8": "o"}  # others: X

Scores = dict[str, list[tuple[float, float]]]  # codec -> (MB, accuracy) of each seed


def main() -> None:
    """Read the summaries of the runs, draw the figure and print the table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/codecs")
    found = scores(folder)
    figure, axes = plt.subplots(1, len(found), figsize=(6.2 * len(found), 4.8), squeeze=False)
    for axis, (data, of_codec) in zip(axes[0], sorted(found.items()), strict=True):
        panel(axis, TITLES.get(data, data), of_codec)
    figure.tight_layout()
    figure.savefig(OUT, dpi=110)


def scores(folder: Path) -> dict[str, Scores]:
    """Return the scores of all completed runs of a sweep, by data set and codec."""
    found: dict[str, Scores] = defaultdict(lambda: defaultdict(list))
    for run in json.loads((folder / "sweep.json").read_text())["runs"]:
        path = folder / "runs" / run["label"] / "summary.json"
        summary = json.loads(path.read_text()) if path.exists() else {}
        if summary.get("status") == "completed":
            varied = run["varied"]
            found[varied["experiment"]][varied["variant"]].append(
                (summary["bytes"]["total"] / 1e6, summary["final"]["accuracy"])
            )
    return found


def panel(axis: plt.Axes, title: str, of_codec: Scores) -> None:
    """Draw the panel of one data set."""
    print(f"{title}: codec, MB, accuracy mean (worst to best of seeds)")
    order = sorted(of_codec, key=lambda codec: -np.mean([size for size, _ in of_codec[codec]]))
    colours = plt.cm.turbo(np.linspace(0.05, 0.95, len(order)))
    for codec, colour in zip(order, colours, strict=True):
        sizes, values = np.array(of_codec[codec]).T
        shape = next((mark for name, mark in SHAPES.items() if codec.startswith(name)), "X")
        axis.plot([sizes.mean()] * 2, [values.min(), values.max()], color=colour, linewidth=1)
        label = f"{codec.replace('_', ' ')}: {values.mean():.3f}"
        axis.plot(sizes.mean(), values.mean(), shape, color=colour, markersize=8, label=label)
        low, high = values.min(), values.max()
        print(f"  {codec}: {sizes.mean():.3f}, {values.mean():.4f} ({low:.4f} to {high:.4f}), {len(values)} seeds")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    axis.xaxis.set_minor_formatter(lambda size, _: f"{size:g}" if f"{size:e}"[0] in "2346" else "")
    axis.set_xlabel("MB of all messages, down and up")
    axis.set_ylabel("accuracy on the test split")
    axis.set_title(title)
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8, loc="lower right", title="codec: mean accuracy")


if __name__ == "__main__":
    main()
