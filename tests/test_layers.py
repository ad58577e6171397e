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
    ("__init__", "errors", "cache", "ranges", "files", "seeds", "timing", "likeness"),
    ("given", "chance", "weights", "passing", "shelf"),
    ("protocol", "ledger", "memory"),
    SHELVES,
    ("experiment", "config"),
    ("privacy", "roles", "sampling", "cohort", "setting", "evaluation"),
    ("following",),
    ("runs",),
    ("plans",),
    ("engine", "simulation", "api"),
    ("debug", "comparison"),
    ("sweeps",),
    ("reports",),
    ("submit",),
    ("commands",),
    ("cli", "__main__"),
)
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
OWNERS = {  # an outside library, and the modules or packages that may import it
    "click": ("cli", "commands"),
    "fsspec": ("runs.mirror",),
    "opacus": ("privacy",),
    "peft": ("models",),
    "pynvml": ("engine.gauge",),
    "rapidfuzz": ("likeness",),
    "pyarrow": ("runs.tables", "codecs", "data"),
    "ray": (
        "engine.boot",
        "engine.crew",
        "engine.head",
        "engine.hosted",
        "engine.lean",
        "engine.nursery",
        "engine.pool",
        "sweeps.pool",
        "submit.ray_job",
    ),
    "rich": ("cli", "following.progress", "following.watch", "plans.table", "sweeps.view"),
    "ruamel": ("config",),
    "tensorboard": ("following.tracking",),
    "transformers": ("models",),
    "wandb": ("following.tracking", "following.workspace"),
    "wandb_workspaces": ("following.workspace",),
}


def imports() -> Iterator[tuple[str, str]]:
    """A module of simfl (`codecs.nf4`; of a package itself, its name) and what it imports; not what is for types."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        guarded = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ]
        types_alone = {id(node) for guard in guarded for node in ast.walk(guard)}
        here = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simfl"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names if id(node) not in types_alone else ():
                yield here.removesuffix(".__init__") if here != "__init__" else here, name


IMPORTS = list(imports())
MODULES = {here for here, _ in IMPORTS} | {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in ROOT.rglob("*.py")
}


def named(name: str) -> str:
    """The module of simfl that an import asks for: `simfl.codecs.nf4.Nf4` is of `codecs.nf4`."""
    inside = name.removeprefix("simfl.")
    while inside not in MODULES and "." in inside:
        inside = inside.rpartition(".")[0]
    return inside if inside in MODULES else "__init__"


INSIDE = [(here, named(name)) for here, name in IMPORTS if name.split(".")[0] == "simfl"]
INSIDE = [(here, there) for here, there in INSIDE if there not in (here, "__init__")]


def top(module: str) -> str:
    """The module or package directly in simfl."""
    return module.split(".")[0]


@pytest.mark.parametrize("module", sorted({top(module) for module in MODULES}))
def test_every_module_has_a_layer(module: str) -> None:
    assert module in LEVEL


def test_every_layer_is_of_a_module() -> None:
    assert sorted(LEVEL) == sorted({top(module) for module in MODULES})


def test_imports_point_down() -> None:
    assert [f"{a} imports {b}" for a, b in INSIDE if LEVEL[top(b)] > LEVEL[top(a)]] == []


def test_packages_and_top_modules_import_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for here, there in INSIDE:
        if top(here) != top(there):
            graph.setdefault(top(here), set()).add(top(there))
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_modules_import_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for here, there in INSIDE:
        graph.setdefault(here, set()).add(there)
    TopologicalSorter(graph).prepare()


def test_shelves_do_not_import_one_another() -> None:
    shelves = [(a, b) for a, b in INSIDE if top(a) in SHELVES and top(b) in SHELVES]
    assert [f"{a} imports {b}" for a, b in shelves if top(a) != top(b)] == []


@pytest.mark.parametrize("library", OWNERS)
def test_an_outside_library_has_one_owner(library: str) -> None:
    users = {here for here, name in IMPORTS if name.split(".")[0] == library}
    assert [user for user in users if not f"{user}.".startswith(tuple(f"{owner}." for owner in OWNERS[library]))] == []


def test_few_things_stand_on_top() -> None:
    """What a newcomer meets first has room for what is read first."""
    assert len(list(ROOT.glob("*.py"))) <= 25
