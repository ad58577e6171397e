"""Values of experiment files that YAML or Python cannot read are refused in one line that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from simfl import config
from simfl.config import fields
from simfl.constraints import PositiveFloat, Seed
from simfl.errors import ConfigError
from simfl.imports import import_object


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: !!int 'abc'", "a value cannot be read (invalid literal for int() with base 10: 'abc')"),
        ("seed: !!float 'abc'", "a value cannot be read (could not convert string to float: 'abc')"),
        ("seed: !!bool x", "a value cannot be read ('x')"),
        ("seed: 2001-99-99", "a value cannot be read (month must be in 1..12)"),
        (
            "seed: " + "9" * 5000,
            "a value cannot be read (Exceeds the limit (4300 digits) for integer",
        ),
        ("a: " + "[" * 5000, "mappings and lists are nested too deeply"),
        ("\n".join(" " * depth + "a:" for depth in range(1500)), "mappings and lists are nested too deeply"),
    ],
    ids=["int", "float", "bool", "date", "digits", "lists", "mappings"],
)
def test_a_value_that_cannot_be_read_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        config.load(file)
    assert str(error.value).startswith(f"{file}: {said}")
    assert "\n" not in str(error.value)


def test_an_integer_beyond_every_float_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^learning_rate: 1000.* is not a number above 0$"):
        fields.read(PositiveFloat, 10**400, "learning_rate")


def test_an_integer_that_python_does_not_print_is_described() -> None:
    with pytest.raises(ConfigError, match=r"^seed: an integer of thousands of digits is not a whole number"):
        fields.read(Seed, 10**5000, "seed")


@pytest.mark.parametrize("name", [".x:Y", "..:a", "a..b:c", "a b:c", ":x", "x:", "a/b:c", "1a:b", "os:path..x", "os"])
def test_a_name_that_is_no_absolute_import_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^algorithm: .* is not package.module:name$"):
        import_object(name, "algorithm")
