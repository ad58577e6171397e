"""Every code block of the walk-throughs is executed, in order, as a reader would.

A block with `file=NAME` is written to that file; other Python blocks run, and a `text` block after them is what they
print; `console` blocks are commands with what they show (`…` stands for lines left out), and `exit=N` is the code of
the last one. Numbers may differ in their digits.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simfl.cli import main

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "docs" / "python.md", *sorted((ROOT / "docs" / "walkthroughs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


class Block(NamedTuple):
    """A fenced block: its language, the words after it, its lines."""

    language: str
    words: dict[str, str]
    text: str


def blocks(document: Path) -> list[Block]:
    found = BLOCK.findall(document.read_text(encoding="utf-8"))
    return [Block(name, dict(word.split("=") for word in words.split()), text) for name, words, text in found]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to work in, a cache beside it, and no trace of what was imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    path, before = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


SLOW = {"hugging_face_lora": pytest.mark.slow}  # its libraries take seconds to import
EXECUTED = [pytest.param(path, id=path.stem, marks=SLOW.get(path.stem, ())) for path in DOCUMENTS]


@pytest.mark.parametrize("document", EXECUTED)
def test_a_document_does_what_it_says(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(document):
        if "file" in block.words:
            Path(block.words["file"]).parent.mkdir(exist_ok=True)
            Path(block.words["file"]).write_text(block.text)
        elif block.language == "python":
            capsys.readouterr()
            exec(compile(block.text, f"{document.name}", "exec"), names)
            printed = capsys.readouterr().out
        elif block.language == "text":
            compare(block.text.splitlines(), printed)
        elif block.language == "console":
            console(block, capsys)


def console(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Run each command and hold what it shows to the lines below it."""
    commands = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    for number, command in enumerate(commands):
        line, *shown = command.splitlines()
        program, *arguments = shlex.split(line)
        assert program == "simfl"
        capsys.readouterr()
        code = main(arguments)
        said = capsys.readouterr()
        compare(shown, said.err + said.out)
        last = number == len(commands) - 1
        assert code == (int(block.words.get("exit", 0)) if last else 0), said.err


def compare(shown: list[str], said: str) -> None:
    """Every line shown is said, in this order, whatever the digits; without `…` between them, one after the other."""
    lines = [digitless(line) for line in said.splitlines()]
    place, anywhere = 0, False
    for line in shown:
        if line == "…":
            anywhere = True
            continue
        wanted = digitless(line)
        assert wanted in lines[place:], f"{line!r} is not in:\n{said}"
        found = lines.index(wanted, place)
        assert anywhere or found == place, f"{line!r} comes after {lines[place]!r}"
        place, anywhere = found + 1, False


def digitless(line: str) -> str:
    """A line without its digits and hashes, with one unit for times and sizes, and without spaces that align."""
    line = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "#", line)
    line = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", line)
    line = re.sub(r"# (min # s|s|ms)\b|# (B|kB|MB|GiB)\b", "#", line)
    return re.sub(r"\s+", " ", line).strip()


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "docs" / "design.md"], ids=lambda path: path.stem)
def test_links_lead_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []
