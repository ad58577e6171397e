"""Pages of the API reference, read from the source: one page for each folder of simfl/, public names alone.

The source is parsed and not imported, so the pages need no library and take a second.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Function = ast.FunctionDef | ast.AsyncFunctionDef
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Examples?|Notes?):$")
START = """# API reference

Written from the docstrings of the source. The Python interface is small:

- [`simfl.run`, `simfl.load`, `simfl.check_data`](simfl.md#simfl-api): run an experiment, read its results, check data.
- [`simfl.Experiment`](simfl.md#simfl-experiment): an experiment file as an object.
- [`simfl.Run`](simfl.runs.md#simfl-runs-results): the results in the folder of a run.
- [`simfl.contract.check`](simfl.contract.md): test a component of your own.

Classes that your own components derive from:

%s

All packages:

%s
"""
INTERFACES = {
    "Algorithm": "simfl.algorithms.base", "Codec": "simfl.codecs.base", "Data": "simfl.data.base",
    "Partitioner": "simfl.data.partition.partitioners", "Model": "simfl.models.base",
    "Adapter": "simfl.models.adapters",
    "Objective": "simfl.objectives.base", "ServerOptimizer": "simfl.optimizers.server",
    "Schedule": "simfl.optimizers.schedules", "Staleness": "simfl.asynchronous.staleness",
    "Availability": "simfl.virtual_time.availability", "Selection": "simfl.virtual_time.selection",
    "Factorization": "simfl.factorizations.base", "Sampler": "simfl.sweeps.samplers", "Pruner": "simfl.sweeps.pruners",
}  # fmt: skip


def pages() -> Iterator[tuple[str, str]]:
    """Return the path and the text of each page."""
    found: dict[str, list[str]] = defaultdict(list)
    summaries = {}
    for path in sorted((ROOT / "simfl").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        package = ".".join(parts[: 2 if len(parts) > 2 else 1])
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if module == package:
            summaries[package] = (ast.get_docstring(tree) or "").partition("\n")[0]
        found[package] += module_lines(module, tree, source=path.read_text(encoding="utf-8").splitlines())
    for package, lines in found.items():
        yield f"reference/api/{package}.md", "\n".join(["---", "orphan: true", "---", f"# {package}", "", *lines])
    interfaces = [
        f"- [`{name}`]({'.'.join(module.split('.')[:2])}.md#{module.replace('.', '-')})"
        for name, module in INTERFACES.items()
    ]
    packages = [f"- [{package}]({package}.md): {summaries[package]}" for package in found]
    yield "reference/api/index.md", START % ("\n".join(interfaces), "\n".join(packages))


def module_lines(module: str, tree: ast.Module, source: list[str]) -> list[str]:
    """Return the text of a module: its docstring, then its public classes and functions."""
    public = [node for node in tree.body if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_")]
    lines = [f"({module.replace('.', '-')})=", f"## {module}", "", *text(tree), ""]
    for node in public:
        lines += class_lines(node, source) if isinstance(node, ast.ClassDef) else function_lines(node)
    return lines


def class_lines(node: ast.ClassDef, source: list[str]) -> list[str]:
    """Return the text of a class: its fields with the comments behind them, and its public methods."""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    lines = [f"### class {node.name}" + (f"({bases})" if bases else ""), "", *text(node), ""]
    attributes = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    shown = [one for one in attributes if not ast.unparse(one.target).startswith("_")]
    if shown:
        lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
        lines += [field_row(one, source) for one in shown] + [""]
    for method in (one for one in node.body if isinstance(one, Function)):
        if not method.name.startswith("_") and ast.get_docstring(method):
            lines += function_lines(method, level="####")
    return lines


def field_row(node: ast.AnnAssign, source: list[str]) -> str:
    """Return the row of a field; its meaning is the comment behind it."""
    comments = (source[number - 1].partition("  # ")[2] for number in range(node.lineno, (node.end_lineno or 0) + 1))
    cells = (
        f"`{ast.unparse(node.target)}`",
        f"`{ast.unparse(node.annotation)}`",
        f"`{ast.unparse(node.value)}`" if node.value else "",
        " ".join(comment for comment in comments if comment and not comment.startswith("type:")),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def function_lines(node: Function, level: str = "###") -> list[str]:
    """Return the text of a function: its signature and its docstring."""
    decorators = [ast.unparse(one) for one in node.decorator_list]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    is_property = any(one.endswith("property") for one in decorators)
    signature = f"{node.name}{'' if is_property else f'({ast.unparse(node.args)})'}{returns}"
    return [f"{level} {node.name}", "", f"`{signature}`", "", *text(node), ""]


def text(node: ast.Module | ast.ClassDef | Function) -> list[str]:
    """Return a docstring as Markdown: its sections as bold words with lists, its indented blocks as code."""
    lines, converted, section = inspect.cleandoc(ast.get_docstring(node) or "").splitlines(), [], False
    block: list[str] = []
    for line in [*lines, ""]:
        if block and line.strip() and not line.startswith("    "):
            converted += ["```text", *block, "```", ""]
            block = []
        if heading := SECTION.match(line):
            section = True
            converted += [f"**{heading[1]}**", ""]
        elif not line.startswith("    "):
            section = section and not line.strip()
            converted.append(escaped(line))
        elif section:
            item = line.strip()
            converted.append(escaped(f"- {item}" if line[4] != " " else f"  {item}"))
        else:
            block.append(line)
    return [*converted, *(["```text", *block, "```"] if block else [])]


def escaped(line: str) -> str:
    """Escape Markdown's emphasis and HTML outside of `code`."""
    pieces = line.split("`")
    return "`".join(
        piece if number % 2 else re.sub(r"([*<_$\[\]])", r"\\\1", piece) for number, piece in enumerate(pieces)
    )
