"""Descriptions of all components and their settings, for `simfl list`.

A setting is described by the comment behind its field in the source, a component by the first line of its docstring.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from typing import get_type_hints

from simfl import experiment
from simfl.config.fields import default, described, without_tensors, written
from simfl.config.registries import REGISTRIES
from simfl.errors import ConfigError, closest, nearest
from simfl.imports import import_object
from simfl.optimizers import LOCAL_OPTIMIZERS, LocalOptimizer
from simfl.virtual_time import profiles


@dataclass(frozen=True)
class ComponentSetting:
    """One field of a component, as it appears in YAML."""

    name: str
    type: str
    required: bool
    default: object  # plain YAML; None if required
    meaning: str


@dataclass(frozen=True)
class Entry:
    """A component, or a section of an experiment file."""

    name: str
    summary: str
    settings: tuple[ComponentSetting, ...]


SECTIONS = (
    "Experiment", "Phase", "Local", "Codecs", "PartCodecs", "Execution", "LedgerRule", "Privacy", "AdaptiveClip",
    "SecureAggregation", "Clients", "Profile", "Device", "Network", "Capacity", "RoundTime",
    "Evaluate", "Checkpoint", "Tracking", "Wandb",
)  # fmt: skip
NAMES = (*sorted([*REGISTRIES, "optimizers"]), "sections")


def find(name: str) -> dict[str, list[Entry]]:
    """Describe a registry, a component of any registry, or a class of the user given as `package.module:Class`.

    Returns:
        The descriptions, by registry.

    Raises:
        ConfigError: There is no such name, or the class belongs to no registry.
    """
    if name in NAMES:
        return {name: entries(name)}
    if ":" in name:
        component = import_object(name, "list")
        for registry, spec in REGISTRIES.items():
            if isinstance(component, type) and issubclass(component, spec.kind):
                return {registry: [entry(name, spec.find(name, "list"), spec.key)]}
        raise ConfigError(f"list: {name!r} is not a class of one of the registries {', '.join(REGISTRIES)}")
    found = {kind: [one for one in entries(kind) if one.name == name] for kind in NAMES if name in known(kind)}
    if not found:
        all_names = {component for kind in NAMES for component in known(kind)}
        hint = (
            nearest(name, all_names) if closest(name, all_names) and not closest(name, NAMES) else nearest(name, NAMES)
        )
        raise ConfigError(f"list: unknown name {name!r}; {hint}")
    return found


def entries(registry: str) -> list[Entry]:
    """Describe a registry; `optimizers` are torch's, and `sections` are the keys of an experiment file."""
    if registry == "optimizers":
        return [torch_entry(name) for name in LOCAL_OPTIMIZERS]
    if registry == "sections":
        return [entry(name.lower(), getattr(experiment, name, None) or getattr(profiles, name)) for name in SECTIONS]
    spec = REGISTRIES[registry]
    return [entry(name, component, spec.key) for name, component in spec.components.items()]


def known(registry: str) -> Iterable[str]:
    """Return the names in a registry, in `optimizers` or in `sections`; this imports no component."""
    if registry == "optimizers":
        return LOCAL_OPTIMIZERS
    return [name.lower() for name in SECTIONS] if registry == "sections" else REGISTRIES[registry].components


def entry(name: str, component: type, key: str = "") -> Entry:
    """Describe a dataclass; the field `key`, which names the component, is left out."""
    hints, meanings = get_type_hints(component, include_extras=True), _meanings(component)
    settings = []
    for field in fields(component):
        value = default(field)
        required = value is MISSING
        plain = None if required else written(value)
        settings.append(
            ComponentSetting(field.name, described(hints[field.name]), required, plain, meanings.get(field.name, ""))
        )
    return Entry(name, _summary(component), tuple(s for s in settings if s.name != key))


def hints_of(component: type) -> dict[str, object]:
    """Return the types of the fields of a dataclass, with their limits."""
    return get_type_hints(component, include_extras=True)


def torch_entry(name: str) -> Entry:
    """Describe a local optimizer of torch."""
    cls = LOCAL_OPTIMIZERS[name]
    hints, parameters = get_type_hints(cls.__init__), inspect.signature(cls).parameters
    settings = tuple(
        ComponentSetting(key, described(without_tensors(hints[key])), False, written(parameters[key].default), "")
        for key in LocalOptimizer(name).allowed_settings()
    )
    return Entry(name, _summary(cls), settings)


def _summary(component: type) -> str:
    return (inspect.getdoc(component) or "").partition("\n")[0]


def _meanings(component: type) -> dict[str, str]:
    found: dict[str, str] = {}
    for cls in reversed(component.__mro__):
        if "__dataclass_fields__" in vars(cls):
            found |= {name: text for name, text in _comments(cls).items() if text or name not in found}
    return found


def _comments(cls: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    statement = ast.parse(source).body[0]
    assert isinstance(statement, ast.ClassDef)
    return {
        line.target.id: " ".join(c for n, c in comments.items() if line.lineno <= n <= (line.end_lineno or 0))
        for line in statement.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
