"""Tables between markers in a text file."""

from __future__ import annotations

from pathlib import Path

import pytest

from simfl.errors import ConfigError
from simfl.reports.formats import write_between

TEXT = "before\n<!-- simfl: a -->\nold\n<!-- simfl: end -->\nbetween\n<!-- simfl: b -->\n<!-- simfl: end -->\nafter\n"


def test_only_the_text_between_the_markers_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(TEXT)
    write_between(path, "a", "new\n")
    write_between(path, "b", "more\n")
    assert path.read_text() == TEXT.replace("old", "new").replace("b -->\n", "b -->\nmore\n")
    write_between(path, "a", "old\n")
    write_between(path, "b", "")
    assert "new" not in path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "no marker <!-- simfl: a -->; write <!-- simfl: a --> and <!-- simfl: end --> where the table"),
        ("<!-- simfl: aa -->", "no marker <!-- simfl: a -->; did you mean 'aa'"),
        ("<!-- simfl: a -->", "no <!-- simfl: end --> after <!-- simfl: a -->"),
    ],
)
def test_a_file_without_the_markers_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        write_between(path, "a", "new")
    assert path.read_text() == text
