"""The contract of models of transformers: tiny random models of many architectures, in experiments from files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hf_zoo import ZOO, measure

PAGE = Path(__file__).parents[2] / "docs/reference/hugging_face.md"
FAST = ("Llama",)


def documented() -> dict[str, dict[str, str]]:
    """Return the cells of the table of the documentation, by architecture and column."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    header = next(line for line in lines if line[0] == "architecture")
    return {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines if line[0] in ZOO}


def test_every_architecture_is_in_the_table_of_the_documentation() -> None:
    assert list(documented()) == list(ZOO)


@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in ZOO])
def test_an_architecture_does_what_the_documentation_says(name: str, tmp_path: Path) -> None:
    assert measure(ZOO[name], tmp_path) == documented()[name]
