"""Emoji in four styles and digits from five sources: one task each, shifted between domains."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from simfl.config import partitions
from simfl.data import leaks
from simfl.data.base import PICTURES, Dataset
from simfl.data.benchmarks.domains import Domains, digits, emoji, probe
from simfl.errors import ConfigError

EMOJI = Domains(concepts=20, image_size=24)
DIGITS = Domains(kind="digits", train=60, valid=20, test=40, image_size=24)
GOLDEN = {
    "emoji": "1c3280ff5d774645ca1d7cdfb125a5fc63a2606a3f0246db15493c11de08a0cb",
    "digits": "6a32b228b57ce1ae9fcaba57ef14a5dc3b91950234b9614deaa5ea47d0171c93",
}
SPECS = Path(__file__).parents[2] / "partitions"


@pytest.fixture(scope="module")
def built() -> dict[str, Dataset]:
    return {"emoji": EMOJI.build(), "digits": DIGITS.build()}


@pytest.mark.parametrize("kind", ["emoji", "digits"])
def test_what_is_shown_is_the_golden(kind: str, built: dict[str, Dataset]) -> None:
    assert built[kind].sha256 == GOLDEN[kind], "other pictures: raise EDITION in benchmark.py, then this hash"


@pytest.mark.parametrize("kind", ["emoji", "digits"])
def test_two_builds_have_the_same_pixels(kind: str, built: dict[str, Dataset]) -> None:
    other = (EMOJI if kind == "emoji" else DIGITS).build()
    for name, split in built[kind].splits.items():
        assert split.examples.equals(other.splits[name].examples)


def test_a_cached_build_is_not_built_again(built: dict[str, Dataset], tmp_path: Path) -> None:
    assert EMOJI.load(tmp_path).sha256 == built["emoji"].sha256
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}
    EMOJI.load(tmp_path)
    assert len(made) == 3
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_every_style_shows_every_concept_once_and_splits_share_none(built: dict[str, Dataset]) -> None:
    """20 concepts of each of 5 classes: 14, 2 and 4 of a class, in 4 styles."""
    keys = {}
    for name, each in (("train", 14), ("valid", 2), ("test", 4)):
        rows = built["emoji"].splits[name].examples
        assert rows.num_rows == 5 * each * 4
        by_style = {style: set() for style in emoji.STYLES}
        for key, style in zip(rows["key"].to_pylist(), rows["domain"].to_pylist(), strict=True):
            by_style[style].add(key)
        keys[name] = by_style["noto"]
        assert all(found == keys[name] and len(found) == 5 * each for found in by_style.values())
    assert not keys["train"] & keys["valid"]
    assert not keys["train"] & keys["test"]
    assert not keys["valid"] & keys["test"]


def test_digits_have_five_sources_of_the_sizes_asked_for(built: dict[str, Dataset]) -> None:
    for name, each in (("train", 60), ("valid", 20), ("test", 40)):
        rows = built["digits"].splits[name].examples
        assert {d: rows["domain"].to_pylist().count(d) for d in digits.DOMAINS} == dict.fromkeys(digits.DOMAINS, each)
        assert set(rows["label"].to_pylist()) == set(range(10))


@pytest.mark.parametrize("kind", ["emoji", "digits"])
def test_no_picture_is_in_two_splits(kind: str, built: dict[str, Dataset]) -> None:
    splits = built[kind].splits
    for other in ("valid", "test"):
        assert not leaks.shared(splits["train"], splits[other], leaks.CONTENT)
        assert not leaks.shared(splits["train"], splits[other], "id")


@pytest.mark.parametrize("kind", ["emoji", "digits"])
def test_pictures_have_the_columns_the_size_and_ink(kind: str, built: dict[str, Dataset]) -> None:
    rows = built[kind].splits["test"].examples
    assert rows.select(PICTURES.names).schema.equals(PICTURES)
    for row in rows.to_pylist():
        pixels = np.asarray(Image.open(io.BytesIO(row["image"])))
        assert pixels.shape == (24, 24, 3)
        assert pixels.std() > 8, row["id"]
        assert built[kind].card["classes"][row["label"]] == row["class"]


def test_mnist_is_as_its_file_says() -> None:
    """The first row that is drawn has the label and the brightest pixel of the file's row of that number."""
    digit, key, image = next(digits._written("mnist", 1))
    import gzip

    with gzip.open(digits.place("mnist"), "rt") as lines:
        row = [float(v) for v in list(lines)[int(key)].split(",")]
    assert digit == int(row[-1])
    assert np.asarray(image).argmax() == int(np.argmax(row[:-1]))


@pytest.mark.parametrize("kind", ["emoji", "digits"])
def test_a_linear_look_finds_more_than_the_majority(kind: str, built: dict[str, Dataset]) -> None:
    ranges = built[kind].card["ranges"]
    assert ranges["majority"] <= 0.35
    assert ranges["home"] > 0.1


def test_digits_are_shifted_between_sources(built: dict[str, Dataset]) -> None:
    assert built["digits"].card["ranges"]["shift"] > 0.1


def test_unseen_domains_are_in_no_other_split() -> None:
    data = Domains(concepts=10, image_size=16, unseen=("noto",)).build()
    assert set(data.splits["unseen"].examples["domain"].to_pylist()) == {"noto"}
    for name in ("train", "valid", "test"):
        assert set(data.splits[name].examples["domain"].to_pylist()) == set(emoji.STYLES) - {"noto"}


def test_edges_in_one_direction_fill_one_bin_of_each_cell() -> None:
    """Brightness grows to the right alone: direction 0 of 8, everywhere alike; the histogram has length 4."""
    ramp = np.repeat(np.arange(0, 160, 10, dtype=np.uint8)[None], 16, 0)
    out = io.BytesIO()
    Image.fromarray(ramp).convert("RGB").save(out, "PNG")
    (row,) = probe.features([out.getvalue()])
    edges = row[: 16 * 8].reshape(16, 8)
    assert np.allclose(edges[:, 1:], 0)
    assert np.allclose(edges[:, 0], 1.0)  # 4 / sqrt(16)
    assert np.allclose(row[128 : 128 + 4], np.array([15, 55, 95, 135]) / 255)


def test_majority_is_the_share_of_trainings_most_frequent_class() -> None:
    train, test = pa.table({"label": [0, 1, 1]}), pa.table({"label": [1, 0, 0, 1, 2]})
    assert probe.majority(train, test) == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"domains": ("motion",)}, r"^data\.domains: 'motion' given; [^\n]*$"),
        ({"unseen": ("mnist",)}, r"^data\.unseen: 'mnist' given; [^\n]*$"),
        ({"unseen": tuple(emoji.STYLES)}, r"^data\.unseen: one domain[^\n]*$"),
        ({"concepts": 9}, r"^data\.concepts: 9 given, at least 10[^\n]*$"),
        ({"kind": "digits", "train": 1700}, r"^data\.train: 1700 \+ 200 \+ 290 given, at most 1,790 together$"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(settings: dict, line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=line):
        Domains(**settings).load(tmp_path)


@pytest.mark.parametrize(("name", "clients"), [("style", 4), ("style_20", 20)])
def test_its_partitions_fit(
    name: str, clients: int, built: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Domains, "load", lambda self, cache: built["emoji"])
    spec = partitions.load(SPECS / f"domains_{name}.yaml")
    partition = partitions.build(spec, tmp_path).partition
    domain = built["emoji"].splits["train"].examples["domain"].to_pylist()
    assert len(partition) == clients
    assert all(len({domain[row] for row in partition.rows(client)}) == 1 for client in range(clients))
