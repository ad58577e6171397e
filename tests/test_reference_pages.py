"""Pages written from the package are current: keys, components, commands, errors, pictures, AGENTS.md and llms.txt."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from simfl import config
from simfl.config.registries import REGISTRIES
from simfl.experiment import Experiment
from simfl.yaml_text import parsed

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    path = list(sys.path)
    found = runpy.run_path(str(ROOT / "docs/make_reference.py"))
    sys.path[:] = path
    return found


@pytest.fixture(scope="module")
def errors(reference: dict[str, Any]) -> Any:
    return reference["error_messages"]


@pytest.mark.slow  # `make check` compares the pages
def test_written_pages_are_current(reference: dict[str, Any]) -> None:
    for name, build in reference["PAGES"].items():
        assert (ROOT / name).read_text(encoding="utf-8") == build(), f"{name}: run `make pages`"


def test_pictures_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert runpy.run_path(str(ROOT / "docs/make_pictures.py"))["main"](["--check"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_every_error_message_has_a_kind_and_every_kind_a_message(errors: Any) -> None:
    found = list(errors.messages())
    assert len(found) > 800
    assert [message for message in found if errors.kind_of(message) is None] == []
    assert [name for name, messages in errors.by_kind().items() if not messages] == []


@pytest.mark.slow
def test_keys_of_all_sections_and_components_are_described(reference: dict[str, Any]) -> None:
    paths = dict(reference["sections"](Experiment, ""))
    assert {"phases[].local", "phases[].codec.parts.NAME", "privacy.adaptive", "tracking.wandb"} <= set(paths)
    page = reference["PAGES"]["docs/reference/yaml.md"]()
    assert page.count("\n## ") == len(paths)
    assert "| `batch_size` | integer | `16` | a whole number of at least 1 | B: examples per local step. |" in page
    components = reference["PAGES"]["docs/reference/components.md"]()
    missing = [
        f"{r}: {n}" for r, spec in REGISTRIES.items() for n in spec.components if f"### {r}: {n}\n" not in components
    ]
    assert missing == []


@pytest.mark.slow
def test_the_example_for_programs_is_a_complete_experiment(reference: dict[str, Any]) -> None:
    experiment = config.parse(parsed(reference["machine_readers"].EXAMPLE, "llms.txt"))
    assert experiment.phases[0].clients_per_round == 4


@pytest.mark.slow
def test_llms_lists_every_page_of_the_documentation(reference: dict[str, Any]) -> None:
    listed = reference["machine_readers"].llms()
    pages = [path.relative_to(ROOT) for path in (ROOT / "docs").glob("*/*.md") if path.name != "index.md"]
    assert [str(page) for page in pages if f"({page})" not in listed] == []
