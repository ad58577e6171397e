"""The page of a report: one HTML file with its style sheet, without scripts or downloads, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# The palette of Okabe and Ito, safe for colour-blind readers; yellow and black, invisible on one background, replaced
LIGHT = ("#0072b2", "#d55e00", "#007a5a", "#b0528f", "#a97100", "#2b8fc7", "#5b4fa8", "#555555")
DARK = ("#4aa8e0", "#ff8a3d", "#2fc79b", "#e39ac4", "#f0b429", "#8ed0f5", "#aea4f0", "#bbbbbb")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # no script and no download, whatever is shown


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    title: str
    body: str  # HTML
    notes: tuple[str, ...] = ()  # lines of text under the heading


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return the HTML of the page; sections without a body are left out."""
    shown = [section for section in sections if section.body]
    links = "".join(f'<a href="#{_anchor(s.title)}">{escape(s.title)}</a>' for s in shown)
    parts = "".join(_section(section) for section in shown)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_style()}</style>"
    )
    body = f"<header><h1>{escape(title)}</h1><p>{escape(lead)}</p><nav>{links}</nav></header><main>{parts}</main>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, html: bool = False) -> str:
    """Return a table that scrolls horizontally; the first `left` columns are text. With `html`, cells are HTML."""
    encode = (lambda cell: cell) if html else escape
    kinds = ["" if i < left else " class=n" for i in range(len(header))]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, header, strict=True))
    lines = ("".join(f"<td{kind}>{encode(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def figure(title: str, chart: str, note: str = "") -> str:
    """Return a chart with a title and a note; an empty text if there is no chart."""
    under = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{chart}{under}</figure>" if chart else ""


def figures(given: Sequence[str]) -> str:
    """Return charts in a grid."""
    return f'<div class="figures">{"".join(given)}</div>' if any(given) else ""


def code(text: str) -> str:
    """Return preformatted text that scrolls."""
    return f"<pre>{escape(text)}</pre>"


def folded(title: str, body: str) -> str:
    """Return a part that unfolds on a click."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _section(section: Section) -> str:
    note = "".join(f'<p class="note">{escape(text)}</p>' for text in section.notes)
    return f'<section id="{_anchor(section.title)}"><h2>{escape(section.title)}</h2>{note}{section.body}</section>'


def _anchor(title: str) -> str:
    return "-".join(title.lower().split())


def _style() -> str:
    light = "".join(f"--c{i}:{colour};" for i, colour in enumerate(LIGHT))
    dark = "".join(f"--c{i}:{colour};" for i, colour in enumerate(DARK))
    marks = "".join(f".c{i}{{--c:var(--c{i})}}" for i in range(len(LIGHT)))
    return STYLE.replace("/*light*/", light).replace("/*dark*/", dark).replace("/*marks*/", marks)


STYLE = """
:root{--ground:#fff;--ink:#1b1f24;--soft:#57606a;--edge:#d5dae0;--raised:#f6f8fa;--strong:#0072b2;/*light*/}
@media (prefers-color-scheme:dark){
:root{--ground:#12151a;--ink:#e8ebef;--soft:#a3acb7;--edge:#343b45;--raised:#1b2027;--strong:#4aa8e0;/*dark*/}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
header,main{max-width:1180px;margin:0 auto;padding:0 16px}
h1{font-size:1.7rem;line-height:1.2;margin:24px 0 4px;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:36px 0 8px;padding-top:12px;border-top:1px solid var(--edge)}
header p,.note{color:var(--soft);margin:0 0 6px;max-width:90ch;overflow-wrap:anywhere}
nav{display:flex;flex-wrap:wrap;gap:4px 14px}
a{color:var(--strong)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:18px}
figure{margin:0;min-width:0}
figcaption{font-weight:600;overflow-wrap:anywhere}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font:12.5px system-ui,sans-serif}
svg .label{fill:var(--ink)}
.middle{text-anchor:middle}.end{text-anchor:end}
.grid{stroke:var(--edge);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
/*marks*/
.line{fill:none;stroke:var(--c);stroke-width:2.2}
.mark{fill:var(--c);stroke:var(--ground);stroke-width:1}
.dot{fill:var(--c);fill-opacity:.55;stroke:var(--c)}
.hollow{fill:none;stroke-width:1.4}
.band{fill:var(--c);fill-opacity:.1}
.bar{fill:var(--c)}
.median{stroke:var(--ink);stroke-width:2.5}
.cell{fill:var(--strong);fill-opacity:calc(.04 + .96*var(--share));stroke:var(--ground);stroke-width:.5}
.legend{list-style:none;margin:2px 0 0;padding:0;display:flex;flex-wrap:wrap;gap:2px 14px;font-size:13px}
.legend li{display:flex;align-items:center;gap:5px;overflow-wrap:anywhere;min-width:0}
.key{width:26px;height:16px;flex:none}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:14px}
th,td{padding:5px 12px 5px 0;text-align:left;border-bottom:1px solid var(--edge);vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.text{min-width:12ch;max-width:40ch;overflow-wrap:anywhere}
pre{background:var(--raised);padding:10px 12px;overflow-x:auto;font-size:12.5px;border-radius:6px;margin:6px 0}
details{margin:6px 0}summary{cursor:pointer;overflow-wrap:anywhere}
small{color:var(--soft);font-size:12px}
.tag{background:var(--raised);border:1px solid var(--edge);border-radius:4px;padding:0 5px;font-size:12.5px}
"""
