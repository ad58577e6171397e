"""Code blocks of the walk-throughs, executed in their order.

A block with `file=NAME` is written to that file. Other Python blocks run, and a `text` block after them has their
output. `console` blocks are commands with their output (`…` stands for omitted lines), and `exit=N` is the exit code of
the last command. Numbers may differ in their digits.
"""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simfl.cli import main

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*/*.md"))
NEEDS_TRANSFORMERS = (  # slow: their libraries take seconds to import
    "causal_lm", "docvqa_json", "first_hour", "hugging_face_lora", "hugging_face_model", "vlm",
)  # fmt: skip
PROGRAMS = (
    "convert", "debugging", "differential_privacy", "own_algorithm", "own_data", "own_module", "own_objective",
    "personalisation",
    "python", "reproducing", *NEEDS_TRANSFORMERS,
)  # fmt: skip
DOCUMENTS = [page for page in PAGES if page.stem in PROGRAMS and page.parent.name != "reference"]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


class Block(NamedTuple):
    """A fenced block: its language, the settings after it, its lines."""

    language: str
    settings: dict[str, str]
    text: str


def blocks(document: Path) -> list[Block]:
    found = BLOCK.findall(document.read_text(encoding="utf-8"))
    return [
        Block(language, dict(setting.split("=") for setting in settings.split()), text)
        for language, settings, text in found
    ]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder with a cache of its own, and remove the modules that were imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    path, before = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


SLOW = dict.fromkeys((*NEEDS_TRANSFORMERS, "differential_privacy", "reproducing"), pytest.mark.slow)
EXECUTED = [pytest.param(path, id=path.stem, marks=SLOW.get(path.stem, ())) for path in DOCUMENTS]


@pytest.mark.parametrize("document", EXECUTED)
def test_code_blocks_run_and_print_what_the_page_shows(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(document):
        if "file" in block.settings:
            Path(block.settings["file"]).parent.mkdir(exist_ok=True)
            Path(block.settings["file"]).write_text(block.text)
        elif block.language == "python":
            capsys.readouterr()
            exec(compile(block.text, f"{document.name}", "exec"), names)
            printed = capsys.readouterr().out
        elif block.language == "text":
            compare(block.text.splitlines(), printed)
        elif block.language == "console":
            console(block, capsys)


def console(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Run each command and compare its output with the lines below it."""
    commands = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    for number, command in enumerate(commands):
        line, *expected = command.splitlines()
        program, *arguments = shlex.split(line)
        if program == "python":
            runpy.run_path(arguments[0])
            continue
        assert program == "simfl"
        capsys.readouterr()
        code = main(arguments)
        output = capsys.readouterr()
        compare(expected, output.err + output.out)
        last = number == len(commands) - 1
        assert code == (int(block.settings.get("exit", 0)) if last else 0), output.err


def compare(expected: list[str], output: str) -> None:
    """Fail unless the output has the expected lines in their order, apart from digits; `…` allows lines in between."""
    lines = [digitless(line) for line in output.splitlines()]
    start, gap = 0, False
    for line in expected:
        if line == "…":
            gap = True
            continue
        wanted = digitless(line)
        assert wanted in lines[start:], f"{line!r} is not in:\n{output}"
        found = lines.index(wanted, start)
        assert gap or found == start, f"{line!r} comes after {lines[start]!r}"
        start, gap = found + 1, False


def digitless(line: str) -> str:
    """Replace digits, hashes and the units of times and sizes in a line, and collapse spaces."""
    line = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "#", line)
    line = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", line)
    line = re.sub(r"# (min # s|s|ms)\b|# (B|kB|MB|GB|TB)\b", "#", line)
    return re.sub(r"\s+", " ", line).strip()


def test_tests_that_the_documentation_names_exist() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    existing = {path.name for path in files}
    existing |= {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    for page in PAGES:
        named = re.findall(r"`(test_\w+\.py|test_\w+_\w+)`", page.read_text(encoding="utf-8"))
        assert [name for name in named if name not in existing] == [], page.name


@pytest.mark.parametrize(
    "document", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *PAGES], ids=lambda path: path.stem
)
def test_links_point_to_existing_files(document: Path) -> None:
    links = LINK.findall(BLOCK.sub("", document.read_text(encoding="utf-8")))
    assert [link for link in links if not (document.parent / link).exists()] == []
