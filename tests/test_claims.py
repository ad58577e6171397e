"""Verdicts of the papers' claims follow from stored rows, and the pages with them are up to date."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

import claims
import make_claims
from claims import Better, Claim, Close

from simfl.config import read_yaml

CLAIM = Claim("003-x", "a is above b", "2 against 1 (Table 1)", Better("planted", "a", "b", "accuracy"))


def test_the_pages_of_claims_are_up_to_date() -> None:
    stale = [path.name for path, text in make_claims.pages().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `python docs/make_claims.py`"


def test_there_are_claims_of_five_papers() -> None:
    assert len({claim.name for claim in claims.CLAIMS}) == len(claims.CLAIMS) >= 30
    assert {claim.paper for claim in claims.CLAIMS} == set(claims.PAPERS.values())
    assert all(make_claims.command(claim) for claim in claims.CLAIMS)


def test_a_claim_that_does_not_hold_has_a_reason() -> None:
    failed = [one for one in make_claims.judged() if one.verdict == make_claims.FAILS]
    assert failed
    assert not [one.claim.name for one in failed if not one.claim.reason]


def store(folder: Path, effect: float, seeds: int = 5, examples: int = 60) -> None:
    """Write runs of two variants whose examples differ by `effect` on average."""
    draw = np.random.default_rng(3)
    lines = []
    for seed in range(seeds):
        base = draw.random(examples)
        for variant, added in (("a", effect), ("b", 0.0)):
            scores = base + added + 0.05 * draw.standard_normal(examples)
            pairs = [[None, row, score] for row, score in enumerate(scores.tolist())]
            row = {"sweep": "planted", "variant": variant, "seed": seed, "data_sha256": "d"}
            lines.append(row | {"scores": {"accuracy": scores.mean()}, "examples": {"accuracy": pairs}})
    (folder / "fedvqa").mkdir()
    (folder / "fedvqa/results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of experiments."""
    monkeypatch.setattr(make_claims, "EXPERIMENTS", tmp_path)
    make_claims.rows.cache_clear()
    make_claims.tables.cache_clear()
    yield tmp_path
    make_claims.rows.cache_clear()
    make_claims.tables.cache_clear()


@pytest.mark.parametrize(
    ("effect", "verdict"), [(0.1, make_claims.HOLDS), (-0.1, make_claims.FAILS), (0.0, make_claims.UNKNOWN)]
)
def test_the_verdict_follows_from_the_scores_of_examples(planted: Path, effect: float, verdict: str) -> None:
    store(planted, effect)
    (one,) = make_claims.judged([CLAIM])
    assert one.found is not None
    assert (one.verdict, one.found.test, one.found.seeds) == (verdict, "hierarchical bootstrap", 5)


def test_other_claims_with_rows_make_a_verdict_harder(planted: Path) -> None:
    """Holm's correction: a difference that is significant alone is not among many."""
    store(planted, 0.03)
    (alone,) = make_claims.judged([CLAIM])
    assert alone.found is not None
    assert alone.found.p is not None
    assert alone.found.p < 0.05
    assert alone.verdict == make_claims.HOLDS
    assert {one.verdict for one in make_claims.judged([CLAIM] * 20)} == {make_claims.UNKNOWN}


TABLE = """# A
<!-- simfl: planted -->
| variant | seeds | accuracy | download | upload | time |
| --- | ---: | ---: | ---: | ---: | ---: |
| a | 5 | **0.5000 ± 0.0100**† | 1 B | 1 B | 1 s |
| b | 5 | 0.4000 ± 0.0100 | 1 B | 1 B | 1 s |
<!-- simfl: end -->
"""


def test_a_printed_table_is_tested_over_its_seeds(planted: Path) -> None:
    """t = 0.1 / (0.01005 · √(2/5)) = 15.7 with 4 degrees of freedom: p = 0.0001."""
    (planted / "fedvqa").mkdir()
    (planted / "fedvqa/README.md").write_text(TABLE)
    (one,) = make_claims.judged([CLAIM])
    assert one.found is not None
    assert (one.verdict, one.found.test, one.found.shown) == ("holds", "Welch", "0.500 ± 0.010 against 0.400 ± 0.010")
    assert one.found.p == pytest.approx(9.6e-5, rel=0.02)


@pytest.mark.parametrize(("margin", "verdict"), [(0.2, "holds"), (0.05, "does not hold"), (0.1, "cannot tell")])
def test_closeness_is_judged_by_an_interval(planted: Path, margin: float, verdict: str) -> None:
    """The interval of the difference is 0.1 ± 2.776 · 0.00636 = 0.082 to 0.118."""
    (planted / "fedvqa").mkdir()
    (planted / "fedvqa/README.md").write_text(TABLE)
    (one,) = make_claims.judged([Claim("003-y", "", "", Close("planted", "a", "b", "accuracy", margin))])
    assert one.verdict == verdict


@pytest.mark.parametrize(
    ("published", "computed", "same"),
    [
        ("44.65 GB", "44.656 GiB", True),
        ("0.38 GB", "382.94 MB", True),
        ("1.145", "1.1477", False),
        (".89 M", "0.89 M", True),
        ("80.52 MB", "80.16 MiB", False),
        ("13.68 MB", "13,676,544 B", True),
        ("1 / 4 / 5", "1 / 5 / 4", False),
    ],
)
def test_printed_digits(published: str, computed: str, same: bool) -> None:
    assert make_claims.agrees(published, computed) == same


def test_a_claim_without_rows_is_not_run(planted: Path) -> None:
    (planted / "fedvqa").mkdir()
    (planted / "fedvqa/README.md").write_text("# A\n")
    (one,) = make_claims.judged([CLAIM])
    assert (one.verdict, one.found) == (make_claims.NOT_RUN, None)


def test_methods_are_tuned_on_validation_with_equal_budgets() -> None:
    files = sorted((Path(__file__).parent.parent / "experiments").glob("*/tune_*.yaml"))
    found = {path: read_yaml(path) for path in files}
    assert {path.parent.name for path in files} == set(claims.PAPERS.values())
    assert len({(one["search"]["trials"], str(one["search"]["sampler"])) for one in found.values()}) == 1
    assert all(one["set"]["evaluate.splits"] == ["valid"] and "metric" not in one["search"] for one in found.values())
