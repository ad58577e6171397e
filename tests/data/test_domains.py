"""The bundled benchmark of domains: emoji in four styles and digits from five sources, one task each."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from simfl.config import partitions
from simfl.data import leaks
from simfl.data.base import IMAGES, Dataset
from simfl.data.benchmarks import picture_probe
from simfl.data.benchmarks.domains import Domains, digits, emoji
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
def test_domains_content_has_the_golden_hash(kind: str, built: dict[str, Dataset]) -> None:
    assert built[kind].sha256 == GOLDEN[kind], "the pictures changed: increase VERSION, then update this hash"


@pytest.mark.parametrize("kind", ["emoji", "digits"])
def test_two_domain_builds_have_equal_pixels(kind: str, built: dict[str, Dataset]) -> None:
    other = (EMOJI if kind == "emoji" else DIGITS).build()
    for name, split in built[kind].splits.items():
        assert split.examples.equals(other.splits[name].examples)


def test_domains_are_loaded_from_the_cache_without_rebuilding(built: dict[str, Dataset], tmp_path: Path) -> None:
    assert EMOJI.load(tmp_path).sha256 == built["emoji"].sha256
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}
    EMOJI.load(tmp_path)
    assert len(made) == 3
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_every_style_has_every_concept_once_and_splits_share_no_concept(built: dict[str, Dataset]) -> None:
    """Each of 5 classes has 20 concepts, divided into 14, 2 and 4, in 4 styles."""
    keys = {}
    for name, each in (("train", 14), ("valid", 2), ("test", 4)):
        rows = built["emoji"].splits[name].examples
        assert rows.num_rows == 5 * each * 4
        by_style: dict[str, set[str]] = {style: set() for style in emoji.STYLES}
        for key, style in zip(rows["key"].to_pylist(), rows["domain"].to_pylist(), strict=True):
            by_style[style].add(key)
        keys[name] = by_style["noto"]
        assert all(found == keys[name] and len(found) == 5 * each for found in by_style.values())
    assert not keys["train"] & keys["valid"]
    assert not keys["train"] & keys["test"]
    assert not keys["valid"] & keys["test"]


def test_digits_have_five_sources_of_the_requested_sizes(built: dict[str, Dataset]) -> None:
    for name, each in (("train", 60), ("valid", 20), ("test", 40)):
        rows = built["digits"].splits[name].examples
        assert {d: rows["domain"].to_pylist().count(d) for d in digits.DOMAINS} == dict.fromkeys(digits.DOMAINS, each)
        assert set(rows["label"].to_pylist()) == set(range(10))


@pytest.mark.parametrize("kind", ["emoji", "digits"])
def test_no_domain_picture_is_in_two_splits(kind: str, built: dict[str, Dataset]) -> None:
    splits = built[kind].splits
    for other in ("valid", "test"):
        assert not leaks.shared_values(splits["train"], splits[other], leaks.CONTENT)
        assert not leaks.shared_values(splits["train"], splits[other], "id")


@pytest.mark.parametrize("kind", ["emoji", "digits"])
def test_domain_pictures_have_the_requested_form_and_are_not_blank(kind: str, built: dict[str, Dataset]) -> None:
    rows = built[kind].splits["test"].examples
    assert rows.select(IMAGES.names).schema.equals(IMAGES)
    for row in rows.to_pylist():
        pixels = np.asarray(Image.open(io.BytesIO(row["image"])))
        assert pixels.shape == (24, 24, 3)
        assert pixels.std() > 8, row["id"]
        assert built[kind].card["classes"][row["label"]] == row["class"]


def test_mnist_digits_match_the_rows_of_their_file() -> None:
    """The first digit has the label and the brightest pixel of the row that its key names."""
    digit, key, image = next(digits.read_written("mnist", 1))
    with gzip.open(digits.source_file("mnist"), "rt") as lines:
        row = [float(v) for v in list(lines)[int(key)].split(",")]
    assert digit == int(row[-1])
    assert np.asarray(image).argmax() == int(np.argmax(row[:-1]))


@pytest.mark.parametrize("kind", ["emoji", "digits"])
def test_a_linear_probe_is_better_than_the_majority_class(kind: str, built: dict[str, Dataset]) -> None:
    ranges = built[kind].card["ranges"]
    assert ranges["majority"] <= 0.35
    assert ranges["home"] > 0.1


def test_digit_sources_differ_for_a_linear_probe(built: dict[str, Dataset]) -> None:
    assert built["digits"].card["ranges"]["shift"] > 0.1


def test_unseen_domains_are_in_no_other_split() -> None:
    data = Domains(concepts=10, image_size=16, unseen=("noto",)).build()
    assert set(data.splits["unseen"].examples["domain"].to_pylist()) == {"noto"}
    for name in ("train", "valid", "test"):
        assert set(data.splits[name].examples["domain"].to_pylist()) == set(emoji.STYLES) - {"noto"}


def test_a_gradient_in_one_direction_fills_one_bin_of_each_cell() -> None:
    """Brightness grows to the right only: direction 0 of 8, equal in all cells; the histogram has norm 4."""
    ramp = np.repeat(np.arange(0, 160, 10, dtype=np.uint8)[None], 16, 0)
    out = io.BytesIO()
    Image.fromarray(ramp).convert("RGB").save(out, "PNG")
    (row,) = picture_probe.features([out.getvalue()])
    edges = row[: 16 * 8].reshape(16, 8)
    assert np.allclose(edges[:, 1:], 0)
    assert np.allclose(edges[:, 0], 1.0)  # 4 / sqrt(16)
    assert np.allclose(row[128 : 128 + 4], np.array([15, 55, 95, 135]) / 255)


def test_majority_accuracy_is_the_test_share_of_the_most_frequent_training_class() -> None:
    train, test = pa.table({"label": [0, 1, 1]}), pa.table({"label": [1, 0, 0, 1, 2]})
    assert picture_probe.majority_accuracy(train, test) == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"domains": ("motion",)}, r"^data\.domains: 'motion' given; [^\n]*$"),
        ({"unseen": ("mnist",)}, r"^data\.unseen: 'mnist' given; [^\n]*$"),
        ({"unseen": tuple(emoji.STYLES)}, r"^data\.unseen: at least one domain[^\n]*$"),
        ({"concepts": 9}, r"^data\.concepts: 9 given, at least 10[^\n]*$"),
        ({"kind": "digits", "train": 1700}, r"^data\.train: 1700 \+ 200 \+ 290 given, at most 1,790 together$"),
    ],
)
def test_invalid_domain_settings_are_rejected_in_one_line(settings: dict, line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=line):
        Domains(**settings).load(tmp_path)


@pytest.mark.parametrize(("name", "clients"), [("style", 4), ("style_20", 20)])
def test_domain_partitions_give_each_client_one_style(
    name: str, clients: int, built: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Domains, "load", lambda self, cache: built["emoji"])
    spec = partitions.load(SPECS / f"domains_{name}.yaml")
    partition = partitions.build(spec, tmp_path).partition
    domain = built["emoji"].splits["train"].examples["domain"].to_pylist()
    assert len(partition) == clients
    assert all(len({domain[row] for row in partition.rows(client)}) == 1 for client in range(clients))
