"""Explanations of keys of experiment files and of components, for `simfl explain`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from simfl.config import catalogue
from simfl.config.fields import described, sample_of
from simfl.config.key_index import OTHER_NAMES, Key, component_keys, section_keys, written_path
from simfl.config.registries import REGISTRIES
from simfl.errors import ConfigError, closest
from simfl.yaml_text import in_one_line

MOST = 8  # keys of one name that are explained in full
PAGES = {  # first part of a path -> page of the documentation on its topic
    "data": "docs/reference/data.md",
    "partition": "docs/reference/data.md#partitions",
    "model": "docs/reference/models.md",
    "mentor": "docs/reference/models.md",
    "clients": "docs/explanation/time.md",
    "privacy": "docs/explanation/privacy.md",
    "secure_aggregation": "docs/explanation/secure_aggregation.md",
    "tracking": "docs/how-to/tracking.md",
    "phases[].algorithm": "docs/reference/algorithms.md",
    "phases[].server": "docs/reference/algorithms.md#server-optimizers",
    "phases[].codec": "docs/reference/codecs.md",
    "phases[].time": "docs/explanation/time.md",
    "phases[].asynchronous": "docs/explanation/time.md",
}
KEYS, COMPONENTS = "docs/reference/yaml.md", "docs/reference/components.md"


@dataclass(frozen=True)
class Explanation:
    """Facts about a key of an experiment file, or about a component."""

    name: str  # path of the key, or registry and name of the component
    meaning: str
    type: str  # what the key accepts
    required: bool
    default: object  # plain YAML; None if required
    example: str  # lines of an experiment file, or an option
    documented: tuple[str, ...]  # pages of the documentation
    settings: tuple[str, ...] = ()  # of a component
    owners: tuple[str, ...] = ()  # components that have the setting; empty: every experiment has the key


def explain(name: str) -> list[Explanation]:
    """Explain a key such as `learning_rate` or `phases.0.local.steps`, or a component such as `fedprox`.

    A name with several meanings has several explanations; `fedprox.mu` is a setting of one component.

    Raises:
        ConfigError: There is no such key and no such component.
    """
    path = re.sub(r"\.(\d+|\*)(?=\.|$)", "[]", name)
    component, _, setting = name.partition(".")
    found = [_of_section_key(key) for key in _matching(path, section_keys())] or _of_component_name(path)
    if ":" in name or _is_component(name):
        found += _of_components(name)
    elif setting and _is_component(component):
        keys = [key for key in component_keys() if key.component == component and key.name == setting]
        found += _of_settings(keys)
    if not found:
        found = _of_settings(_matching(path, component_keys()))
    if found:
        return found[:MOST]
    if (meant := OTHER_NAMES.get(name.lower())) is not None:
        return explain(written_path(meant))
    known = {key.name for key in section_keys()}.union(*(spec.components for spec in REGISTRIES.values()))
    near = closest(path.rpartition(".")[2], known)
    hint = f"did you mean {near!r}?" if near else "`simfl list sections` and `simfl list` have all"
    raise ConfigError(f"explain: no key and no component {name!r}; {hint}")


def _matching(path: str, keys: Iterable[Key]) -> list[Key]:
    """Return the keys with this path, or those whose paths end with it."""
    keys = list(keys)
    exact = [key for key in keys if key.path == path]
    return exact or [key for key in keys if key.path.endswith((f".{path}", f"[].{path}"))]


def _of_component_name(path: str) -> list[Explanation]:
    """Explain a key that names a component, such as `partition.by`."""
    parent, _, last = path.rpartition(".")
    found = []
    for key in _matching(parent, section_keys()) if parent else []:
        assert isinstance(key.owner, type)
        hint = catalogue.hints_of(key.owner)[key.name]
        spec = next((spec for spec in REGISTRIES.values() if spec.kind is hint and spec.key == last), None)
        if spec is not None:
            name = next(iter(spec.components))
            found.append(
                Explanation(
                    f"{written_path(key.path)}.{last}", "name of the component", described(hint), True, None,
                    f"--set '{written_path(key.path)}={name}'", (COMPONENTS, *_pages(key.path)),
                )
            )  # fmt: skip
    return found


def _is_component(name: str) -> bool:
    return any(name in catalogue.known(kind) for kind in catalogue.NAMES if kind != "sections")


def _of_section_key(key: Key) -> Explanation:
    assert isinstance(key.owner, type)
    hints, setting = catalogue.hints_of(key.owner), _setting(key)
    example = _example(key.path, setting, sample_of(hints[key.name]))
    section = key.path.rpartition(".")[0]
    anchor = re.sub(r"[^\w -]", "", section.lower()) or "top-level"
    return _explanation(key.path, setting, example, (f"{KEYS}#{anchor}", *_pages(key.path)))


def _of_settings(keys: list[Key]) -> list[Explanation]:
    """Explain settings of components; those of equal path, type, default and meaning are explained once."""
    groups: dict[tuple[object, ...], list[Key]] = {}
    for key in keys:
        setting = _setting(key)
        if key.path.startswith("mentor.") and keys[0].path.startswith("model."):
            continue  # the second model has the settings of the first
        groups.setdefault((key.path, setting.type, repr(setting.default), setting.meaning), []).append(key)
    found = []
    for (path, *_), group in groups.items():
        key, setting = group[0], _setting(group[0])
        owners = tuple(dict.fromkeys(one.component for one in group))
        pages = (COMPONENTS, *_pages(str(path)))
        parent, _, name = str(path).rpartition(".")
        given = setting.default
        if given is None and isinstance(key.owner, type):
            given = sample_of(catalogue.hints_of(key.owner)[key.name])
        example = f"{written_path(parent)}={in_one_line({_name_key(key): key.component, name: given})}"
        found.append(_explanation(str(path), setting, f"--set '{example}'", pages, owners))
    return found


def _name_key(key: Key) -> str:
    if isinstance(key.owner, str):
        return "name"
    owner = key.owner
    return next(spec.key for spec in REGISTRIES.values() if issubclass(owner, spec.kind))


def _of_components(name: str) -> list[Explanation]:
    found = []
    for registry, entries in catalogue.find(name).items():
        for one in entries:
            settings = tuple(
                f"{s.name}: {'required' if s.required else in_one_line(s.default)} ({s.type})"
                + (f"  # {s.meaning}" if s.meaning else "")
                for s in one.settings
            )
            required = {s.name: "…" for s in one.settings if s.required}
            key = REGISTRIES[registry].key if registry in REGISTRIES else "name"
            example = in_one_line({key: one.name, **required}) if required else one.name
            kind = {"optimizers": "local optimizer"}.get(registry, registry)
            found.append(
                Explanation(
                    f"{one.name} ({kind})", one.summary, "component", False, None, example, (COMPONENTS,), settings
                )
            )
    return found


def _setting(key: Key) -> catalogue.ComponentSetting:
    """Return the description of the field that a key sets."""
    entry = catalogue.torch_entry(key.owner) if isinstance(key.owner, str) else catalogue.entry("", key.owner)
    return next(one for one in entry.settings if one.name == key.name)


def _explanation(
    path: str,
    setting: catalogue.ComponentSetting,
    example: str,
    pages: tuple[str, ...],
    owners: tuple[str, ...] = (),
) -> Explanation:
    return Explanation(
        written_path(path), setting.meaning, setting.type, setting.required, setting.default, example, pages, (), owners
    )


def _example(path: str, setting: catalogue.ComponentSetting, sample: object) -> str:
    plain = isinstance(setting.default, (bool, int, float, str)) and setting.default != ""
    return f"--set '{written_path(path)}={in_one_line(setting.default if plain else sample)}'"


def _pages(path: str) -> tuple[str, ...]:
    starts = sorted((start for start in PAGES if path.startswith(start)), key=len)
    return (PAGES[starts[-1]],) if starts else ()
