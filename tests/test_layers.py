"""Imports point down, registries do not import one another, and each outside library has one owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "simfl"
REGISTRIES = ("algorithms", "codecs", "data", "factorizations", "models", "objectives", "optimizers")
LAYERS = (  # low to high; modules of one line may import one another, unless they are registries
    (
        "__init__",
        "errors",
        "constraints",
        "files",
        "formatting",
        "seeds",
        "timing",
        "metrics",
        "images",
        "imports",
        "json_files",
        "registry",
        "safe_text",
        "yaml_text",
    ),
    ("generators", "keyed_random", "weights", "low_rank"),
    ("protocol", "client_state", "stacking"),
    REGISTRIES,
    ("virtual_time", "asynchronous"),
    ("experiment", "config"),
    ("privacy", "parameter_groups", "sampling"),
    ("aggregation",),
    ("secure_aggregation",),
    ("transport",),
    ("training",),
    ("run_context", "evaluation"),
    ("runs",),
    ("tracking",),
    ("rounds", "plans"),
    ("autotune",),
    ("runtime",),
    ("session", "simulation", "api"),
    ("debug", "reports"),
    ("audit", "cards"),
    ("sweeps",),
    ("submit",),
    ("contract",),
    ("convert",),
    ("commands",),
    ("cli", "__main__"),
)
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
OWNERS = {  # an outside library, and the modules or packages that may import it
    "accelerate": ("models.placement",),
    "click": ("cli", "commands"),
    "fsspec": ("runs.storage",),
    "opacus": ("privacy",),
    "optuna": ("sweeps.optuna_import",),
    "peft": ("models",),
    "prometheus_client": ("tracking.prometheus",),
    "pynvml": ("runtime.gpu_monitor", "runtime.gpus"),
    "rapidfuzz": ("metrics",),
    "pyarrow": ("runs.tables", "codecs", "contract", "data"),
    "ray": ("runtime.ray", "sweeps.pool", "submit.kuberay_pod", "submit.ray_job", "submit.ray_node"),
    "rich": ("cli", "tracking", "plans.table", "sweeps.board"),
    "ruamel": ("yaml_text",),
    "tensorboard": ("tracking.trackers",),
    "transformers": ("models",),
    "wandb": ("tracking.trackers", "tracking.workspace"),
    "wandb_workspaces": ("tracking.workspace",),
}


def imports() -> Iterator[tuple[str, str]]:
    """Yield each module of simfl (`codecs.nf4`; a package by its own name) with each name that it imports.

    Imports for types alone count too: a circle behind `TYPE_CHECKING` is a circle.
    """
    for path in sorted(ROOT.rglob("*.py")):
        here = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simfl"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                yield here.removesuffix(".__init__") if here != "__init__" else here, name


IMPORTS = list(imports())
MODULES = {here for here, _ in IMPORTS} | {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in ROOT.rglob("*.py")
}


def module_of(name: str) -> str:
    """Return the module of simfl that an import names: `simfl.codecs.nf4.Nf4` is of `codecs.nf4`."""
    inside = name.removeprefix("simfl.")
    while inside not in MODULES and "." in inside:
        inside = inside.rpartition(".")[0]
    return inside if inside in MODULES else "__init__"


INSIDE = [(here, module_of(name)) for here, name in IMPORTS if name.split(".")[0] == "simfl"]
INSIDE = [(here, there) for here, there in INSIDE if there not in (here, "__init__") and here != "__init__"]


def top(module: str) -> str:
    """Return the module or package directly in simfl."""
    return module.split(".")[0]


@pytest.mark.parametrize("module", sorted({top(module) for module in MODULES}))
def test_every_module_has_a_layer(module: str) -> None:
    assert module in LEVEL


def test_every_layer_names_existing_modules() -> None:
    assert sorted(LEVEL) == sorted({top(module) for module in MODULES})


def test_imports_point_down() -> None:
    assert [f"{a} imports {b}" for a, b in INSIDE if LEVEL[top(b)] > LEVEL[top(a)]] == []


def test_packages_import_in_no_circle() -> None:
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


def test_registries_do_not_import_one_another() -> None:
    pairs = [(a, b) for a, b in INSIDE if top(a) in REGISTRIES and top(b) in REGISTRIES]
    assert [f"{a} imports {b}" for a, b in pairs if top(a) != top(b)] == []


@pytest.mark.parametrize("library", OWNERS)
def test_an_outside_library_is_imported_by_its_owners_alone(library: str) -> None:
    users = {here for here, name in IMPORTS if name.split(".")[0] == library}
    assert [user for user in users if not f"{user}.".startswith(tuple(f"{owner}." for owner in OWNERS[library]))] == []


def test_ray_runs_without_faststart() -> None:
    """Only `runtime.ray.cluster` decides whether the optional package `faststart` is used."""
    users = {here for here, there in INSIDE if there.startswith("runtime.ray.faststart")}
    users = {user for user in users if not user.startswith("runtime.ray.faststart")}
    assert users <= {"runtime.ray.cluster", "runtime.ray.worker_group", "runtime.ray.actor"}


def test_the_top_of_the_package_holds_few_modules() -> None:
    assert len(list(ROOT.glob("*.py"))) <= 28


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports each file under its base name, so that a second one of that name is an error."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
