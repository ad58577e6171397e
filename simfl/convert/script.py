"""A training script as a syntax tree: its statements in order, its calls, and the values that can be known.

Values are literals, names bound to them once, defaults of argparse, attributes of a class or a mapping of settings.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from simfl.errors import ConfigError

UNKNOWN = object()  # a value that only the running script knows
PARSED = ("parse_args", "parse_known_args", "parse_args_into_dataclasses")


@dataclass(frozen=True)
class Call:
    """A call in the script."""

    name: str  # dotted name, with aliases of imports resolved, such as torch.optim.AdamW
    node: ast.Call

    @property
    def last(self) -> str:
        """Return the last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def line(self) -> int:
        """Return the line of the call."""
        return self.node.lineno

    def argument(self, keyword: str, position: int | None = None) -> ast.expr | None:
        """Return the expression of an argument; None if it is not given."""
        for given in self.node.keywords:
            if given.arg == keyword:
                return given.value
        if position is not None and position < len(self.node.args):
            return self.node.args[position]
        return None


@dataclass(frozen=True)
class Script:
    """A training script."""

    path: Path
    tree: ast.Module
    text: str
    _values: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Script:
        """Read a script; ConfigError if it is not Python."""
        try:
            text = path.read_text(encoding="utf-8")
            return Script(path, ast.parse(text), text)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not a text file in UTF-8") from None
        except (SyntaxError, ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            raise ConfigError(f"{path}{f':{line}' if line else ''}: not Python ({error})") from None

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Return the full name of each imported name."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    found[one.asname or one.name.partition(".")[0]] = (
                        one.name if one.asname else one.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                found |= {one.asname or one.name: f"{node.module or ''}.{one.name}" for one in node.names}
        return found

    @cached_property
    def definitions(self) -> dict[str, ast.ClassDef | ast.FunctionDef]:
        """Return the classes and functions of the script by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}

    @cached_property
    def flow(self) -> list[ast.stmt]:
        """Return the statements that run, in order: of the module, its main block, and functions that it calls."""
        return list(self._flow(self.tree.body, ()))

    def _flow(self, body: list[ast.stmt], inside: tuple[str, ...]) -> Iterator[ast.stmt]:
        for node in body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom)):
                continue
            if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
                yield from self._flow(node.body, inside)
            elif (name := self._called_function(node)) and name not in inside:
                yield from self._flow(self.definitions[name].body, (*inside, name))
            else:
                yield node

    def _called_function(self, node: ast.stmt) -> str:
        """Return the function of the script that a statement consists of calling, such as `main()`."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            name = node.value.func.id
            return name if isinstance(self.definitions.get(name), ast.FunctionDef) else ""
        return ""

    @cached_property
    def calls(self) -> list[Call]:
        """Return all calls with a dotted name, in the order of their lines."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        found = [Call(self.name_of(node.func), node) for node in nodes]
        return sorted((call for call in found if call.name), key=lambda call: (call.line, call.node.col_offset))

    def named(self, *names: str) -> list[Call]:
        """Return the calls whose last name is one of these."""
        return [call for call in self.calls if call.last in names]

    def name_of(self, node: ast.AST) -> str:
        """Return the dotted name of an expression, with aliases resolved; empty if it has none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return f".{parts[0]}" if parts else ""
        return ".".join([self.aliases.get(node.id, node.id), *reversed(parts)])

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Return the values of names that are bound once, and of `args.lr`, `Config.lr`, `config["lr"]`."""
        found: dict[str, Any] = {}
        bound: dict[str, int] = {}
        for node in [*(node for node in self.tree.body if isinstance(node, ast.ClassDef)), *self.flow]:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                bound[name] = bound.get(name, 0) + 1
                found |= self._bound(name, node.value, found)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                found |= self._bound(node.target.id, node.value, found)
            elif isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{key}": value for key, value in self._class_constants(node, found).items()}
        found |= self._parser_defaults(found)
        return {name: value for name, value in found.items() if bound.get(name, 1) == 1}

    def _bound(self, name: str, node: ast.expr, known: dict[str, Any]) -> dict[str, Any]:
        value = self._value(node, known)
        if isinstance(value, dict):
            return {name: value} | {f"{name}.{key}": one for key, one in value.items()}
        if value is not UNKNOWN:
            return {name: value}
        if isinstance(node, ast.Call):  # an instance of a class of settings, or the result of a parser
            kind = self.name_of(node.func)
            start = f"{kind}."
            return {f"{name}.{key.removeprefix(start)}": one for key, one in known.items() if key.startswith(start)}
        return {}

    def _class_constants(self, node: ast.ClassDef, known: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for line in node.body:
            target = (
                line.target
                if isinstance(line, ast.AnnAssign)
                else line.targets[0]
                if isinstance(line, ast.Assign)
                else None
            )
            value = getattr(line, "value", None)
            if isinstance(target, ast.Name) and value is not None:
                found[target.id] = self._value(value, known)
        return {name: value for name, value in found.items() if value is not UNKNOWN}

    def _parser_defaults(self, known: dict[str, Any]) -> dict[str, Any]:
        """Return the defaults of argparse by the name of the result, such as `args.lr`."""
        results = [
            target.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute) and node.value.func.attr in PARSED
            for target in node.targets if isinstance(target, ast.Name)
        ]  # fmt: skip
        found = {}
        for call in self.named("add_argument"):
            option = next(
                (self._value(arg, known) for arg in call.node.args if str(self._value(arg, known)).startswith("--")),
                None,
            )
            option = option or next((self._value(arg, known) for arg in call.node.args), None)
            default = call.argument("default")
            action = call.argument("action")
            value = (
                False if action is not None and default is None else self._value(default, known) if default else UNKNOWN
            )
            if isinstance(option, str) and value is not UNKNOWN:
                for result in results or ["args"]:
                    found[f"{result}.{option.lstrip('-').replace('-', '_')}"] = value
        return found

    def value(self, node: ast.AST | None) -> Any:
        """Return the value of an expression, or UNKNOWN."""
        return UNKNOWN if node is None else self._value(node, self.constants)

    def _value(self, node: ast.AST, known: dict[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Name, ast.Attribute)):
            return known.get(ast.unparse(node), UNKNOWN)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            items = [self._value(one, known) for one in node.elts]
            return UNKNOWN if any(one is UNKNOWN for one in items) else items
        if isinstance(node, ast.Dict):
            pairs = [
                (self._value(k, known) if k else UNKNOWN, self._value(v, known))
                for k, v in zip(node.keys, node.values, strict=True)
            ]
            return UNKNOWN if any(UNKNOWN in (k, v) for k, v in pairs) else dict(pairs)
        if isinstance(node, ast.Subscript):
            whole, key = self._value(node.value, known), self._value(node.slice, known)
            return whole.get(key, UNKNOWN) if isinstance(whole, dict) and isinstance(key, str) else UNKNOWN
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
            pairs = [(one.arg, self._value(one.value, known)) for one in node.keywords]
            return UNKNOWN if any(v is UNKNOWN or k is None for k, v in pairs) else dict(pairs)
        return self._computed(node, known)

    def _computed(self, node: ast.AST, known: dict[str, Any]) -> Any:
        """Return the value of a sign, a sum, a product, a quotient or a power of known numbers."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, known)
            return -value if isinstance(value, (int, float)) else UNKNOWN
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left, known), self._value(node.right, known)
            if all(isinstance(one, (int, float)) for one in (left, right)) and abs(right) < 1e6 and abs(left) < 1e12:
                operations: dict[type, Any] = {
                    ast.Add: lambda: left + right, ast.Sub: lambda: left - right, ast.Mult: lambda: left * right,
                    ast.Div: lambda: left / right if right else UNKNOWN,
                    ast.FloorDiv: lambda: left // right if right else UNKNOWN,
                    ast.Pow: lambda: left**right if abs(right) < 64 else UNKNOWN,
                }  # fmt: skip
                return operations.get(type(node.op), lambda: UNKNOWN)()
        return UNKNOWN

    def assigned(self, name: str) -> list[ast.Assign]:
        """Return the assignments to a name, in the order of the statements."""
        return [
            node
            for node in self.flow
            if isinstance(node, ast.Assign)
            and any(
                isinstance(leaf, ast.Name) and leaf.id == name for target in node.targets for leaf in ast.walk(target)
            )
        ]

    def with_values(self, node: ast.stmt) -> ast.stmt:
        """Return a copy of a statement in which `args.lr` and its like are their values."""
        return ast.fix_missing_locations(_Inserted(self.constants).visit(copy.deepcopy(node)))


class _Inserted(ast.NodeTransformer):
    """Replaces known attributes of settings by their values."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace an attribute such as `args.lr`."""
        value = self.known.get(ast.unparse(node), UNKNOWN)
        is_read = isinstance(node.ctx, ast.Load)
        return (
            ast.Constant(value) if is_read and isinstance(value, (bool, int, float, str)) else self.generic_visit(node)
        )
