"""The figures of a report as files: SVG, PNG and PDF, in the light colours, with title and legend."""

from __future__ import annotations

import html as entities
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simfl import files
from simfl.errors import ConfigError
from simfl.reports.page import LIGHT, STYLE

FORMATS = ("pdf", "png", "svg")
FIGURE = re.compile(r"<figure><figcaption>(.*?)</figcaption>(.*?)</figure>", re.DOTALL)
CHART = re.compile(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)" role="img" aria-label="[^"]*">(.*?)</svg>', re.DOTALL)
LEGEND = re.compile(r'<li><svg class="key"[^>]*>(.*?)</svg>(.*?)</li>', re.DOTALL)
SHARE = re.compile(r'style="--share:([\d.]+)"')
COMMENT = re.compile(r"/\*.*?\*/")
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
COLOURS = {"ground": "#fff", "ink": "#1b1f24", "soft": "#57606a", "edge": "#d5dae0", "strong": LIGHT[0]}
MARKS = (".line", ".mark", ".dot", ".band", ".bar")  # classes in the colour of their series
TITLE, LEGEND_ROW, LEGEND_COLUMN = 26, 20, 220  # pixels
SCALE = 3.0  # pixels of a PNG for each unit of the chart
FONT = "sans-serif"


def write_figures(html: str, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write each chart of a report to a folder, in each format; return the paths.

    Raises:
        ConfigError: The report has no chart, or the package that converts SVG is missing.
    """
    found = standalone_figures(html)
    if not found:
        raise ConfigError("--figures: the report has no figures yet")
    converter = _converter() if set(formats) - {"svg"} else None
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, svg in found.items():
        for kind in formats:
            content = svg.encode() if converter is None or kind == "svg" else _converted(converter, svg, kind)
            path = folder / f"{name}.{kind}"
            files.write(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
            paths.append(path)
    return paths


def standalone_figures(html: str) -> dict[str, str]:
    """Return each chart of a report as an SVG file of its own, by a name made of its title."""
    found: dict[str, str] = {}
    for title, body in FIGURE.findall(html):
        for chart in CHART.finditer(body):
            stem = re.sub(r"[^a-z0-9]+", "_", entities.unescape(title).lower()).strip("_") or "figure"
            name, number = stem, 1
            while name in found:
                number += 1
                name = f"{stem}_{number}"
            found[name] = _standalone(title, chart, LEGEND.findall(body))
    return found


def _standalone(title: str, chart: re.Match[str], legend: Sequence[tuple[str, str]]) -> str:
    width, height = float(chart[1]), float(chart[2])
    columns = max(1, int(width // LEGEND_COLUMN))
    rows = -(-len(legend) // columns)
    keys = "".join(
        f'<g transform="translate({8 + LEGEND_COLUMN * (i % columns)} {TITLE + height + LEGEND_ROW * (i // columns)})">'
        f'{key}<text x="32" y="12" class="label">{name}</text></g>'
        for i, (key, name) in enumerate(legend)
    )
    charts = SHARE.sub(lambda found: f'fill-opacity="{0.04 + 0.96 * float(found[1]):.3f}"', chart[3])
    total = TITLE + height + LEGEND_ROW * rows + 4
    size = f'width="{width:g}" height="{total:g}" viewBox="0 0 {width:g} {total:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
        f'<style>{_style()}</style><rect width="100%" height="100%" fill="{COLOURS["ground"]}"/>'
        f'<text x="8" y="17" class="title">{title}</text>'
        f'<g transform="translate(0 {TITLE})">{charts}</g>{keys}</svg>'
    )


def _style() -> str:
    """Return the rules of the page for charts, without variables, which converters do not know."""
    rules = [f".title{{font:600 14px {FONT};fill:{COLOURS['ink']}}}"]
    for selector, body in RULE.findall(COMMENT.sub("", STYLE)):
        names = selector.strip().replace("svg ", "")
        if names not in ("text", ".label", ".middle", ".end", ".grid", ".axis", ".median", ".hollow", ".cell", *MARKS):
            continue
        plain = re.sub(r"fill-opacity:calc\([^;]*;", "", body).replace("system-ui,sans-serif", FONT)
        for name, colour in COLOURS.items():
            plain = plain.replace(f"var(--{name})", colour)
        if "var(--c)" in plain:
            rules += [f"{names}.c{i}{{{plain.replace('var(--c)', colour)}}}" for i, colour in enumerate(LIGHT)]
        else:
            rules.append(f"{names}{{{plain}}}")
    return "".join(rules)


def _converter() -> Any:
    try:
        return importlib.import_module("vl_convert")
    except ImportError:
        raise ConfigError("--figures: PNG and PDF need vl-convert-python; pip install 'simfl[figures]'") from None


def _converted(converter: Any, svg: str, kind: str) -> bytes:
    return bytes(converter.svg_to_pdf(svg) if kind == "pdf" else converter.svg_to_png(svg, scale=SCALE))
