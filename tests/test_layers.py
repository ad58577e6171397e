"""Imports point down only, shelves do not import one another, and each outside library has one owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "simfl"
SHELVES = ("algorithms", "codecs", "data", "models", "objectives", "optimizers")
LAYERS = (  # low to high; what stands in one line may import within the line, unless it is a shelf
    (
        "__init__",
        "errors",
        "given",
        "limits",
        "mirror",
        "seeds",
        "ranges",
        "files",
        "weights",
        "passing",
        "signals",
        "timing",
        "watchdog",
    ),
    ("protocol", "ledger", "memory", "carried", "tables"),
    SHELVES,
    ("shelves", "experiment", "fields", "privacy_rules", "rules", "catalogue", "config", "partition_spec"),
    ("privacy", "roles", "sampling", "cohort", "setting", "evaluation", "checkpoint", "pictures", "tracking"),
    ("broadcast", "snapshot", "record", "worker", "errands", "inline", "boot", "crew", "pool"),
    ("audience", "plan_messages", "plan_work", "plan_memory", "plan", "plan_check", "driver", "simulation", "progress"),
    (
        "results",
        "rerun",
        "replay",
        "divergence",
        "privacy_check",
        "diff",
        "watch",
        "machine",
        "doctor",
        "templates",
        "api",
        "inspection",
    ),
    (
        "marked",
        "fork",
        "sweep_axes",
        "sweep_file",
        "sweep_job",
        "sweep_pool",
        "significance",
        "sweep_results",
        "comparison",
        "sweep",
        "sweep_view",
    ),
    ("report_chart", "report_page", "report_curves", "report_time", "report"),
    ("submit",),
    ("plan_speed", "plan_table", "data_commands", "partition_commands", "sweep_commands"),
    ("cli", "__main__"),
)
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
OWNERS = {
    "click": ("cli", "data_commands", "inspection", "partition_commands", "submit", "sweep_commands"),
    "fsspec": ("mirror",),
    "opacus": ("privacy",),
    "peft": ("models",),
    "pyarrow": ("tables", "codecs", "data"),
    "ray": ("boot", "crew", "pool", "submit", "sweep_pool"),
    "rich": ("cli", "plan_table", "progress", "sweep_view", "watch"),
    "ruamel": ("config",),
    "tensorboard": ("tracking",),
    "transformers": ("models",),
    "wandb": ("tracking",),
}


def imports() -> Iterator[tuple[Path, str, str]]:
    """File, its place in the picture (`simfl/codecs/nf4.py` is `codecs`), a module it imports; not those for types."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        guarded = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ]
        types_alone = {id(node) for guard in guarded for node in ast.walk(guard)}
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"simfl.{a.name}" for a in node.names] if node.module == "simfl" else [node.module or ""]
            for name in names if id(node) not in types_alone else ():
                yield path, path.relative_to(ROOT).parts[0].removesuffix(".py"), name


IMPORTS = list(imports())
INSIDE = [(path, here, name.split(".")[1]) for path, here, name in IMPORTS if name.startswith("simfl.")]
INSIDE = [(path, here, there) for path, here, there in INSIDE if there not in (here, "__version__")]


@pytest.mark.parametrize(
    "module", sorted({path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")})
)
def test_every_module_has_a_layer(module: str) -> None:
    assert module in LEVEL


def test_imports_point_down() -> None:
    assert [f"{p.name}: {here} imports {there}" for p, here, there in INSIDE if LEVEL[there] > LEVEL[here]] == []


def test_imports_make_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for _, here, there in INSIDE:
        graph.setdefault(here, set()).add(there)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_shelves_do_not_import_one_another() -> None:
    assert [f"{p.name} imports {there}" for p, here, there in INSIDE if here in SHELVES and there in SHELVES] == []


@pytest.mark.parametrize("library", OWNERS)
def test_an_outside_library_has_one_owner(library: str) -> None:
    users = {here for _, here, name in IMPORTS if name.split(".")[0] == library}
    assert users <= set(OWNERS[library])
