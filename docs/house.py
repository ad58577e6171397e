"""Measure the structure of the package: `python docs/house.py [--root DIR] [--trace] [--json FILE] [--against FILE]`.

The static counts need only the standard library and read the code without importing it. `--trace` imports simfl from
the root, runs a small FedAvg experiment in this process and follows the calls of one round. Nothing here depends on the
name of a module, so that trees with different module names can be compared: save one with `--json before.json`, then
measure the other with `--against before.json`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import statistics
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "simfl"
SMALL_FILE = 60  # lines; shorter files are counted
MANY_PARAMETERS = 8  # functions with more are listed
KERNEL_FILES = ("_kernel.py", "_kernels.py")
FORBIDDEN_OPENINGS = ("What", "Of", "Whether", "How", "Where", "Who", "After", "With")
HOMELY_WORDS = (
    "beside",
    "anew",
    "nobody",
    "everybody",
    "is said",
    "is told",
    "goes on",
    "lies in",
    "by itself",
    "as it is",
    "by and by",
    "at hand",
)
OLD_WORDS = {  # of an experiment, in trees that have the package `simfl.cohort`
    "execution": "cohort",
    "mode": "way",
    "sequential": "loop",
    "vectorized": "batch",
    "hidden_sizes": "widths",
}
PROSE_TOKENS = ("COMMENT", "STRING", "FSTRING_MIDDLE")  # the last one exists since Python 3.12

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Value = int | float | str | list[str]
Report = dict[str, dict[str, Value]]  # section, row, value


@dataclass(frozen=True)
class Module:
    """One source file of the package."""

    name: str  # dotted; of an `__init__.py`, the name of its package
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        """Tell a package from a plain module."""
        return self.path.name == "__init__.py"

    @property
    def holds_kernels(self) -> bool:
        """Recognise GPU kernels, whose long parameter lists are dictated by their launchers."""
        return self.path.name.endswith(KERNEL_FILES) or imports_library(self, "triton")

    @property
    def length(self) -> int:
        """Count the lines of the file."""
        return len(self.text.splitlines())


def read_modules(root: Path) -> list[Module]:
    """Parse every Python file of the package below `root`."""
    modules = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        modules.append(Module(name, path, text, ast.parse(text)))
    if not modules:
        raise SystemExit(f"{root} contains no package {PACKAGE}")
    return modules


def measure(modules: Sequence[Module]) -> Report:
    """Take all static counts."""
    return {
        "size": measure_size(modules),
        "functions": measure_functions(modules),
        "imports": measure_imports(modules),
        "docstrings": measure_docstrings(modules),
        "docstrings by opening word, %": measure_openings(modules),
        "types": measure_types(modules),
        "homely words in docstrings, comments and strings": measure_words(modules),
    }


# Size and functions


def measure_size(modules: Sequence[Module]) -> dict[str, Value]:
    """Count files, lines, packages and class names that several modules define."""
    lengths = [module.length for module in modules]
    return {
        "files": len(modules),
        "packages": sum(module.is_package for module in modules),
        "lines": sum(lengths),
        f"files under {SMALL_FILE} lines": sum(length < SMALL_FILE for length in lengths),
        "repeated class names": repeated_classes(modules),
    }


def repeated_classes(modules: Sequence[Module]) -> list[str]:
    """List the names of top-level classes that more than one module defines, with these modules."""
    owners = defaultdict(list)
    for module in modules:
        for name in {node.name for node in module.tree.body if isinstance(node, ast.ClassDef)}:
            owners[name].append(module.name)
    return [f"{name}: {', '.join(found)}" for name, found in sorted(owners.items()) if len(found) > 1]


def measure_functions(modules: Sequence[Module]) -> dict[str, Value]:
    """Measure the lengths and the parameter lists of all functions, methods and nested functions."""
    found = [(module, name, function) for module in modules for name, function in functions(module)]
    lengths = [(function_length(function), name) for _, name, function in found]
    parameters = [(count_parameters(function), name) for _, name, function in found]
    ordinary = [(count_parameters(function), name) for module, name, function in found if not module.holds_kernels]
    many = sorted(((count, name) for count, name in ordinary if count > MANY_PARAMETERS), key=lambda one: -one[0])
    return {
        "functions": len(found),
        "length, median": statistics.median(length for length, _ in lengths),
        "length, 90th percentile": statistics.quantiles([length for length, _ in lengths], method="inclusive", n=10)[
            -1
        ],
        **largest("length, longest", lengths),
        **largest("parameters, most", parameters),
        **largest("parameters, most outside kernels", ordinary),
        f"more than {MANY_PARAMETERS} parameters": [f"{name}: {count}" for count, name in many],
    }


def largest(label: str, counts: Iterable[tuple[int, str]]) -> dict[str, Value]:
    """Name the first of the largest counts in two rows of a report."""
    count, name = max(counts, key=lambda one: one[0])
    return {label: count, f"{label}: name": name}


def functions(module: Module) -> Iterator[tuple[str, Function]]:
    """Yield every function of a module with its qualified name, such as `simfl.api:run`."""
    for name, node in definitions(module.tree):
        if not isinstance(node, ast.ClassDef):
            yield f"{module.name}:{name}", node


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield every class and function below a node, with the name that Python gives it in `__qualname__`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            name = prefix + child.name
            yield name, child
            inner = f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>."
            yield from definitions(child, inner)
        else:
            yield from definitions(child, prefix)


def function_length(function: Function) -> int:
    """Count the lines of a function from `def` to its end, without its docstring."""
    docstring = 0 if ast.get_docstring(function) is None else line_count(function.body[0])
    return line_count(function) - docstring


def line_count(node: ast.stmt) -> int:
    """Count the lines of a statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def count_parameters(function: Function) -> int:
    """Count the parameters of a function without `self` and `cls`."""
    given = function.args
    positional = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    receiver = positional[:1] in (["self"], ["cls"])
    variable = (given.vararg is not None) + (given.kwarg is not None)
    return len(positional) - receiver + len(given.kwonlyargs) + variable


# Imports


def measure_imports(modules: Sequence[Module]) -> dict[str, Value]:
    """Measure how modules of the package import one another, wherever in a file the import stands."""
    names = [module.name for module in modules]
    imported = [imported_modules(module, set(names)) for module in modules]
    importers = Counter(name for found in imported for name in found)
    fan_in = [(importers[name], name) for name in names]
    fan_out = [(len(found), name) for name, found in zip(names, imported, strict=True)]
    return {
        "fan-in, median": statistics.median(count for count, _ in fan_in),
        **largest("fan-in, most", fan_in),
        "fan-out, median": statistics.median(count for count, _ in fan_out),
        **largest("fan-out, most", fan_out),
        "blocks `if TYPE_CHECKING`": sum(is_type_checking(node) for node in all_nodes(modules)),
        "files that import ray": [module.name for module in modules if imports_library(module, "ray")],
    }


def imported_modules(module: Module, names: set[str]) -> set[str]:
    """Resolve the imports of a module to other modules of the package, named by `names`."""
    return {owning_module(target, names) for target in import_targets(module)} - {"", module.name}


def owning_module(target: str, names: set[str]) -> str:
    """Shorten a dotted name until it is a module: `simfl.codecs.nf4.Nf4` belongs to `simfl.codecs.nf4`."""
    while target and target not in names:
        target = target.rpartition(".")[0]
    return target


def import_targets(module: Module) -> Iterator[str]:
    """Yield the absolute dotted name of everything that a module imports."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = absolute_source(module, node)
            yield from (f"{source}.{alias.name}" for alias in node.names)


def absolute_source(module: Module, node: ast.ImportFrom) -> str:
    """Resolve the module of a `from … import`, which may be relative."""
    source = [node.module] if node.module else []
    if node.level == 0:
        return ".".join(source)
    parts = module.name.split(".")
    kept = len(parts) - node.level + module.is_package
    return ".".join([*parts[:kept], *source])


def imports_library(module: Module, library: str) -> bool:
    """Look for an import of an outside library anywhere in a module."""
    return any(target.split(".")[0] == library for target in import_targets(module))


def is_type_checking(node: ast.AST) -> bool:
    """Recognise `if TYPE_CHECKING:` and `if typing.TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and named(node.test) == "TYPE_CHECKING"


def named(node: ast.AST | None) -> str | None:
    """Return the name that an expression ends with: `Any` of both `Any` and `typing.Any`."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def all_nodes(modules: Iterable[Module]) -> Iterator[ast.AST]:
    """Yield every syntax node of the package."""
    for module in modules:
        yield from ast.walk(module.tree)


# Docstrings and words


def measure_docstrings(modules: Sequence[Module]) -> dict[str, Value]:
    """Count docstrings, and the public classes, functions and methods that have none."""
    missing = [
        f"{module.name}:{name}"
        for module in modules
        for name, node in definitions(module.tree)
        if is_public(name) and ast.get_docstring(node) is None
    ]
    return {"docstrings": len(docstrings(modules)), "public names without a docstring": len(missing)}


def is_public(qualified_name: str) -> bool:
    """Tell names that can be reached without an underscore; names inside functions cannot be reached at all."""
    return not any(part.startswith(("_", "<")) for part in qualified_name.split("."))


def docstrings(modules: Iterable[Module]) -> list[str]:
    """Collect the docstrings of all modules, classes and functions."""
    owners = (node for node in all_nodes(modules) if isinstance(node, ast.Module | Definition))
    return [text for owner in owners if (text := ast.get_docstring(owner))]


def measure_openings(modules: Sequence[Module]) -> dict[str, Value]:
    """Measure the share of docstrings that open with each forbidden word, in percent."""
    texts = docstrings(modules)
    openings = Counter(re.split(r"\W", text, maxsplit=1)[0] for text in texts)
    shares = {word: round(100 * openings[word] / len(texts), 2) for word in FORBIDDEN_OPENINGS}
    together = sum(openings[word] for word in FORBIDDEN_OPENINGS)
    return {**shares, "any of these": round(100 * together / len(texts), 2)}


def measure_words(modules: Sequence[Module]) -> dict[str, Value]:
    """Count homely words in everything that is written for readers."""
    text = "\n".join(prose for module in modules for prose in prose_of(module.text))
    patterns = {word: r"\b" + r"\s+".join(word.split()) + r"\b" for word in HOMELY_WORDS}
    counts = {word: len(re.findall(pattern, text, re.IGNORECASE)) for word, pattern in patterns.items()}
    return {**counts, "together": sum(counts.values())}


def prose_of(source: str) -> Iterator[str]:
    """Yield the comments and strings, docstrings among them, of a source file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if tokenize.tok_name[token.type] in PROSE_TOKENS:
            yield token.string


# Types


def measure_types(modules: Sequence[Module]) -> dict[str, Value]:
    """Count the places where a type says nothing."""
    inside = (node for annotation in annotation_nodes(modules) for node in ast.walk(annotation))
    return {
        "`Any` in annotations": sum(named(node) == "Any" for node in inside),
        "`dict[str, Any]`": sum(is_dict_of_any(node) for node in all_nodes(modules)),
    }


def annotation_nodes(modules: Iterable[Module]) -> Iterator[ast.expr]:
    """Yield the annotations of parameters, results and variables."""
    for node in all_nodes(modules):
        annotation = node.returns if isinstance(node, Function) else getattr(node, "annotation", None)
        if annotation is not None:
            yield annotation


def is_dict_of_any(node: ast.AST) -> bool:
    """Recognise the type `dict[str, Any]`, in an annotation or elsewhere."""
    if not isinstance(node, ast.Subscript) or named(node.value) != "dict" or not isinstance(node.slice, ast.Tuple):
        return False
    return [named(part) for part in node.slice.elts] == ["str", "Any"]


# The path of one round


@dataclass
class RoundTrace:
    """A profile function for `sys.setprofile` that follows the calls of one round in the calling thread.

    A round reaches from one call of the algorithm's `aggregate` to the next. The first such interval is recorded: it
    contains the end of one round and all of the next round up to its aggregation.
    """

    folder: str  # of the package; frames outside are ignored
    aggregations: int = 0
    hops: int = 0
    codec_depth: int = 0
    files: set[str] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record a call if it belongs to the round."""
        if event != "call" or not self.is_inside(frame):
            return
        if frame.f_code.co_name == "aggregate" and has_receiver(frame, "Algorithm"):
            self.aggregations += 1
        if self.aggregations == 1:
            self.record(frame)

    def is_inside(self, frame: FrameType) -> bool:
        """Recognise a frame of the package."""
        return frame.f_code.co_filename.startswith(self.folder)

    def record(self, frame: FrameType) -> None:
        """Count the file, the hop from the caller's file, and the frames above an encoding."""
        file, caller = frame.f_code.co_filename, frame.f_back
        self.files.add(file)
        if caller is not None and self.is_inside(caller) and caller.f_code.co_filename != file:
            self.hops += 1
        if frame.f_code.co_name.startswith("encode") and has_receiver(frame, "Codec"):
            self.codec_depth = max(self.codec_depth, sum(map(self.is_inside, callers(frame))))

    def report(self) -> dict[str, Value]:
        """Return the rows of a report."""
        if self.aggregations < 2:
            raise SystemExit("the traced run did not call Algorithm.aggregate twice")
        if not self.codec_depth:
            raise SystemExit("the traced round did not call a method of Codec whose name begins with encode")
        return {
            "files crossed": len(self.files),
            "hops between files": self.hops,
            "frames above a codec": self.codec_depth,
        }


def has_receiver(frame: FrameType, class_name: str) -> bool:
    """Recognise a method call on an instance of a class, known by its name, or of a subclass."""
    return any(kind.__name__ == class_name for kind in type(frame.f_locals.get("self")).__mro__)


def callers(frame: FrameType) -> Iterator[FrameType]:
    """Yield the frames above a call, from its caller up to the start of the program."""
    caller = frame.f_back
    while caller is not None:
        yield caller
        caller = caller.f_back


def trace_round(root: Path) -> dict[str, Value]:
    """Run a small experiment with the package below `root` and trace one round of it."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the same path on every machine
    sys.path.insert(0, str(root))
    import simfl

    folder = Path(simfl.__file__).parent
    if not folder.samefile(root / PACKAGE):
        raise SystemExit(f"{PACKAGE} was imported from elsewhere, not from the given root")
    trace = RoundTrace(f"{folder}{os.sep}")
    no_terminal = contextlib.redirect_stderr(io.StringIO())  # in a terminal the run would also draw its progress
    with tempfile.TemporaryDirectory() as temporary, no_terminal:
        os.environ["SIMFL_CACHE"] = str(Path(temporary) / "cache")
        sys.setprofile(trace)
        try:
            simfl.run(experiment(root), out=Path(temporary) / "run", backend="inline")
        finally:
            sys.setprofile(None)
    return trace.report()


def experiment(root: Path) -> dict[str, Any]:
    """Describe FedAvg with two clients a round, one after the other, and a codec that really encodes."""
    given = {
        "name": "traced",
        "data": {"name": "prototypes", "examples": 400, "classes": 4, "shape": [16]},
        "partition": {"by": "iid", "clients": 8},
        "model": {"name": "mlp", "hidden_sizes": [16]},
        "execution": {"mode": "sequential"},
        "phases": [
            {
                "objective": "classification",
                "algorithm": "fedavg",
                "rounds": 3,
                "clients_per_round": 2,
                "local": {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 16},
                "codec": {"upload": "int8"},
            }
        ],
    }
    return translated(given) if (root / PACKAGE / "cohort").is_dir() else given


def translated(value: Any) -> Any:
    """Replace the words of an experiment, keys as well as values, by those of older trees."""
    if isinstance(value, dict):
        return {OLD_WORDS.get(key, key): translated(part) for key, part in value.items()}
    if isinstance(value, list):
        return [translated(part) for part in value]
    return OLD_WORDS.get(value, value) if isinstance(value, str) else value


# Printing


def table(columns: Mapping[str, Report]) -> str:
    """Lay out reports side by side, a column for each; lists are shown by their lengths."""
    lines = []
    sections = dict.fromkeys(section for report in columns.values() for section in report)
    for section in sections:
        lines.append([section, *columns])
        found = [report.get(section, {}) for report in columns.values()]
        rows = dict.fromkeys(row for part in found for row in part)
        lines += [[f"  {row}", *(shown(part.get(row)) for part in found)] for row in rows]
    return aligned(lines)


def shown(value: Value | None) -> str:
    """Format one cell."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return str(len(value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else value


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Pad cells to columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def lists(report: Report) -> str:
    """Write out the lists of a report, which the table only counts."""
    parts = []
    for section in report.values():
        for row, value in section.items():
            if isinstance(value, list) and value:
                parts.append("\n".join([f"{row}:", *(f"  {item}" for item in value)]))
    return "\n\n".join(parts)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the structure of the package.")
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent, help="the tree to measure")
    parser.add_argument("--trace", action="store_true", help="also run an experiment and trace one round of it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the report")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with a saved report")
    return parser.parse_args()


def main() -> None:
    """Measure a tree and print the report."""
    given = arguments()
    root = given.root.resolve()
    report = measure(read_modules(root))
    if given.trace:
        report["one round of FedAvg"] = trace_round(root)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    columns = {"value": report}
    if given.against:
        columns = {"before": json.loads(given.against.read_text(encoding="utf-8")), "after": report}
    print(table(columns), lists(report), sep="\n\n")


if __name__ == "__main__":
    main()
