"""Figure of a partition: value shares and sizes of the clients, and divergences between them.

matplotlib is imported in this module only.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simfl.data.partition.heterogeneity import MAX_CLIENTS, OTHERS, Heterogeneity
from simfl.errors import DataError

COLUMN, HEIGHT, DPI = 7.0, 16.0, 100  # inches of a partition's column and of the picture; dots per inch
MAX_LABEL = 18  # characters of a value


def save(
    path: Path, partitions: Mapping[str, Heterogeneity], known: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> None:
    """Save a PNG with a column of panels for each partition.

    Args:
        path: The file.
        partitions: Measures of each partition by name.
        known: For each partition, the result of `known_values`.

    Raises:
        DataError: matplotlib is not installed.
    """
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
        _bars(panels[2], numbers.entropy, f"entropy of {numbers.column} (bits)", "tab:green")
        _pairwise(figure, panels[3], numbers)
        _known(panels[4], known.get(name, {}))
    for row in axes[1:3]:  # one scale, so that partitions can be compared
        top = max(panel.get_ylim()[1] for panel in row)
        for panel in row:
            panel.set_ylim(0, top or 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, metadata={"Software": "simfl"})


def _shares(numbers: Heterogeneity) -> np.ndarray:
    shares: np.ndarray = numbers.heat / np.maximum(1, numbers.heat.sum(1, keepdims=True))
    return shares


def _largest(numbers: Heterogeneity) -> float:
    """Return the largest share of a value with a column of its own."""
    named = len(numbers.values) - (OTHERS in numbers.values)
    return float(_shares(numbers)[:, :named].max(initial=1e-9))


def _heat(figure: Any, panel: Any, name: str, numbers: Heterogeneity, brightest: float) -> None:
    shares = _shares(numbers)
    shown = panel.imshow(shares, aspect="auto", cmap="viridis", vmin=0.0, vmax=brightest, interpolation="nearest")
    cut = f", the first {MAX_CLIENTS} shown" if len(numbers.sizes) > MAX_CLIENTS else ""
    panel.set_title(f"{name}: {len(numbers.sizes):,} clients{cut}, {numbers.sizes.sum():,} examples")
    panel.set_xticks(range(len(numbers.values)), [_short(value) for value in numbers.values], rotation=90, fontsize=7)
    panel.set_ylabel("client")
    panel.set_xlabel(numbers.column)
    figure.colorbar(shown, ax=panel, label="share of the client's examples")


def _short(value: str) -> str:
    """Return a label of at most `MAX_LABEL` characters; `$` is escaped because it starts a formula."""
    cut = value if len(value) <= MAX_LABEL else f"{value[: MAX_LABEL - 1]}…"
    return cut.replace("$", r"\$")


def _bars(panel: Any, values: np.ndarray, label: str, colour: str) -> None:
    first = values[:MAX_CLIENTS]
    panel.bar(range(len(first)), first, color=colour)
    panel.set_xlabel("client")
    panel.set_ylabel(label)
    panel.margins(x=0.01)


def _pairwise(figure: Any, panel: Any, numbers: Heterogeneity) -> None:
    shown = panel.imshow(numbers.pairwise, cmap="magma", vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.set_title(f"pairwise Jensen-Shannon of {numbers.column}, mean {numbers.mean_pairwise:.3f} bits")
    panel.set_xlabel("client")
    panel.set_ylabel("client")
    figure.colorbar(shown, ax=panel)


def _known(panel: Any, known: Mapping[str, Mapping[str, float]]) -> None:
    """Plot the share of other splits whose values occur at some client, as bars from 0 to 1."""
    names = [(split, column) for split, columns in known.items() for column in columns]
    panel.barh(range(len(names)), [known[split][column] for split, column in names], color="tab:orange")
    panel.set_yticks(range(len(names)), [f"{split}: {column}" for split, column in names])
    panel.set_xlim(0, 1)
    panel.invert_yaxis()
    panel.set_xlabel("share of examples whose value occurs at some client")
