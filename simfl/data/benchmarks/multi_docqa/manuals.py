"""Pages of real manuals, typeset from their text, and questions about a page; it contains all answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from simfl.data.benchmarks.fonts import widths
from simfl.data.benchmarks.multi_docqa.archive import Source
from simfl.data.benchmarks.multi_docqa.page import MarkedPage, PageQuestion
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.io.table_page import ASCENT, DESCENT, FAMILY, LEADING, MARGIN, PlacedWord, TablePage

WIDTH, LINES = 34.0, 26  # of a page: ems, and lines of text
INDENT = 2.0  # ems
MIN_LINES = 6  # shorter pages are dropped
MAX_MEANING = 9  # words of a meaning that a question asks for
ASCII = {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "\u00a0": " "}


@dataclass(frozen=True)
class ManualLine:
    """A line of a manual before typesetting."""

    text: str
    bold: bool = False
    indent: int = 0
    term: str = ""  # the term that the line explains, or empty
    wrap: bool = True  # code keeps its line breaks


WrappedLine = tuple[ManualLine, list[list[str]]]  # with the words of each printed line


@dataclass(frozen=True)
class ManualPage:
    """One page of a manual."""

    page: MarkedPage
    title: str  # empty if it is on another page
    name: str  # of the data set, at the top of the page
    meanings: dict[str, str]  # of terms, if both are on this page
    text: str


def typeset(source: Source) -> list[ManualPage]:
    """Return the pages of a manual."""
    pages: list[list[WrappedLine]] = [[]]
    rows = 0
    for line in _parse(source):
        wrapped = _wrap(line)
        if rows and rows + len(wrapped) > LINES:
            pages.append([])
            rows = 0
        pages[-1].append((line, wrapped))
        rows += len(wrapped)
    return [_set_page(source, page, number) for number, page in enumerate(pages) if len(page) >= MIN_LINES]


def _parse(source: Source) -> Iterator[ManualLine]:
    """Yield the lines of a manual: its title, headings, paragraphs, code, and terms with their meanings."""
    raw = _to_ascii(source.manual).split("\n")
    blocks = [block.split("\n") for block in re.split(r"\n\s*\n", "\n".join(raw))]
    code = False
    for block in blocks:
        block = [line for line in block if line.strip()]
        if not block or (block[0].startswith("+--") and "R Documentation" in " ".join(block)):
            continue
        if len(block) == 2 and set(block[1]) in ({"-"}, {"~"}):
            code = False
            yield ManualLine(_strip_markup(block[0]), bold=True)
        elif block[0].strip() == "::":
            code = True
        elif code and block[0].startswith("    "):
            yield from (ManualLine(line.strip(), indent=1, wrap=False) for line in block)
        elif block[0].startswith("+--"):
            yield from _table_rows(block)
        elif len(block) > 1 and not block[0].startswith(" ") and block[1].startswith("    "):
            term = _strip_markup(block[0])
            meaning = _strip_markup(" ".join(line.strip() for line in block[1:]))
            yield ManualLine(term)
            yield ManualLine(meaning, indent=1, term=term)
        else:
            yield ManualLine(_strip_markup(" ".join(line.strip() for line in block)))


def _table_rows(block: list[str]) -> Iterator[ManualLine]:
    """Yield the rows of a table; of [, 1] | name | meaning the last two are a term and its meaning."""
    for line in block:
        cells = [_strip_markup(cell.strip()) for cell in line.strip("|").split("|")]
        cells = [cell for cell in cells if cell]
        if line.startswith("|") and cells:
            yield ManualLine("   ".join(cells), indent=1, term=cells[-2] if len(cells) > 1 else "", wrap=True)


def _to_ascii(text: str) -> str:
    for mark, plain in ASCII.items():
        text = text.replace(mark, plain)
    return text


def _strip_markup(text: str) -> str:
    text = re.sub(r"`([^`<]*?)\s*<[^>`]*>`__?", r"\1", text)
    text = re.sub(r"``(.+?)``", r"\1", text)
    text = re.sub(r"(?<![\w*])\*{1,2}([^*]+)\*{1,2}", r"\1", text)
    return " ".join(text.replace("\\", "").split())


def _wrap(line: ManualLine) -> list[list[str]]:
    """Return the words of each printed line."""
    em = widths(FAMILY, line.bold)
    available = WIDTH - INDENT * line.indent
    rows: list[list[str]] = [[]]
    used = 0.0
    for word in line.text.split():
        word = "".join(char for char in word if 32 < ord(char) < 384)
        if not word:
            continue
        if rows[-1] and used + em[word] > available:
            rows.append([])
            used = 0.0
        rows[-1].append(word)
        used += em[word] + em[" "]
    return rows


def _set_page(source: Source, lines: list[WrappedLine], number: int) -> ManualPage:
    head = f"{source.name} {{{source.publisher}}}"
    placed: list[PlacedWord] = []
    _add_words(placed, head.split(), MARGIN, MARGIN + ASCENT, False)
    _add_words(placed, ["R", "Documentation"], MARGIN + WIDTH - 6.5, MARGIN + ASCENT, False)
    y = MARGIN + LEADING
    rule = y + 0.2
    for line, wrapped in lines:
        y += 0.45 if line.bold else 0.0
        for row in wrapped:
            y += LEADING
            _add_words(placed, row, MARGIN + INDENT * line.indent, y, line.bold)
    meanings = {line.term: _meaning(line) for line, _ in lines if line.term and _meaning(line)}
    title = lines[0][0].text if number == 0 and lines[0][0].bold else ""
    page = TablePage(tuple(placed), (rule,), WIDTH + 2 * MARGIN, y + DESCENT + MARGIN)
    return ManualPage(MarkedPage(page), title, source.name, meanings, " ".join(page.words))


def _meaning(line: ManualLine) -> str:
    """Return the meaning of a term up to its first full stop, or an empty text if it is too long or too short."""
    text = line.text.split("   ")[-1] if "   " in line.text else line.text
    text = re.split(r"(?<=[a-z)])[.;:](\s|$)", text)[0].strip().rstrip(".;:,")
    words = text.split()
    return text if 2 <= len(words) <= MAX_MEANING and text.isascii() and text.lower() != line.term.lower() else ""


def _add_words(placed: list[PlacedWord], words: list[str], left: float, baseline: float, bold: bool) -> None:
    em = widths(FAMILY, bold)
    for word in words:
        placed.append(PlacedWord(word, left, left + em[word], baseline, bold))
        left += em[word] + em[" "]


def ask(page: ManualPage, random: RandomStream, count: int) -> list[PageQuestion]:
    """Sample up to `count` questions about a page."""
    questions = [
        PageQuestion(
            "name", random.choice(("Which data set does this page describe?", "What is documented here?")), (page.name,)
        )
    ]
    if page.title:
        wording = ("What is the title of this page?", "Which section starts on this page?", "What is this page about?")
        questions.append(PageQuestion("heading", random.choice(wording), (page.title,)))
    questions += _meanings(page, random)
    for field, pattern, question in COUNTS:
        found = re.findall(pattern, page.text)
        if len(set(found)) == 1:
            questions.append(PageQuestion(field, question, (found[0],)))
    return random.sample(questions, min(count, len(questions)))


COUNTS = (
    ("observations", r"\b(\d+) (?:observations|rows|subjects|cases)\b", "How many observations are there?"),
    ("variables", r"\b(\d+) (?:variables|columns)\b", "How many variables are there?"),
    ("year", r"\(((?:1[89]|20)\d\d)\)", "Which year stands in brackets?"),
)


def _meanings(page: ManualPage, random: RandomStream) -> list[PageQuestion]:
    if not page.meanings:
        return []
    term = random.choice(list(page.meanings))
    questions = [
        PageQuestion(
            "meaning", random.choice(("What does {} mean?", "What is {}?")).format(term), (page.meanings[term],)
        )
    ]
    other = random.choice(list(page.meanings))
    if other != term and list(page.meanings.values()).count(page.meanings[other]) == 1:
        questions.append(PageQuestion("term", f"Which variable is this: {page.meanings[other]}?", (other,)))
    return questions
