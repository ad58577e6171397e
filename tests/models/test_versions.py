"""Libraries that are too old for the models are named before a run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes import experiment, run

from simfl.errors import ConfigError
from simfl.models import versions
from simfl.models.versions import LEAST, check_versions


def test_an_old_library_ends_the_run_before_its_folder_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    with pytest.raises(ConfigError, match=r"^model: needs torch 2\.11 or newer, found 2\.4\.1\+cpu; pip install"):
        run(experiment("fedavg"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("version", ["5.24.0", "5.30.1.dev0", "6.0", "5.100"])
def test_newer_libraries_are_taken(version: str) -> None:
    check_versions(modules={"transformers": SimpleNamespace(__version__=version)})


def test_a_library_that_no_component_has_imported_is_not_checked() -> None:
    check_versions(modules={})
    with pytest.raises(ConfigError, match=r"transformers 5\.24 or newer, found 5\.17\.0"):
        check_versions(modules={"transformers": SimpleNamespace(__version__="5.17.0")})


def test_the_versions_are_those_of_the_package() -> None:
    pyproject = tomllib.loads((Path(versions.__file__).parents[2] / "pyproject.toml").read_text())
    for name, least in LEAST.items():
        (line,) = [one for one in pyproject["project"]["dependencies"] if re.match(rf"{name}\b", one)]
        assert f">={'.'.join(map(str, least))}" in line
