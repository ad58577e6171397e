"""Tables of READMEs whose runs are not kept are tested from their printed means, and are up to date."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = runpy.run_path(str(ROOT / "docs" / "make_daggers.py"))
OLD = """| variant | seeds | anls | anls:worst | upload | time |
| --- | ---: | ---: | ---: | ---: | ---: |
| a | 3 | 0.5000 ± 0.0100 | 0.4000 ± 0.0100 | 1 B | 1.0 s |
| b | 3 | 0.5300 ± 0.0100† | 0.1000 ± 0.0100 | 1 B | 1.0 s |
| c | 3 | **0.9000 ± 0.0100** | 0.4000 ± 0.0100 | 1 B | 1.0 s |

- mean ± standard deviation over the seeds
- † differs from variant a: paired bootstrap over the common examples, p < 0.05""".replace("upload", "download")


def test_printed_means_are_tested_by_welchs_rule() -> None:
    """b: .03 / √(2·.0001/3) = 3.7 errors, p = .07 alone. c: 49 errors, p = .0004. Spreads are not tested."""
    lines = MAKE["again"](OLD).splitlines()
    assert [("†" in line) for line in lines[2:5]] == [False, False, True]
    assert "Holm's correction for 2 comparisons" in lines[-2]
    assert MAKE["welch"](0.53, 0.01, 0.5, 0.01, 3) == pytest.approx(0.067, abs=0.002)


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*/README.md")), ids=lambda path: path.parent.name)
def test_the_marks_of_a_readme_follow_from_its_numbers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "paired bootstrap" not in text
    for match in MAKE["TABLE"].finditer(text):
        assert MAKE["again"](match[2]) == match[2].rstrip("\n")
