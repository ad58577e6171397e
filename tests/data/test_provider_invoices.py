"""The bundled benchmark of invoices: reproducible, free of leaks, and answerable from the page alone."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from simfl.data.base import DOCUMENTS, QUESTIONS, Dataset, Split
from simfl.data.benchmarks import fonts
from simfl.data.benchmarks.fonts import FontFamily
from simfl.data.benchmarks.provider_invoices import ProviderInvoices, Recipe, draw_documents
from simfl.data.benchmarks.provider_invoices.build import plan_documents, zipf
from simfl.data.benchmarks.provider_invoices.documents import benchmark_providers
from simfl.data.benchmarks.provider_invoices.invoice import InvoiceLine, make_invoice, tax_of
from simfl.data.benchmarks.provider_invoices.language import DATE_FORMATS
from simfl.data.benchmarks.provider_invoices.provider import Money
from simfl.data.benchmarks.provider_invoices.vocabulary import LANGUAGES
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.errors import ConfigError, DataError

SMALL = ProviderInvoices(
    providers=20, unseen=5, train=160, valid=40, test=40, unseen_documents=20, clients=10, image_width=96
)
GOLDEN = "f447d3b84867f6353b0b86adb38ce80734611fa900db0f0ce98802e3191b0952"


@pytest.fixture(scope="module")
def small() -> Dataset:
    return SMALL.build(processes=1)


def questions_of(split: Split, client: int = 0) -> list[tuple[dict, list[str]]]:
    """Return the questions about pages read by a client's scanner, with the page's words; scanner 0 makes no errors."""
    words = split.documents["words"].to_pylist()
    return [(row, words[row["document"]]) for row in split.examples.to_pylist() if row["client"] == client]


def occurs(answer: str, words: list[str]) -> bool:
    """Return whether the words of the answer occur consecutively in `words`."""
    parts = answer.split(" ")
    return any(words[i : i + len(parts)] == parts for i in range(len(words)))


def test_provider_invoices_content_has_the_golden_hash(small: Dataset) -> None:
    assert small.sha256 == GOLDEN, "the documents changed: increase VERSION, then update this hash"


def test_invoices_do_not_depend_on_the_number_of_processes(small: Dataset) -> None:
    other = SMALL.build(processes=2)
    for name, split in small.splits.items():
        assert split.examples.equals(other.splits[name].examples)
        assert split.documents.equals(other.splits[name].documents)  # pictures included: both builds run on one machine


def test_invoices_are_loaded_from_the_cache_without_rebuilding(small: Dataset, tmp_path: Path) -> None:
    first = SMALL.load(tmp_path)
    made = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*.arrow"))}
    second = SMALL.load(tmp_path)
    assert first.sha256 == second.sha256 == small.sha256
    assert second.splits["unseen"].documents.equals(small.splits["unseen"].documents)
    assert len(made) == 8
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_a_damaged_cache_is_rejected_in_one_line(small: Dataset, tmp_path: Path) -> None:
    SMALL.load(tmp_path)
    table = next(tmp_path.rglob("train.documents.arrow"))
    table.write_bytes(table.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"^[^\n]*damaged[^\n]*$"):
        SMALL.load(tmp_path)


def test_invoice_splits_have_the_requested_columns_and_sizes(small: Dataset) -> None:
    assert {name: split.documents.num_rows for name, split in small.splits.items()} == {
        "train": 160,
        "valid": 40,
        "test": 40,
        "unseen": 20,
    }
    for split in small.splits.values():
        assert split.documents.schema.equals(DOCUMENTS)
        assert split.examples.select(QUESTIONS.names).schema.equals(QUESTIONS)
        assert np.array_equal(np.unique(split.examples["document"].to_numpy()), np.arange(split.documents.num_rows))
        assert split.examples.num_rows == 6 * split.documents.num_rows


def test_no_invoice_is_in_two_splits_and_unseen_providers_are_in_no_other_split(small: Dataset) -> None:
    ids = [id for split in small.splits.values() for id in split.documents["id"].to_pylist()]
    assert len(ids) == len(set(ids)) == 260
    provider = {name: set(split.documents["provider"].to_pylist()) for name, split in small.splits.items()}
    assert len(provider["train"]) == 20
    assert provider["valid"] | provider["test"] <= provider["train"]
    assert len(provider["unseen"]) == 5
    assert not provider["unseen"] & provider["train"]


def test_no_two_providers_share_a_company_name() -> None:
    seen, unseen = benchmark_providers(seed=1, count=100, unseen=20, groups=10)
    assert len({p.company for p in seen + unseen}) == 120


def test_each_provider_belongs_to_one_official_client(small: Dataset) -> None:
    train = small.splits["train"]
    provider = train.documents["provider"].to_pylist()
    pairs = {(provider[row["document"]], row["client"]) for row in train.examples.to_pylist()}
    assert len(pairs) == 20
    assert {client for _, client in pairs} == set(range(10))


def test_each_word_has_a_box_inside_the_page_in_reading_order(small: Dataset) -> None:
    for page in small.splits["train"].documents.to_pylist():
        boxes = np.array(page["boxes"]).reshape(-1, 4)
        assert len(boxes) == len(page["words"])
        assert (boxes >= 0).all()
        assert (boxes <= 1).all()
        assert (boxes[:, 0] < boxes[:, 2]).all(), page["id"]
        assert (boxes[:, 1] < boxes[:, 3]).all(), page["id"]
        baseline = boxes[:, 3] - 0.22 * (boxes[:, 3] - boxes[:, 1])
        assert (np.diff(baseline) > -0.003).all(), page["id"]
        assert all(page["words"])


def test_boxes_contain_the_ink_of_their_words() -> None:
    """On unrotated pictures 97 % of the boxes have dark pixels, and the left margin is white."""
    data = ProviderInvoices(providers=10, unseen=1, train=10, valid=1, test=1, unseen_documents=1, image_width=400)
    split = data.build(processes=1).splits["train"]
    clients = dict(zip(split.examples["document"].to_pylist(), split.examples["client"].to_pylist(), strict=True))
    for row, page in enumerate(split.documents.to_pylist()):
        if clients[row] % 2:
            continue  # scanners of odd clients rotate the page
        pixels = np.asarray(Image.open(io.BytesIO(page["image"])))
        boxes = (np.array(page["boxes"]).reshape(-1, 2, 2) * pixels.shape[::-1]).reshape(-1, 4).round().astype(int)
        dark = [(pixels[t : b + 1, left : r + 1] < 160).any() for left, t, r, b in boxes]
        assert np.mean(dark) > 0.97, page["id"]
        assert (pixels[:, :10] > 200).all(), page["id"]


def test_invoice_pictures_open_and_have_the_size_of_their_row(small: Dataset) -> None:
    for page in small.splits["test"].documents.to_pylist():
        image = Image.open(io.BytesIO(page["image"]))
        image.load()
        assert image.mode == "L"
        assert image.size == (page["width"], page["height"])
        assert page["width"] == 96
        assert 96 <= page["height"] <= 2 * 96
        assert np.asarray(image).std() > 10


def test_page_content_does_not_depend_on_drawing_the_picture() -> None:
    drawn = next(draw_documents("x", 1, recipe=Recipe(image_width=64)))
    text = next(draw_documents("x", 1))
    assert drawn.image
    assert not text.image
    assert (drawn.words, drawn.boxes, drawn.questions) == (text.words, text.boxes, text.questions)


def test_every_answer_is_on_its_page_if_the_scanner_makes_no_errors(small: Dataset) -> None:
    for name in ("train", "unseen"):
        rows = questions_of(small.splits[name])
        assert len(rows) > 10
        assert all(occurs(row["answers"][0], words) for row, words in rows)


def test_scanner_errors_change_words_but_not_answers(small: Dataset) -> None:
    rows = questions_of(small.splits["train"], client=9)
    assert 0.4 < np.mean([occurs(row["answers"][0], words) for row, words in rows]) < 0.95
    clear = replace(SMALL, noise=0.0).build(processes=1).splits["train"]
    assert clear.examples.equals(small.splits["train"].examples)
    assert all(occurs(row["answers"][0], words) for row, words in questions_of(clear, client=9))


def test_no_question_contains_its_answer(small: Dataset) -> None:
    for split in small.splits.values():
        for row in split.examples.to_pylist():
            assert not any(occurs(answer, row["question"].rstrip("?").split(" ")) for answer in row["answers"])


def test_amounts_add_up_and_tax_is_rounded_half_up() -> None:
    """3 x 1.25 + 10 x 0.33 = 7.05; 10 % tax is 0.705, printed 0.71; total 7.76."""
    (provider,), _ = benchmark_providers(seed=1, count=1, unseen=0, groups=1)
    provider = replace(provider, tax_rate=100, catalogue=(("Pears", 125), ("Salt", 33)))
    invoice = make_invoice(provider, 0, RandomStream("test"), half=0, max_lines=2)
    assert invoice.net == sum(line.quantity * line.price for line in invoice.lines)
    lines = (InvoiceLine("Pears", 3, 125), InvoiceLine("Salt", 10, 33))
    assert sum(line.amount for line in lines) == 705
    assert tax_of(705, 100) == 71
    assert invoice.tax == tax_of(invoice.net, 100)
    assert invoice.total == invoice.net + invoice.tax


@pytest.mark.parametrize(
    ("separators", "style", "printed", "answers"),
    [
        (",.", "plain", "1,234.05", ("1,234.05",)),
        (".,", "symbol before", "€ 1.234,05", ("1.234,05",)),
        (",", "code after", "1234,05 EUR", ("1234,05",)),
        ("'.", "symbol attached", "€1'234.05", ("€1'234.05", "1'234.05")),
    ],
)
def test_money_is_formatted_in_the_style_of_its_provider(
    separators: str, style: str, printed: str, answers: tuple[str, ...]
) -> None:
    money = Money("EUR", "€", separators[:-1], separators[-1], style)
    assert money.format(123405) == printed
    assert money.answers(123405) == answers


def test_dates_are_formatted_in_every_format() -> None:
    day = date(2009, 3, 7)
    assert DATE_FORMATS["d.m.y2"](day, "März") == "07.03.09"
    assert DATE_FORMATS["m/d/y4"](day, "March") == "03/07/2009"
    assert DATE_FORMATS["mon d, y4"](day, "March") == "Mar 7, 2009"
    assert {name for language in LANGUAGES.values() for name in language.date_formats} == set(DATE_FORMATS)


def test_baselines_without_the_page_stay_low_on_invoices(small: Dataset) -> None:
    for name in ("valid", "test", "unseen"):
        scores = small.card["baselines"][name]
        assert scores["majority"]["anls"] < 0.1
        assert scores["majority"]["accuracy"] < 0.1
        assert scores["question_only"]["anls"] < 0.2


def test_zipf_distributes_all_documents_within_its_bounds() -> None:
    counts = zipf(1600, list(range(100)))  # mean 16: between 6 and 40
    assert sum(counts) == 1600
    assert (min(counts), max(counts)) == (6, 40)
    assert counts == sorted(counts, reverse=True)
    assert sum(zipf(7, list(range(100)))) == 7
    assert zipf(3, [0, 1, 2]) == [1, 1, 1]


def test_plan_contains_no_document_twice() -> None:
    planned = plan_documents(1, 20, 5, {"train": 160, "valid": 40, "test": 40, "unseen": 20})
    assert len({(p.provider, p.page) for p in planned}) == len(planned) == 260


def test_pretraining_documents_share_no_company_person_or_label_with_the_benchmark(small: Dataset) -> None:
    surnames = {name for language in LANGUAGES.values() for name in language.names(0)}
    for split in small.splits.values():
        for row in split.examples.to_pylist():
            if row["field"] in ("customer", "provider"):
                assert surnames & set(row["answers"][0].split(" "))
    for document in draw_documents("pretraining", 200):
        for q in document.questions:
            if q.field in ("customer", "provider"):
                assert not surnames & set(q.answers[0].split(" "))
    for language in LANGUAGES.values():
        assert not set(language.names(0)) & set(language.names(1))
        for label, (benchmark, others) in language.labels.items():
            assert not set(benchmark) & set(others), (language.code, label)


def test_pretraining_documents_do_not_depend_on_the_range_drawn() -> None:
    whole = list(draw_documents("x", 10))
    assert list(draw_documents("x", 3, start=6)) == whole[6:9]
    assert list(draw_documents("y", 3)) != whole[:3]


def test_a_missing_or_changed_font_is_named_with_the_extra_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    oxygen: FontFamily = fonts.FAMILIES["Oxygen"]
    monkeypatch.setitem(fonts.FAMILIES, "Oxygen", replace(oxygen, package="fontpkg-none"))
    with pytest.raises(
        DataError, match=r"^[^\n]*fontpkg-none 0\.201 is missing; [^\n]*pip install 'simfl\[benchmarks\]'$"
    ):
        fonts.face("Oxygen", False)
    monkeypatch.setitem(fonts.FAMILIES, "Oxygen", replace(oxygen, regular=("Oxygen-Regular.ttf", "0" * 16)))
    with pytest.raises(DataError, match=r"Oxygen-Regular.ttf hashes to a328b8fa366bdd94"):
        fonts.face("Oxygen", False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"providers": 5}, "data.providers: 5 for 10 clients"),
        ({"train": 50}, "data.train: 50 documents for 100 providers"),
        ({"unseen_documents": 5}, "data.unseen_documents: 5 documents for 20 providers"),
        ({"max_lines": 30}, "data.max_lines: 30 given, at most 20"),
        ({"questions": 10}, "data.questions: 10 given, at most 9"),
    ],
)
def test_impossible_invoice_sizes_are_rejected(settings: dict[str, int], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        ProviderInvoices(**settings).load(tmp_path)
