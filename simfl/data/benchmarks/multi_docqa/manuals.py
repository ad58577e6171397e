"""Pages of real manuals, set from their text, and what can be asked of a page: all answers stand on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.multi_docqa.archive import Source
from simfl.data.benchmarks.multi_docqa.asked import Asked
from simfl.data.benchmarks.multi_docqa.sheet import Sheet
from simfl.data.benchmarks.provider_invoices.fonts import widths
from simfl.data.readers.table_page import ASCENT, DESCENT, FAMILY, LEADING, MARGIN, TablePage, Word

WIDTH, LINES = 34.0, 26  # of a page: ems, and lines of text
INDENT = 2.0  # ems
FEWEST = 6  # lines, without which a page is none
MEANING = 9  # words of a meaning that is asked for, at most
MARKS = {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "\u00a0": " "}


@dataclass(frozen=True)
class Line:
    """A line of a manual before it is set."""

    text: str
    bold: bool = False
    indent: int = 0
    term: str = ""  # what the line explains, if it does
    wrap: bool = True  # code keeps its lines


Set = tuple[Line, list[list[str]]]  # with the words of each printed line


@dataclass(frozen=True)
class Leaf:
    """One page of a manual."""

    sheet: Sheet
    title: str  # if it stands on this page
    name: str  # of the data set, at the top of the page
    meanings: dict[str, str]  # of terms, where both stand on this page
    text: str


def leaves(source: Source) -> list[Leaf]:
    """The pages of a manual."""
    pages: list[list[Set]] = [[]]
    rows = 0
    for line in _lines(source):
        wrapped = _wrapped(line)
        if rows and rows + len(wrapped) > LINES:
            pages.append([])
            rows = 0
        pages[-1].append((line, wrapped))
        rows += len(wrapped)
    return [_leaf(source, page, number) for number, page in enumerate(pages) if len(page) >= FEWEST]


def _lines(source: Source) -> Iterator[Line]:
    """The lines of a manual: its title, headings, paragraphs, code, and terms with their meanings."""
    raw = _plain(source.manual).split("\n")
    blocks = [block.split("\n") for block in re.split(r"\n\s*\n", "\n".join(raw))]
    code = False
    for block in blocks:
        block = [line for line in block if line.strip()]
        if not block or (block[0].startswith("+--") and "R Documentation" in " ".join(block)):
            continue
        if len(block) == 2 and set(block[1]) in ({"-"}, {"~"}):
            code = False
            yield Line(_inline(block[0]), bold=True)
        elif block[0].strip() == "::":
            code = True
        elif code and block[0].startswith("    "):
            yield from (Line(line.strip(), indent=1, wrap=False) for line in block)
        elif block[0].startswith("+--"):
            yield from _cells(block)
        elif len(block) > 1 and not block[0].startswith(" ") and block[1].startswith("    "):
            term = _inline(block[0])
            meaning = _inline(" ".join(line.strip() for line in block[1:]))
            yield Line(term)
            yield Line(meaning, indent=1, term=term)
        else:
            yield Line(_inline(" ".join(line.strip() for line in block)))


def _cells(block: list[str]) -> Iterator[Line]:
    """The rows of a table; of [, 1] | name | meaning the last two are a term and its meaning."""
    for line in block:
        cells = [_inline(cell.strip()) for cell in line.strip("|").split("|")]
        cells = [cell for cell in cells if cell]
        if line.startswith("|") and cells:
            yield Line("   ".join(cells), indent=1, term=cells[-2] if len(cells) > 1 else "", wrap=True)


def _plain(text: str) -> str:
    for mark, plain in MARKS.items():
        text = text.replace(mark, plain)
    return text


def _inline(text: str) -> str:
    text = re.sub(r"`([^`<]*?)\s*<[^>`]*>`__?", r"\1", text)
    text = re.sub(r"``(.+?)``", r"\1", text)
    text = re.sub(r"(?<![\w*])\*{1,2}([^*]+)\*{1,2}", r"\1", text)
    return " ".join(text.replace("\\", "").split())


def _wrapped(line: Line) -> list[list[str]]:
    """The words of each printed line."""
    em = widths(FAMILY, line.bold)
    room = WIDTH - INDENT * line.indent
    rows: list[list[str]] = [[]]
    used = 0.0
    for word in line.text.split():
        word = "".join(char for char in word if 32 < ord(char) < 384)
        if not word:
            continue
        if rows[-1] and used + em[word] > room:
            rows.append([])
            used = 0.0
        rows[-1].append(word)
        used += em[word] + em[" "]
    return rows


def _leaf(source: Source, lines: list[Set], number: int) -> Leaf:
    head = f"{source.name} {{{source.publisher}}}"
    placed: list[Word] = []
    _set(placed, head.split(), MARGIN, MARGIN + ASCENT, False)
    _set(placed, ["R", "Documentation"], MARGIN + WIDTH - 6.5, MARGIN + ASCENT, False)
    y = MARGIN + LEADING
    rule = y + 0.2
    for line, wrapped in lines:
        y += 0.45 if line.bold else 0.0
        for row in wrapped:
            y += LEADING
            _set(placed, row, MARGIN + INDENT * line.indent, y, line.bold)
    meanings = {line.term: _meaning(line) for line, _ in lines if line.term and _meaning(line)}
    title = lines[0][0].text if number == 0 and lines[0][0].bold else ""
    page = TablePage(tuple(placed), (rule,), WIDTH + 2 * MARGIN, y + DESCENT + MARGIN)
    return Leaf(Sheet(page), title, source.name, meanings, " ".join(page.words))


def _meaning(line: Line) -> str:
    """The meaning of a term up to its first stop, if it is short and is all of a line's words."""
    text = line.text.split("   ")[-1] if "   " in line.text else line.text
    text = re.split(r"(?<=[a-z)])[.;:](\s|$)", text)[0].strip().rstrip(".;:,")
    words = text.split()
    return text if 2 <= len(words) <= MEANING and text.isascii() and text.lower() != line.term.lower() else ""


def _set(placed: list[Word], words: list[str], left: float, baseline: float, bold: bool) -> None:
    em = widths(FAMILY, bold)
    for word in words:
        placed.append(Word(word, left, left + em[word], baseline, bold))
        left += em[word] + em[" "]


def ask(leaf: Leaf, dice: Dice, count: int) -> list[Asked]:
    """Up to `count` questions of a page."""
    asked = [
        Asked("name", dice.pick(("Which data set does this page describe?", "What is documented here?")), (leaf.name,))
    ]
    if leaf.title:
        wording = ("What is the title of this page?", "Which section starts on this page?", "What is this page about?")
        asked.append(Asked("heading", dice.pick(wording), (leaf.title,)))
    asked += _meanings(leaf, dice)
    for field, pattern, question in COUNTS:
        found = re.findall(pattern, leaf.text)
        if len(set(found)) == 1:
            asked.append(Asked(field, question, (found[0],)))
    return dice.sample(asked, min(count, len(asked)))


COUNTS = (
    ("observations", r"\b(\d+) (?:observations|rows|subjects|cases)\b", "How many observations are there?"),
    ("variables", r"\b(\d+) (?:variables|columns)\b", "How many variables are there?"),
    ("year", r"\(((?:1[89]|20)\d\d)\)", "Which year stands in brackets?"),
)


def _meanings(leaf: Leaf, dice: Dice) -> list[Asked]:
    if not leaf.meanings:
        return []
    term = dice.pick(list(leaf.meanings))
    asked = [Asked("meaning", dice.pick(("What does {} mean?", "What is {}?")).format(term), (leaf.meanings[term],))]
    other = dice.pick(list(leaf.meanings))
    if other != term and list(leaf.meanings.values()).count(leaf.meanings[other]) == 1:
        asked.append(Asked("term", f"Which variable is this: {leaf.meanings[other]}?", (other,)))
    return asked
