"""Tables over seeds, by hand: means, deviations, the best, what is tested against what, three forms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simfl.errors import ConfigError
from simfl.reports.formats import csv, latex, markdown
from simfl.reports.results import Result, results_of, rows
from simfl.reports.table import Line, compare

SUMMARY = {
    "rounds": 1,
    "clients": 3,
    "final": {"anls": 0.4},
    "initial": {},
    "bytes": {"download": 1000, "upload": 500},
    "charged": {},
    "seconds": {"total": 2.0, "per_round_median": 1.0},
    "weights_sha256": "",
}


@dataclass(frozen=True)
class Told(Result):
    """A result that is told its scores."""

    told: tuple[tuple[str, float], ...] = ()

    @property
    def scores(self) -> dict[str, float]:  # type: ignore[override]  # a property in place of a cached one
        return dict(self.told)

    @property
    def metric(self) -> str:
        return "anls"


def result(label: str, anls: float | None, **shown: Any) -> Told:
    told = () if anls is None else (("anls", anls), ("test.anls", anls / 2), ("exact", 0.5))
    status, error = ("failed", "it broke") if anls is None else ("completed", "")
    return Told(label, shown, Path(label), status, error, {} if anls is None else SUMMARY, told)


GRID = [
    result("a_1", 0.4, variant="a", clients=3, seed=1),
    result("a_2", 0.6, variant="a", clients=3, seed=2),
    result("b_1", 0.7, variant="b_x", clients=3, seed=1),
    result("b_2", None, variant="b_x", clients=3, seed=2),
]


def sure(line: Line, reference: Line, metric: str) -> float:
    return 0.01 if metric == "anls" else 0.2


def test_a_line_is_over_its_seeds() -> None:
    """.4 and .6: mean .5, sample deviation √(.01 + .01) = .1414."""
    found = compare(GRID)
    assert (found.settings, found.metrics) == (("variant", "clients"), ("anls", "test.anls"))
    first = found.lines[0].scores["anls"]
    assert first.mean == pytest.approx(0.5)
    assert first.deviation == pytest.approx(0.02**0.5)
    assert found.lines[1].scores["anls"].deviation is None
    assert found.best("anls") == {1}
    assert found.against == ""


def test_markdown() -> None:
    assert markdown(compare(GRID, test=sure)).splitlines() == [
        "| variant | clients | seeds | anls | test.anls | download | upload | time |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| a | 3 | 2 | 0.5000 ± 0.1414 | 0.2500 ± 0.0707 | 1.0 kB | 500 B | 2.0 s |",
        "| b_x | 3 | 1 of 2 | **0.7000**† | **0.3500** | 1.0 kB | 500 B | 2.0 s |",
        "",
        "- mean ± standard deviation over the seeds",
        "- † differs from variant a where all else is the same: paired bootstrap over the common examples, p < 0.05",
        "- b_2 failed: it broke",
    ]


def test_csv_has_plain_numbers() -> None:
    lines = csv(compare(GRID, ["anls"], test=sure)).splitlines()
    assert lines[0] == "variant,clients,seeds,anls,anls_deviation,anls_p,download_bytes,upload_bytes,seconds"
    assert lines[2] == "b_x,3,1,0.7,,0.01,1000.0,500.0,2.0"


def test_latex_is_escaped() -> None:
    text = latex(compare(GRID, test=sure))
    assert r"b\_x & 3 & 1 of 2 & \textbf{0.7000}$^\dagger$ & \textbf{0.3500} & 1.0 kB & 500 B & 2.0 s \\" in text
    assert r"\begin{tabular}{llrrrrrr}" in text


def test_the_line_that_others_are_held_against() -> None:
    found = compare(GRID, against="b_x", test=sure)
    assert found.against == "variant b_x"
    assert found.lines[0].scores["anls"].p == 0.01
    assert found.lines[1].scores["anls"].p is None
    assert compare(GRID, against="a_2", test=sure).lines[1].scores["anls"].p == 0.01
    with pytest.raises(ConfigError, match="--against: no line has 'b_y'; did you mean 'b_x'"):
        compare(GRID, against="b_y", test=sure)


def test_a_line_is_held_against_its_like() -> None:
    held: list[tuple[Any, ...]] = []
    grid = [result(f"{v}{k}", 0.5, variant=v, clients=k) for v in "ab" for k in (3, 9)]

    def test(line: Line, reference: Line, metric: str) -> float:
        held.append((*line.shown.values(), *reference.shown.values()))
        return 1.0

    compare(grid, ["anls"], test=test)
    assert held == [("b", 3, "a", 3), ("b", 9, "a", 9)]


def test_of_deviations_the_least_is_the_best() -> None:
    two = [
        Told(n, {"run": n}, Path(n), "completed", "", SUMMARY, (("anls:deviation", v),))
        for n, v in (("a", 1), ("b", 2))
    ]
    assert compare(two, ["anls:deviation"]).best("anls:deviation") == {0}


def test_a_line_without_any_run_that_ended_says_why() -> None:
    assert "| b | failed |" in markdown(compare([result("a", 0.4, run="a"), result("b", None, run="b")]))


def test_a_column_of_numbers_and_text_is_text() -> None:
    found = rows([result("a", 0.4, server=1), result("b", 0.5, server="adam")])
    assert [row["server"] for row in found] == ["1", "adam"]


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    """They are no seeds of one another."""
    folders = [tmp_path / "x" / "r", tmp_path / "y" / "r", tmp_path / "y" / "q"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "experiment.yaml").touch()
    assert [one.shown["run"] for one in results_of(folders)] == ["x/r", "y/r", "q"]
    with pytest.raises(ConfigError, match=r"q: given twice; each run or sweep stands in a table once$"):
        results_of([*folders, tmp_path / "x" / ".." / "y" / "q"])
