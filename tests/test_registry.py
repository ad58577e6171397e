"""Registries: every name leads to its component, and back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simfl.config.registries import REGISTRIES
from simfl.registry import Registry


@pytest.mark.parametrize("registry", REGISTRIES)
def test_every_registered_name_leads_to_its_component_and_back(registry):
    table = REGISTRIES[registry].components
    assert len(table) == len(list(table)) >= 2
    for name, component in table.items():
        assert issubclass(component, REGISTRIES[registry].kind)
        assert table.locations[name] == f"{component.__module__}:{component.__qualname__}"
        assert table.name_of(component) == name


def test_an_unregistered_component_has_no_name():
    table: Registry[object] = Registry({"path": "pathlib:Path"})
    assert table.name_of(int) is None
    assert "int" not in table
    with pytest.raises(KeyError):
        table["int"]


def test_a_component_is_imported_on_first_lookup_and_no_other():
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
