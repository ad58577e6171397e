"""docs/models.md is what `python -m simfl.models.table` prints."""

from __future__ import annotations

from pathlib import Path

from simfl.models import MODELS
from simfl.models.table import render, rows


def test_the_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "models.md"
    assert page.read_text() == render(), "run: python -m simfl.models.table > docs/models.md"


def test_every_published_backbone_has_a_line() -> None:
    assert {row.name.partition(",")[0] for row in rows()} >= set(MODELS) - {"mlp", "own"}
