"""Plain English in the package: the rules of CONTRIBUTING.md that a program can check."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
OPENINGS = ("What", "Of", "Whether", "How", "Where", "Who", "After", "With")
HOMELY = re.compile(
    r"\b(beside|anew|nobody|everybody|is said|are said|is told|are told|goes on|go on|lies in|lie in|by and by"
    r"|at hand|as it is|by itself)\b"
)
FOLDERS = ("simfl", "benchmarks", "docs", "experiments")
INSTALLED = ROOT / "benchmarks" / "peers" / "envs"  # environments of other simulators
DATA = ("simfl/data/benchmarks",)  # holds sentences of drawn documents


def sources() -> list[Path]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if not path.is_relative_to(INSTALLED)]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if documented and (text := ast.get_docstring(node)):  # type: ignore[arg-type]  # mypy does not follow `and`
            yield getattr(node, "lineno", 1), text


def comments(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_docstrings_open_with_a_verb_or_a_noun_phrase() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {text.splitlines()[0]}"
        for path in sources()
        for line, text in docstrings(path)
        if text.split(maxsplit=1)[0].strip(",.:;") in OPENINGS
    ]
    assert found == []


def test_docstrings_and_comments_use_no_homely_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {match.group()}"
        for path in sources()
        if not str(path.relative_to(ROOT)).startswith(DATA)
        if HOMELY.search(path.read_text())  # to parse all files takes seconds
        for line, text in (*docstrings(path), *comments(path))
        for match in HOMELY.finditer(text)
    ]
    assert found == []


def test_headings_of_the_documentation_name_their_topic() -> None:
    """A heading is a noun phrase: it asks no question and tells no story."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    found = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in pages
        for line in page.read_text().splitlines()
        if re.match(rf"#+ ({'|'.join(OPENINGS)})\b", line)
    ]
    assert found == []
