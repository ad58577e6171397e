"""Imports point down only, shelves do not import one another, and each outside library has one owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "simfl"
FILES = sorted(ROOT.rglob("*.py"))

SHELVES = ("algorithms", "codecs", "optimizers", "objectives", "models", "data")
LAYERS = (  # low to high; what stands in one line may import within the line, unless it is a shelf
    ("errors", "seeds", "weights", "ranges", "files", "__init__"),
    ("protocol", "passing", "ledger", "memory", "tables"),
    SHELVES,
    ("shelves", "fields", "experiment", "rules", "catalogue", "config", "progress"),
    ("cohort", "checkpoint", "tracking", "evaluation", "privacy", "roles", "sampling", "setting", "plan"),
    ("pool", "worker"),
    ("simulation", "sweep", "report", "submit"),
    ("cli", "__main__"),
)
OWNERS = {
    "ray": ("pool", "submit"),
    "wandb": ("tracking",),
    "opacus": ("privacy",),
    "transformers": ("models",),
    "peft": ("models",),
    "ruamel": ("config",),
    "pyarrow": ("tables", "data"),
    "click": ("cli",),
    "rich": ("cli", "progress"),
}
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}


def name_of(path: Path) -> str:
    """The file's place in the picture: `simfl/codecs/nf4.py` is `codecs`."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file, except for types alone."""
    tree = ast.parse(path.read_text())
    typing = {
        id(n)
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test)
        for n in ast.walk(i)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in typing:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and id(node) not in typing:
            yield from ([f"simfl.{a.name}" for a in node.names] if node.module == "simfl" else [node.module or ""])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_and_outside_libraries_have_one_owner(path: Path) -> None:
    here = name_of(path)
    assert here in LEVEL, f"{here} has no layer; give it one in tests/test_layers.py"
    for module in imports(path):
        outside, _, inside = module.partition(".")
        there = inside.partition(".")[0]
        if outside != "simfl":
            assert here in OWNERS.get(outside, (here,)), f"{here} imports {outside}, which belongs to {OWNERS[outside]}"
        elif there in LEVEL and there != here:
            assert LEVEL[there] <= LEVEL[here], f"{here} imports {there}, which stands above it"
            assert not (there in SHELVES and here in SHELVES), f"the shelf {here} imports the shelf {there}"
