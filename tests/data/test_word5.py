"""The bundled benchmark of words: reproducible, legible, with words and fonts that only test splits have."""

from __future__ import annotations

import io
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from simfl.data.base import WORD_IMAGES, Dataset
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.benchmarks.word5 import Word5, drawing
from simfl.data.benchmarks.word5.sources import CLIENTS, FONTS
from simfl.data.benchmarks.word5.words import KINDS, draw_word, is_held_out, word_lists
from simfl.errors import DataError

pytestmark = pytest.mark.skipif(
    find_spec("zxcvbn") is None, reason="zxcvbn is not installed: pip install 'simfl[benchmarks]'"
)

SMALL = Word5(train=40, valid=10, test=20, test_font=20)
GOLDEN = "e398a13f39a971ef6f01f1c1b96d91f0dd2554ba9ff1e766c599cdbbd70ee31b"


@pytest.fixture(scope="module")
def small() -> Dataset:
    return SMALL.build(processes=1)


def test_word5_content_has_the_golden_hash(small: Dataset) -> None:
    assert small.sha256 == GOLDEN, "the words changed: increase VERSION, then update this hash"


@pytest.mark.slow
def test_word_pictures_do_not_depend_on_the_number_of_processes(small: Dataset) -> None:
    other = SMALL.build(processes=2)
    for name, split in small.splits.items():
        assert split.examples.equals(other.splits[name].examples)  # pictures included: both builds run on one machine


def test_word5_splits_have_the_requested_columns_and_sizes(small: Dataset) -> None:
    sizes = {name: len(split) for name, split in small.splits.items()}
    assert sizes == {"train": 200, "valid": 50, "test": 100, "test_font": 100}
    for split in small.splits.values():
        assert split.examples.select(WORD_IMAGES.names).schema.equals(WORD_IMAGES)
        assert set(split.examples["source"].to_pylist()) == set(CLIENTS)


def test_test_words_are_in_no_other_split_regardless_of_case(small: Dataset) -> None:
    texts = {name: {t.lower() for t in split.examples["text"].to_pylist()} for name, split in small.splits.items()}
    for test in ("test", "test_font"):
        assert not texts[test] & (texts["train"] | texts["valid"])


def test_longest_limits_all_words_and_keeps_every_kind() -> None:
    short = Word5(train=20, valid=1, test=1, test_font=1, longest=4).build(processes=1).splits["train"].examples
    assert {len(text) for text in short["text"].to_pylist()} <= {2, 3, 4}
    assert set(short["source"].to_pylist()) == set(CLIENTS)


def test_held_out_fonts_are_in_test_font_only(small: Dataset) -> None:
    fonts = {name: set(split.examples["font"].to_pylist()) for name, split in small.splits.items()}
    assert not fonts["test_font"] & (fonts["train"] | fonts["valid"] | fonts["test"])


def test_a_fifth_of_the_words_is_held_out() -> None:
    assert np.mean([is_held_out(text) for text in word_lists()["common"]]) == pytest.approx(
        0.2, abs=0.015
    )  # 4 sigma of 12,000


def test_each_client_has_words_of_its_own_kind() -> None:
    forms = {
        "print": r"[A-Za-z][a-z]{2,11}",
        "sign": r"[A-Z]{3,7}",
        "hand": r"[A-Za-z][a-z]{2,11}",
        "receipt": r"[$-]?\d+\.\d\d|\d\d[/.-]\d\d[/.-](20)?\d\d|[A-Z]{1,3}[-#]?\d+|x\d+|\d+%|\d+g",
        "night": r"[A-Z][a-z]{2,11}",
    }
    for client in KINDS:
        for number in range(200):
            text = draw_word(client, RandomStream("kinds", client, number), held_out=False)
            assert re.fullmatch(forms[client], text), (client, text)


def test_letters_contrast_with_their_background() -> None:
    """The darkest and the lightest tenth of a picture are at least 40 grey levels apart."""
    for client in CLIENTS:
        for number in range(20):
            random = RandomStream("contrast", client, number)
            font = FONTS[client][0][number % len(FONTS[client][0])].path("test")
            pixels = np.asarray(
                drawing.draw(client, "Harvest" if client != "receipt" else "12.50", font, random).convert("L")
            )
            assert pixels.shape == (32, 128)
            low, high = np.percentile(pixels, (10, 90))
            assert high - low >= 40 or pixels.std() > 14, (client, number)


def test_every_font_has_all_letters_of_its_client() -> None:
    letters = {"receipt": "0123456789$-./#%xgABCDEFGHKLMNPRSTVWX", "sign": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    both = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for client, (known, held_out) in FONTS.items():
        for font in (*known, *held_out):
            face = drawing._font(font.path("test"))
            absent = np.array(face.getmask("\uffff"), np.uint8)
            for letter in letters.get(client, both):
                ink = np.array(face.getmask(letter), np.uint8)
                assert ink.any(), (font.file, letter)
                assert not np.array_equal(ink, absent), (font.file, letter)


def test_baselines_without_reading_stay_low_on_words(small: Dataset) -> None:
    for name in ("test", "test_font"):
        for scores in small.card["baselines"][name].values():
            assert scores["accuracy"] <= 0.02
            assert scores["similarity"] <= 0.2


def test_word_pictures_open(small: Dataset) -> None:
    for row in small.splits["test_font"].examples.to_pylist():
        image = Image.open(io.BytesIO(row["image"]))
        assert (image.mode, image.size) == ("RGB", (row["width"], row["height"]))


def test_a_missing_dictionary_is_named_with_its_package(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIMFL_SHARE", str(tmp_path))
    line = r"^data\.words: [^\n]*american-english is missing; install it with: apt install wamerican$"
    with pytest.raises(DataError, match=line):
        Word5(words="wamerican").load(tmp_path / "cache")


def test_words_of_debians_dictionary_can_replace_those_of_the_pip_package(monkeypatch, tmp_path: Path) -> None:
    """The dictionary has capitalized names, possessives, accents, and words that are too short or too long."""
    common = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("ll", "nd", "st", "rk")]
    names = [a + b for a in ("Ar", "Be", "Co", "Du", "El") for b in ("an", "ena", "ido", "ulf", "wyn", "mos")]
    lines = sorted([*common, *names, "ball's", "Aran's", "étude", "ox", "incomprehensibly", "IBM", "McCoy"])
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict/american-english").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setenv("SIMFL_SHARE", str(tmp_path))
    found = word_lists("wamerican")
    assert sorted(found["common"]) == sorted(common)
    assert sorted(found["names"]) == sorted(name.lower() for name in names)
    assert found["common"] != sorted(common)  # not alphabetical, which would favour the first letters
    made = Word5(words="wamerican", train=30, valid=2, test=4, test_font=4).build(processes=2)
    assert made.card["sources"][0] == "wamerican"
    texts = made.splits["train"].examples.select(["source", "text"]).to_pylist()
    assert {row["text"].lower() for row in texts if row["source"] == "sign"} <= set(common)
    assert {row["text"] for row in texts if row["source"] == "night"} <= set(names)
