"""A module with the parts of a script that an experiment names: its classes, and functions that build model and data.

A slice holds the statements on which a value depends, found backwards from the statement that makes it. Statements that
train, print or move tensors to a device are in no slice, so that importing the module starts nothing.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable

from simfl.convert.script import Script

MOVES = ("to", "cuda", "cpu", "train", "eval", "print_trainable_parameters", "parallelize")
WRAPPERS = ("DataParallel", "DistributedDataParallel", "compile", "prepare", "DDP", "FSDP")
BUILTINS = frozenset(dir(builtins))


def sliced(script: Script, names: Iterable[str], before: int) -> tuple[list[ast.stmt], set[str]]:
    """Return the statements above a line on which names depend, in order, and the names that none defines."""
    needed, kept = set(names), list[ast.stmt]()
    defined: set[str] = set()
    for node in reversed([one for one in script.flow if one.lineno < before]):
        made = _defines(node)
        if not made & needed or _is_move(node, script):
            continue
        kept.insert(0, _OnCpu().visit(script.with_values(node)))
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _binds(node):
            defined |= made
        needed |= _reads(kept[0]) - set(script.definitions) - set(script.aliases) - BUILTINS
    missing = needed - defined - set(script.definitions) - set(script.aliases) - BUILTINS
    return kept, missing


def _binds(node: ast.Assign | ast.AnnAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(leaf, ast.Name) and isinstance(leaf.ctx, ast.Store) for t in targets for leaf in ast.walk(t))


def _defines(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds or changes."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        base = node.value.func.value
        while isinstance(base, ast.Attribute):
            base = base.value
        return {base.id} if isinstance(base, ast.Name) else set()
    if isinstance(node, ast.For) and _freezes(node):
        return {leaf.id for leaf in ast.walk(node.iter) if isinstance(leaf, ast.Name)}
    if isinstance(node, ast.With):
        return {name for one in node.body for name in _defines(one)}
    return set()


def _freezes(node: ast.For) -> bool:
    """Return whether a loop only changes which parameters are trained."""
    changed = [
        leaf.attr for leaf in ast.walk(node) if isinstance(leaf, ast.Attribute) and isinstance(leaf.ctx, ast.Store)
    ]
    return bool(changed) and set(changed) == {"requires_grad"}


def _is_move(node: ast.stmt, script: Script) -> bool:
    """Return whether a statement only moves or wraps a model."""
    value = getattr(node, "value", None)
    if not isinstance(value, ast.Call):
        return False
    last = script.name_of(value.func).rpartition(".")[2]
    if last in MOVES and isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Name):
        return True
    return last in WRAPPERS


def _reads(node: ast.AST) -> set[str]:
    """Return the names that a node reads, without those that its loops and functions bind."""
    inner = [leaf.target for leaf in ast.walk(node) if isinstance(leaf, (ast.For, ast.comprehension))]
    bound = {leaf.id for target in inner for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    bound |= {leaf.arg for leaf in ast.walk(node) if isinstance(leaf, ast.arg)}
    read = {leaf.id for leaf in ast.walk(node) if isinstance(leaf, ast.Name) and isinstance(leaf.ctx, ast.Load)}
    return read - bound


def without_device(node: ast.expr) -> ast.expr:
    """Return an expression without `.to(device)` and `.cuda()` at its end."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MOVES:
        node = node.func.value
    return node


class _OnCpu(ast.NodeTransformer):
    """Removes `.to(device)` and `.cuda()` from statements."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return (
            without_device(node) if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda") else node
        )


def function_source(name: str, doc: str, body: list[ast.stmt], result: str) -> str:
    """Return the text of a function with a body of statements and a result."""
    lines = [ast.unparse(ast.fix_missing_locations(node)) for node in body]
    indented = "\n".join("    " + line for text in lines for line in text.splitlines())
    return f'def {name}():\n    """{doc}"""\n' + (f"{indented}\n" if indented else "") + f"    return {result}\n"


def module_source(script: Script, functions: list[str]) -> str:
    """Return the text of a module: imports, plain constants and definitions of the script, and further functions."""
    imports = [node for node in script.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    definitions = [node for node in script.tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    used = {leaf.id for node in definitions for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}
    constants = [
        node
        for node in script.tree.body
        if isinstance(node, ast.Assign) and {t.id for t in node.targets if isinstance(t, ast.Name)} & used
        and (ast.unparse(node.targets[0]) in script.constants)
    ]  # fmt: skip
    called = {leaf.id for text in functions for leaf in ast.walk(ast.parse(text)) if isinstance(leaf, ast.Name)}
    wanted = _reachable(script, called)
    parts = sorted([*constants, *definitions], key=lambda node: node.lineno)
    kept = [node for node in parts if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name in wanted]
    body = "\n\n\n".join(ast.get_source_segment(script.text, node) or ast.unparse(node) for node in kept)
    decorated = body if body else ""
    names = {
        leaf.id for text in (*functions, decorated) for leaf in ast.walk(ast.parse(text)) if isinstance(leaf, ast.Name)
    }
    lines = [ast.unparse(node) for node in imports if _provides(node) & names or "__future__" in ast.unparse(node)]
    head = f'"""Parts of {script.path.name}, written by `simfl convert`."""\n'
    return (
        "\n".join([head, *lines])
        + "\n\n\n"
        + "\n\n".join(part.strip() + "\n" for part in (decorated, *functions) if part)
    )


def _provides(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {(one.asname or one.name).partition(".")[0] for one in node.names}


def _reachable(script: Script, names: set[str]) -> set[str]:
    """Return the definitions that names need, directly or through other definitions."""
    found: set[str] = set()
    waiting = [name for name in names if name in script.definitions]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [one for one in _reads(script.definitions[name]) if one in script.definitions]
    return found
