"""Comparison tables over seeds: means, deviations, best scores, references, three formats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simfl.errors import ConfigError
from simfl.reports.formats import csv, latex, markdown
from simfl.reports.results import RunResult, result_rows, results_of
from simfl.reports.statistical_tests import Difference
from simfl.reports.table import ComparisonRow, compare
from simfl.runs.folder import write_json

SUMMARY = {
    "rounds": 1,
    "clients": 3,
    "final": {"anls": 0.4},
    "initial": {},
    "bytes": {"download": 1000, "upload": 500},
    "charged": {},
    "seconds": {"total": 2.0, "per_round_median": 1.0},
    "weights_sha256": "",
    "state_sha256": "",
}


@dataclass(frozen=True)
class FakeResult(RunResult):
    """A result with given scores."""

    given: tuple[tuple[str, float], ...] = ()

    @property
    def scores(self) -> dict[str, float]:  # a property instead of a cached one
        return dict(self.given)

    @property
    def hashes(self) -> dict[str, str]:
        return {}

    @property
    def metric(self) -> str:
        return "anls"


def result(label: str, anls: float | None, **varied: Any) -> FakeResult:
    given = () if anls is None else (("anls", anls), ("test.anls", anls / 2), ("exact", 0.5))
    status, error = ("failed", "it broke") if anls is None else ("completed", "")
    return FakeResult(label, varied, Path(label), status, error, {} if anls is None else SUMMARY, given=given)


GRID = [
    result("a_1", 0.4, variant="a", clients=3, seed=1),
    result("a_2", 0.6, variant="a", clients=3, seed=2),
    result("b_1", 0.7, variant="b_x", clients=3, seed=1),
    result("b_2", None, variant="b_x", clients=3, seed=2),
]


def fake_test(row: ComparisonRow, reference: ComparisonRow, metric: str) -> Difference:
    return Difference(0.1, 0.01, 0.01 if metric == "anls" else 0.2, 3, 100)


def test_a_row_has_means_and_deviations_over_its_seeds() -> None:
    """.4 and .6: mean .5, sample deviation √(.01 + .01) = .1414."""
    found = compare(GRID)
    assert (found.settings, found.metrics) == (("variant", "clients"), ("anls", "test.anls"))
    first = found.rows[0].scores["anls"]
    assert first.mean == pytest.approx(0.5)
    assert first.deviation == pytest.approx(0.02**0.5)
    assert found.rows[1].scores["anls"].deviation is None
    assert found.best("anls") == {1}
    assert found.reference == ""


def test_a_comparison_as_markdown() -> None:
    assert markdown(compare(GRID, test=fake_test)).splitlines() == [
        "| variant | clients | seeds | anls | test.anls | download | upload | time |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| a | 3 | 2 | 0.5000 ± 0.1414 | 0.2500 ± 0.0707 | 1.0 kB | 500 B | 2.0 s |",
        "| b_x | 3 | 1 of 2 | **0.7000**† | **0.3500** | 1.0 kB | 500 B | 2.0 s |",
        "",
        "- mean ± standard deviation over the seeds",
        "- † differs from variant a with otherwise equal settings: hierarchical bootstrap over seeds and examples,"
        " paired by seed, p < 0.05 after Holm's correction for 2 comparisons",
        "- with 3 seeds and 2 comparisons, the first † needs a difference of 6.2 standard errors; without †, this table"
        " cannot tell a difference from the chance of seeds and examples",
        "- b_2 failed: it broke",
    ]


def test_csv_has_plain_numbers() -> None:
    lines = csv(compare(GRID, ["anls"], test=fake_test)).splitlines()
    assert lines[0] == "variant,clients,seeds,anls,anls_deviation,anls_p,download_bytes,upload_bytes,seconds"
    assert lines[2] == "b_x,3,1,0.7,,0.01,1000.0,500.0,2.0"


def test_latex_escapes_special_characters() -> None:
    text = latex(compare(GRID, test=fake_test))
    assert r"b\_x & 3 & 1 of 2 & \textbf{0.7000}$^\dagger$ & \textbf{0.3500} & 1.0 kB & 500 B & 2.0 s \\" in text
    assert r"\begin{tabular}{llrrrrrr}" in text


def test_the_reference_is_chosen_by_value_or_by_run() -> None:
    found = compare(GRID, against="b_x", test=fake_test)
    assert found.reference == "variant b_x"
    assert found.rows[0].scores["anls"].p == 0.02
    assert found.rows[1].scores["anls"].p is None
    assert compare(GRID, against="a_2", test=fake_test).rows[1].scores["anls"].p == 0.02
    with pytest.raises(ConfigError, match="--against: no row has 'b_y'; did you mean 'b_x'"):
        compare(GRID, against="b_y", test=fake_test)


def test_a_row_is_tested_against_the_row_with_otherwise_equal_settings() -> None:
    tested: list[tuple[Any, ...]] = []
    grid = [result(f"{v}{k}", 0.5, variant=v, clients=k) for v in "ab" for k in (3, 9)]

    def test(row: ComparisonRow, reference: ComparisonRow, metric: str) -> Difference:
        tested.append((*row.varied.values(), *reference.varied.values()))
        return Difference(0.0, 0.1, 1.0, 3, 100)

    compare(grid, ["anls"], test=test)
    assert tested == [("b", 3, "a", 3), ("b", 9, "a", 9)]


def test_p_is_corrected_for_all_comparisons_of_a_table() -> None:
    """Raw p of .01, .02, .02 in a table of three tests: .03, .04, .04 by Holm's rule, where alone .02 would suffice."""
    grid = [result(f"{v}{s}", 0.5, variant=v, seed=s) for v in "abcd" for s in (1, 2)]
    raw = {"b": 0.01, "c": 0.02, "d": 0.02}

    def test(row: ComparisonRow, reference: ComparisonRow, metric: str) -> Difference:
        return Difference(0.0, 0.1, raw[str(row.varied["variant"])], 2, 100)

    found = compare(grid, ["anls"], test=test)
    assert [row.scores["anls"].p for row in found.rows] == [None, *map(pytest.approx, (0.03, 0.04, 0.04))]
    assert len(found.tests) == 3


def test_a_table_of_single_seeds_says_that_it_tests_nothing() -> None:
    grid = [result(v, 0.5, variant=v, seed=1) for v in "ab"]
    lines = markdown(compare(grid, ["anls"], test=lambda *_: None)).splitlines()
    assert lines[-1] == "- no row is tested against variant a: a test needs two seeds with common examples"


def test_the_smallest_deviation_is_the_best() -> None:
    two = [
        FakeResult(n, {"run": n}, Path(n), "completed", "", SUMMARY, given=(("anls:deviation", v),))
        for n, v in (("a", 1), ("b", 2))
    ]
    assert compare(two, ["anls:deviation"]).best("anls:deviation") == {0}


def test_a_row_without_finished_runs_shows_their_status() -> None:
    assert "| b | failed |" in markdown(compare([result("a", 0.4, run="a"), result("b", None, run="b")]))


def test_a_column_of_numbers_and_texts_becomes_texts() -> None:
    found = result_rows([result("a", 0.4, server=1), result("b", 0.5, server="adam")])
    assert [row["server"] for row in found] == ["1", "adam"]


def test_runs_with_equal_names_are_distinguished_by_their_folders(tmp_path: Path) -> None:
    folders = [tmp_path / "x" / "r", tmp_path / "y" / "r", tmp_path / "y" / "q"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "experiment.yaml").touch()
        write_json(folder / "manifest.json", {})
    assert [one.varied["run"] for one in results_of(folders)] == ["x/r", "y/r", "q"]
    with pytest.raises(ConfigError, match=r"q: given twice; give each run or sweep once$"):
        results_of([*folders, tmp_path / "x" / ".." / "y" / "q"])
