"""Shelves: every name leads to the component that is written there, and only to that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simfl.config.registries import REGISTRIES
from simfl.registry import Registry


@pytest.mark.parametrize("shelf", REGISTRIES)
def test_every_name_leads_to_where_its_component_is_written_and_back(shelf):
    table = REGISTRIES[shelf].components
    assert len(table) == len(list(table)) > 2
    for name, component in table.items():
        assert issubclass(component, REGISTRIES[shelf].kind)
        assert table.locations[name] == f"{component.__module__}:{component.__qualname__}"
        assert table.name_of(component) == name


def test_a_component_that_is_not_of_the_shelf_has_no_name_there():
    table: Registry[object] = Registry({"path": "pathlib:Path"})
    assert table.name_of(int) is None
    assert "int" not in table
    with pytest.raises(KeyError):
        table["int"]


def test_a_component_is_imported_when_it_is_asked_for_and_no_other():
    code = """
import sys
from simfl.data import DATA
def known(): return [name for name in ("digits", "vcr", "zugferd") if f"simfl.data.readers.{name}" in sys.modules]
before = known()
"vcr" in DATA, list(DATA), DATA["digits"]
print(before, known())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[] ['digits']\n"
