"""A partition as a picture: who holds how much of what, and how far the clients are from one another.

matplotlib draws it; it is asked for only here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simfl.data.partition.heterogeneity import OTHERS, SHOWN, Heterogeneity
from simfl.errors import DataError

COLUMN, HEIGHT, DPI = 7.0, 16.0, 100  # inches of a partition's column and of the picture; dots per inch
MAX_LABEL = 18  # characters of a value


def save(
    path: Path, partitions: Mapping[str, Heterogeneity], seen: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> None:
    """A PNG with a column of panels for each partition. DataError if matplotlib is not installed."""
    try:
        figures, agg = (importlib.import_module(f"matplotlib.{name}") for name in ("figure", "backends.backend_agg"))
    except ImportError as error:
        raise DataError("partition show: --png needs matplotlib; pip install 'simfl[plots]'") from error
    figure = figures.Figure(figsize=(COLUMN * len(partitions), HEIGHT), layout="constrained")
    agg.FigureCanvasAgg(figure)
    axes = np.array(figure.subplots(5, len(partitions), squeeze=False, height_ratios=[4, 1.6, 1.6, 4, 1.6]))
    brightest = max(_largest(numbers) for numbers in partitions.values())
    for (name, numbers), panels in zip(partitions.items(), axes.T, strict=True):
        _heat(figure, panels[0], name, numbers, brightest)
        _bars(panels[1], numbers.sizes, "examples", "tab:blue")
        _bars(panels[2], numbers.entropy, f"entropy of {numbers.what} (bits)", "tab:green")
        _pairwise(figure, panels[3], numbers)
        _seen(panels[4], seen.get(name, {}))
    for row in axes[1:3]:  # on one scale, so that partitions can be compared
        top = max(panel.get_ylim()[1] for panel in row)
        for panel in row:
            panel.set_ylim(0, top or 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, metadata={"Software": "simfl"})


def _shares(numbers: Heterogeneity) -> np.ndarray:
    shares: np.ndarray = numbers.heat / np.maximum(1, numbers.heat.sum(1, keepdims=True))
    return shares


def _largest(numbers: Heterogeneity) -> float:
    """The largest share of a value that has a name of its own."""
    named = len(numbers.values) - (OTHERS in numbers.values)
    return float(_shares(numbers)[:, :named].max(initial=1e-9))


def _heat(figure: Any, panel: Any, name: str, numbers: Heterogeneity, brightest: float) -> None:
    shares = _shares(numbers)
    shown = panel.imshow(shares, aspect="auto", cmap="viridis", vmin=0.0, vmax=brightest, interpolation="nearest")
    cut = f", the first {SHOWN} drawn" if len(numbers.sizes) > SHOWN else ""
    panel.set_title(f"{name}: {len(numbers.sizes):,} clients{cut}, {numbers.sizes.sum():,} examples")
    panel.set_xticks(range(len(numbers.values)), [_short(value) for value in numbers.values], rotation=90, fontsize=7)
    panel.set_ylabel("client")
    panel.set_xlabel(numbers.what)
    figure.colorbar(shown, ax=panel, label="share of the client's examples")


def _short(value: str) -> str:
    """A label of few characters; `$` would start a formula."""
    cut = value if len(value) <= MAX_LABEL else f"{value[: MAX_LABEL - 1]}…"
    return cut.replace("$", r"\$")


def _bars(panel: Any, values: np.ndarray, label: str, colour: str) -> None:
    first = values[:SHOWN]
    panel.bar(range(len(first)), first, color=colour)
    panel.set_xlabel("client")
    panel.set_ylabel(label)
    panel.margins(x=0.01)


def _pairwise(figure: Any, panel: Any, numbers: Heterogeneity) -> None:
    shown = panel.imshow(numbers.pairwise, cmap="magma", vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.set_title(f"pairwise Jensen-Shannon of {numbers.what}, mean {numbers.mean_pairwise:.3f} bits")
    panel.set_xlabel("client")
    panel.set_ylabel("client")
    figure.colorbar(shown, ax=panel)


def _seen(panel: Any, seen: Mapping[str, Mapping[str, float]]) -> None:
    """How much of the other splits the clients have seen, as bars from 0 to 1."""
    names = [(split, what) for split, columns in seen.items() for what in columns]
    panel.barh(range(len(names)), [seen[split][what] for split, what in names], color="tab:orange")
    panel.set_yticks(range(len(names)), [f"{split}: {what}" for split, what in names])
    panel.set_xlim(0, 1)
    panel.invert_yaxis()
    panel.set_xlabel("share of examples whose value some client has")
