"""All keys of an experiment file, and the place of a key that was given at another level.

`lr` is found at `phases[].local.learning_rate`, `momentum` among the settings of local optimizers.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Union, get_args, get_origin, get_type_hints

from simfl.config.registries import REGISTRIES, RegistrySpec, registry_of
from simfl.errors import closest, nearest
from simfl.experiment import Experiment
from simfl.models.peft_rules import peft_hint
from simfl.optimizers.local import LOCAL_OPTIMIZERS, LocalOptimizer

OTHER_NAMES = {  # names that other libraries use -> simfl's key
    "alpha": "partition.alpha",
    "batch": "phases[].local.batch_size",
    "bs": "phases[].local.batch_size",
    "client_fraction": "phases[].participation",
    "clip_grad_norm": "phases[].local.clip_norm",
    "max_grad_norm": "phases[].local.clip_norm",
    "compression": "phases[].codec",
    "dataset": "data",
    "dp": "privacy",
    "eta": "phases[].local.learning_rate",
    "fraction_fit": "phases[].participation",
    "fraction": "phases[].participation",
    "gradient_checkpointing": "model.checkpointing",
    "local_epochs": "phases[].local.epochs",
    "local_steps": "phases[].local.steps",
    "lora": "model.adapters",
    "loss": "phases[].objective",
    "lr": "phases[].local.learning_rate",
    "max_steps": "phases[].local.steps",
    "num_clients": "partition.clients",
    "num_epochs": "phases[].local.epochs",
    "num_rounds": "phases[].rounds",
    "num_train_epochs": "phases[].local.epochs",
    "peft": "model.adapters",
    "per_device_train_batch_size": "phases[].local.batch_size",
    "quantization": "phases[].codec",
    "rank": "model.adapters.rank",
    "r": "model.adapters.rank",
    "server_lr": "phases[].server.learning_rate",
    "strategy": "phases[].algorithm",
    "task": "phases[].objective",
    "wd": "phases[].local.optimizer.weight_decay",
}
PREFERRED = ("phases[].local.", "phases[].", "partition.", "model.", "data.", "")  # among equal names, in this order


@dataclass(frozen=True)
class Key:
    """A key of an experiment file: a field of a section, or a setting of a component."""

    path: str  # such as phases[].local.learning_rate; settings of components are below the key of the component
    owner: type | str  # dataclass with the field, or the name of an optimizer of torch
    component: str = ""  # name of the component that has the setting; empty: a key of every experiment

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.rpartition(".")[2]


@cache
def section_keys() -> tuple[Key, ...]:
    """Return the keys that every experiment has."""
    return tuple(Key(path, owner) for path, owner, _ in _walk(Experiment, ""))


@cache
def component_keys() -> tuple[Key, ...]:
    """Return the settings of all components at all keys that take them; this imports every component."""
    found: list[Key] = []
    for path, _, hint in _walk(Experiment, ""):
        for option in _options(hint):
            if option is LocalOptimizer:
                found += [
                    Key(f"{path}.{setting}", name, name)
                    for name in LOCAL_OPTIMIZERS
                    for setting in LocalOptimizer(name).allowed_settings()
                ]
            elif isinstance(option, type) and (registry := registry_of(option)):
                found += [
                    Key(f"{path}.{field.name}", component, name)
                    for name, component in registry.components.items()
                    for field in fields(component)
                    if field.name != registry.key
                ]
    return tuple(found)


def _walk(section: type, path: str) -> Iterator[tuple[str, type, object]]:
    """Yield path, owner and type of each key below a section."""
    hints = get_type_hints(section, include_extras=True)
    for field in fields(section):
        here = f"{path}.{field.name}".lstrip(".")
        yield here, section, hints[field.name]
        for suffix, inner in _nested(hints[field.name]):
            yield from _walk(inner, here + suffix)


def _nested(hint: object, suffix: str = "") -> Iterator[tuple[str, type]]:
    """Yield the sections in a type: entries of a list with `[]`, values of a mapping with `.NAME`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for one in arguments:
            yield from _nested(one, suffix)
    elif origin is tuple:
        yield from _nested(arguments[0], f"{suffix}[]")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from _nested(arguments[1], f"{suffix}.NAME")
    elif isinstance(hint, type) and is_dataclass(hint) and hint is not LocalOptimizer and not registry_of(hint):
        yield suffix, hint


def _options(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def written_path(path: str) -> str:
    """Return a path as `--set` takes it, with the first phase."""
    return path.replace("[]", ".0")


def hint_for(key: str, known: Iterable[str]) -> str:
    """Return a hint for a key that its level does not have: the key that may be meant, here or at another level.

    Args:
        key: The key that was given.
        known: The keys of its level.
    """
    known = set(known)
    near = closest(key, known)
    elsewhere = _place_among_sections(key)
    if key.lower() in OTHER_NAMES and key not in known:
        return elsewhere or _place_among_settings(key) or nearest(key, known)
    if elsewhere and (near is None or near.lower() != key.lower()):
        return elsewhere
    return nearest(key, known) if near is not None else _place_among_settings(key) or nearest(key, known)


def _place_among_sections(key: str) -> str:
    known = {one.path for one in section_keys()}
    meant = OTHER_NAMES.get(key.lower(), "")
    if meant in known:
        return f"did you mean {written_path(meant)}?"
    places = sorted((one.path for one in section_keys() if one.name == key), key=_preference)
    if places:
        return f"did you mean {written_path(places[0])}?"
    return ""


def _place_among_settings(key: str) -> str:
    meant = OTHER_NAMES.get(key.lower(), "")
    name = meant.rpartition(".")[2] or key
    settings = sorted((one for one in component_keys() if one.name == name), key=lambda one: _preference(one.path))
    if not settings:
        return ""
    first = next((one for one in settings if one.path == meant), settings[0])
    path, _, setting = first.path.rpartition(".")
    names = list(dict.fromkeys(one.component for one in settings if one.path == first.path))
    where = written_path(path)
    return f"did you mean {where}.{setting}, a setting of {', '.join(names[:3])}{', …' if len(names) > 3 else ''}?"


def _preference(path: str) -> tuple[int, int, str]:
    rank = next(number for number, start in enumerate(PREFERRED) if path.startswith(start))
    return rank, path.count("."), path


def kind_of(name: str, registry: RegistrySpec) -> str:
    """Return a hint for a name that a registry does not have, but another one does; empty for any other name."""
    if registry is REGISTRIES["adapters"] and (hint := peft_hint(name.lower())):
        return hint
    others: dict[str, object] = {kind: spec.components for kind, spec in REGISTRIES.items() if spec is not registry}
    others["optimizers"] = LOCAL_OPTIMIZERS
    for kind, components in others.items():
        assert isinstance(components, Mapping)
        exact = next((one for one in components if one.lower() == name.lower()), None)
        if exact is not None and not closest(name, registry.components):
            return f"{exact!r} is one of {kind}{_taken_at(kind)}"
    return ""


def _taken_at(kind: str) -> str:
    """Return the key that takes components of a kind, as words for a message."""
    base = LocalOptimizer if kind == "optimizers" else REGISTRIES[kind].kind
    path = next((path for path, _, hint in _walk(Experiment, "") if base in _options(hint)), "")
    return f", for {written_path(path)}" if path else ""
