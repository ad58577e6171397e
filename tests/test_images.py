"""Images as people have them: every mode, orientation and fault is read right or refused in one line."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile

from simfl.errors import DataError
from simfl.images import MAX_PIXELS, measure_image, read_image

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8))


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def mean(content: bytes) -> list[float]:
    return np.asarray(read_image(content, "RGB", "x")).mean((0, 1)).round().tolist()


GREY_16 = Image.fromarray((np.arange(1024).reshape(32, 32) * 60).astype(np.uint16))
FLOATS = Image.fromarray(np.linspace(0, 1, 1024).reshape(32, 32).astype(np.float32))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (encoded(GREY_16), [119] * 3),
        (encoded(GREY_16, "TIFF"), [119] * 3),
        (b"P5 2 1 65535 \xff\xff\x00\x00", [128] * 3),
        (encoded(FLOATS, "TIFF"), [128] * 3),
        (encoded(Image.new("1", (4, 4), 1)), [255] * 3),
        (encoded(Image.new("L", (4, 4), 7)), [7] * 3),
        (encoded(Image.new("RGB", (4, 4), (9, 8, 7)).quantize(4)), [9, 8, 7]),
        (encoded(Image.new("CMYK", (4, 4), (0, 255, 0, 0)), "JPEG"), [255, 0, 255]),
        (encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 0))), [255] * 3),
        (encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 255))), [255, 0, 0]),
        (encoded(Image.new("LA", (4, 4), (0, 128))), [127] * 3),
        (encoded(Image.new("RGB", (4, 4), (9, 8, 7)).quantize(4), transparency=0), [255] * 3),
        (encoded(Image.new("L", (4, 4), 7), transparency=7), [255] * 3),
        (encoded(Image.new("RGB", (4, 4), (7, 8, 9)), transparency=(7, 8, 9)), [255] * 3),
        (encoded(Image.new("P", (4, 4), 1), "GIF", transparency=1), [255] * 3),
        (encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "WEBP", lossless=True), [255] * 3),
    ],
)
def test_every_kind_of_pixels_becomes_eight_bits_on_white(content: bytes, expected: list[int]) -> None:
    assert mean(content) == expected


def test_a_plain_image_keeps_its_pixels() -> None:
    assert np.array_equal(np.asarray(read_image(encoded(NOISE), "RGB", "x")), np.asarray(NOISE))
    assert np.array_equal(np.asarray(read_image(encoded(NOISE), "L", "x")), np.asarray(NOISE.convert("L")))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_orientation_says(format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    content = encoded(NOISE, format, exif=exif, **({"lossless": True} if format == "WEBP" else {}))
    turns = {
        1: [], 2: ["FLIP_LEFT_RIGHT"], 3: ["ROTATE_180"], 4: ["FLIP_TOP_BOTTOM"], 5: ["TRANSPOSE"],
        6: ["ROTATE_270"], 7: ["TRANSVERSE"], 8: ["ROTATE_90"],
    }  # fmt: skip
    upright = NOISE
    for turn in turns[orientation]:
        upright = upright.transpose(Image.Transpose[turn])
    read = read_image(content, "RGB", "x")
    assert read.size == upright.size == measure_image(content, "x") == measure_image(content, "x", whole=True)
    if format != "JPEG":
        assert np.array_equal(np.asarray(read), np.asarray(upright))


def test_damaged_orientation_leaves_the_image_as_it_is_stored() -> None:
    assert read_image(encoded(NOISE, "JPEG", exif=b"Exif\0\0garbage!!"), "RGB", "x").size == NOISE.size


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "JPEG2000", "PPM"])
def test_a_truncated_image_is_refused(format: str) -> None:
    content = encoded(NOISE.quantize(64) if format == "GIF" else NOISE, format)
    read_image(content, "RGB", "x")
    with pytest.raises(DataError, match=r"^x: not a readable image"):
        read_image(content[: len(content) * 2 // 3], "RGB", "x")


def test_a_truncated_jpeg_can_be_read_where_the_caller_allows_it() -> None:
    content = encoded(NOISE.resize((300, 400)), "JPEG")[:9000]
    read = np.asarray(read_image(content, "RGB", "x", truncated=True))
    assert read.shape == (400, 300, 3)
    assert read[:20].std() > 20
    assert read[-1].std() == 0  # the missing part has one colour
    with pytest.raises(DataError, match="not a readable image"):
        read_image(encoded(NOISE)[:900], "RGB", "x", truncated=True)


def test_the_global_switch_of_pillow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(DataError, match="LOAD_TRUNCATED_IMAGES is set, so truncated images would go unnoticed"):
        read_image(encoded(NOISE), "RGB", "x")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9500, 20000])
def test_a_decompression_bomb_is_refused(side: int) -> None:
    content = encoded(Image.new("1", (side, side)))
    for read in (lambda: read_image(content, "RGB", "x"), lambda: measure_image(content, "x")):
        with pytest.raises(DataError, match=rf"^x: the image has .*{MAX_PIXELS:,}"):
            read()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a readable image; allowed: PNG, JPEG"),
        (b"hello", "not a readable image; allowed: PNG, JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a readable image; allowed: PNG, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n%%EOF\n", "not a readable image; allowed: PNG"),
        (encoded(Image.fromarray(np.full((2, 2), 250, np.float32)), "TIFF"), "float pixels are from 250 to 250"),
        (encoded(Image.fromarray(np.full((2, 2), np.nan, np.float32)), "TIFF"), "float pixels are from nan to nan"),
        (encoded(Image.fromarray(np.full((2, 2), 70000, np.int32)), "TIFF"), "pixels are integers of 32 bits"),
    ],
)
def test_what_is_no_image_of_known_range_is_refused_in_one_line(content: bytes, said: str) -> None:
    with pytest.raises(DataError) as error:
        read_image(content, "RGB", "x")
    assert str(error.value).startswith(f"x: {said}")
    assert "\n" not in str(error.value)
    assert "object at 0x" not in str(error.value)


def test_a_missing_file_and_a_broken_link_are_named(tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=r"^x: a broken link to .*gone\.png$"):
        read_image(tmp_path / "link.png", "RGB", "x")
    with pytest.raises(DataError, match=r"^x: the file is missing$"):
        measure_image(tmp_path / "gone.png", "x")
    with pytest.raises(DataError, match=r"^x: Is a directory$"):
        read_image(tmp_path, "RGB", "x")


def test_damaged_bytes_never_end_in_another_error() -> None:
    """Each byte of small images is damaged in turn; Pillow raises errors of many kinds for them."""
    draws = np.random.default_rng(1)
    for format in ("PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG"):
        whole = encoded(NOISE.resize((5, 4)).quantize(8) if format == "GIF" else NOISE.resize((5, 4)), format)
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << int(draws.integers(8))
            with suppress(DataError):
                read_image(bytes(damaged), "RGB", "x")
