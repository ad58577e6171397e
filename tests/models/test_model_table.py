"""docs/reference/models.md is the output of `python -m simfl.models.table`."""

from __future__ import annotations

from pathlib import Path

import pytest

from simfl.models import MODELS
from simfl.models.table import PAGE, main, rows


@pytest.mark.slow
def test_the_page_of_models_is_current() -> None:
    assert main(["--check"]) == 0, "run: python -m simfl.models.table > docs/reference/models.md"


@pytest.mark.slow
def test_an_outdated_page_of_models_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "models.md"
    assert main(["--check", str(page)]) == 1
    page.write_text(PAGE.read_text().replace("250,333,440", "1"))
    assert main(["--check", str(page)]) == 1
    assert "is out of date; run: python -m simfl.models.table" in capsys.readouterr().err


def test_every_registered_backbone_has_a_line() -> None:
    assert {row.name.partition(",")[0] for row in rows()} >= set(MODELS) - {"hf", "mlp", "own"}
