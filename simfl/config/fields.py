"""Conversion between plain YAML values and typed fields, driven by type hints.

`read` turns a YAML value into a field, `written` does the reverse, and `described` puts a type into words. `read`
raises a ConfigError with one line for each value at fault, which begins with its path. A field whose type is the base
class of a registry accepts the name of a component, or a mapping with its name and settings.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import torch

from simfl.config.key_index import hint_for, kind_of
from simfl.config.registries import RegistrySpec, registry_of
from simfl.constraints import Constraint, FiniteFloat, NonNegativeFloat, NonNegativeInt
from simfl.data.transform import Transform
from simfl.errors import ConfigError, Problems, closest, nearest
from simfl.optimizers.local import LOCAL_OPTIMIZERS, LocalOptimizer
from simfl.safe_text import has_secret, mask_secrets
from simfl.yaml_text import in_one_line

DEFAULT_LIMITS: dict[object, object] = {int: NonNegativeInt, float: NonNegativeFloat}  # if a hint has no limits
IMPLIED = {"of": "own", "rows": "rows"}  # the component of a mapping without a name, by a setting that only it has
RENAMED_KEYS = {  # for error messages only: the old keys are not accepted
    "aliases": "tied_weights",
    "cohort": "execution",
    "exactness": "deterministic",
    "keep": "carry_over",
    "of": "encode",
    "pieces": "data_parallel",
    "places": "positions",
    "pooled": "centralized",
    "private": "personal_params",
    "probe": "autotune",
    "way": "mode",
    "width": "clients_per_batch",
    "widths": "hidden_sizes",
}
RENAMED_VALUES = {
    "batch": "vectorized",
    "delta": "update",
    "fast": "false",
    "generic": "global",
    "last_local": "local",
    "loop": "sequential",
    "paid": "sent",
    "strict": "true",
    "visit": "client_update",
}


def read(hint: object, value: object, path: str) -> Any:
    """Return `value` as the type `hint`, with every part checked; `path` locates it in error messages."""
    if isinstance(value, str) and has_secret(value):  # it would be written to the run folder
        raise ConfigError(
            f"{path}: {mask_secrets(value)} holds a user or a password; use a variable of the environment"
        )
    hint = DEFAULT_LIMITS.get(hint, hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _read_limited(arguments[0], arguments[1], value, path)
    if _is_union(origin):
        return _read_union(hint, value, path)
    if origin is Literal:
        fits = any(value == allowed and type(value) is type(allowed) for allowed in arguments)
        return value if fits else _refuse(hint, value, path)
    if origin is tuple:
        return _read_tuple(hint, value, path)
    if origin is not None and issubclass(origin, Mapping):
        return {key: read(arguments[1], item, _join(path, key)) for key, item in _mapping(value, path).items()}
    if hint in (bool, str):
        return value if isinstance(value, hint) else _refuse(hint, value, path)
    if hint is LocalOptimizer:
        return _read_local_optimizer(value, path)
    if isinstance(hint, type) and (registry := registry_of(hint)):
        return _read_component(registry, value, path)
    if hint is Transform and (isinstance(value, str) or callable(value)):
        value = {"of": value}
    if isinstance(hint, type) and is_dataclass(hint):
        keys = ", ".join(field.name for field in fields(hint))
        return (
            value
            if isinstance(value, hint)
            else build(hint, _mapping(value, path, f"a mapping of keys to values (keys: {keys})", hint), path)
        )
    return value  # `object` and `Any` accept every value


def build(cls: type, given: Mapping[str, object], path: str, name: str = "") -> Any:
    """Build a dataclass from a mapping of its fields; error messages call a component `name`.

    Raises:
        ConfigError: Keys are unknown or missing, or values do not fit; one line for each problem.
    """
    hints, known = _hints(cls), {field.name: field for field in fields(cls)}
    unknown = [key for key in given if key not in known]
    meant = {RENAMED_KEYS.get(key) or closest(key, known) for key in unknown}
    problems = Problems()
    for key in unknown:
        with problems:
            _refuse_key(key, given[key], path, name, known)
    for key, field in known.items():
        if key not in given and key not in meant and default(field) is MISSING:
            problems.add(f"{_join(path, key)}: missing; give {described(hints[key])}")
    with problems:
        _check_defaults({name: field for name, field in known.items() if name not in given}, hints, path)
    values = {}
    for key, value in given.items():
        with problems:
            if key in known:
                values[key] = read(hints[key], value, _join(path, key))
    problems.refuse()
    try:
        return cls(**values)
    except (ConfigError, ValueError) as error:
        where, _, rest = str(error).partition(": ")
        key = where.rpartition(".")[2]  # a component's own check starts with the field: `block: 3 is …`
        if key in known:
            _refuse_renamed(given.get(key), _join(path, key))
        raise ConfigError(f"{_join(path, key)}: {rest}" if key in known else f"{path}: {error}") from error


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a class; a sweep reads each class hundreds of times."""
    return get_type_hints(cls, include_extras=True)


def _check_defaults(omitted: Mapping[str, Field[Any]], hints: Mapping[str, object], path: str) -> None:
    """Refuse a default that its own setting would not accept: a run with it could not be loaded again."""
    for key, field in omitted.items():
        value = default(field)
        if isinstance(value, (int, float)) and hints[key] in DEFAULT_LIMITS:
            try:
                read(hints[key], value, _join(path, key))
            except ConfigError as error:
                raise ConfigError(f"{error}, but it is the default; annotate the field as FiniteFloat") from None


def _read_limited(kind: type, constraint: Constraint, value: object, path: str) -> object:
    accepted = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, accepted) or not _fits(constraint, value):
        raise ConfigError(f"{path}: {shown(value)} is not {constraint.description}")
    return kind(value)


def _fits(constraint: Constraint, value: object) -> bool:
    try:
        return constraint.check(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _read_union(hint: object, value: object, path: str) -> object:
    options = [option for option in get_args(hint) if option is not type(None)]
    if value is None:
        return None if len(options) < len(get_args(hint)) else _refuse(hint, value, path)
    sections = [option for option in options if isinstance(option, type) and is_dataclass(option)]
    if len(options) == 1 or (len(sections) == 1 and isinstance(value, Mapping)):
        return read((sections or options)[0], value, path)
    for option in options:
        try:
            return read(option, value, path)
        except ConfigError:
            continue
    return _refuse(hint, value, path)


def _read_tuple(hint: object, value: object, path: str) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        _refuse(hint, value, path)
    arguments = get_args(hint)
    hints = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
    if len(hints) != len(value):
        _refuse(hint, value, path)
    problems, items = Problems(), []
    for i, (one, item) in enumerate(zip(hints, value, strict=True)):
        with problems:
            items.append(read(one, item, _join(path, i)))
    problems.refuse()
    return tuple(items)


def _mapping(
    value: object, path: str, expected: str = "a mapping of keys to values", section: type | None = None
) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        example = "{KEY: VALUE}" if section is None else in_one_line(example_of(section))
        key = path.rpartition(".")[2] or "experiment"
        such_as = f"{key}: {example}" if not key.isdecimal() else f"- {example}"
        raise ConfigError(f"{path or 'experiment'}: {shown(value)} is not {expected}, such as {such_as}")
    return value


def example_of(section: type, most: int = 2) -> dict[str, object]:
    """Return a mapping that a section accepts: its required keys, and others with their default, as plain YAML."""
    hints, found = _hints(section), dict[str, object]()
    for field in fields(section):
        value = default(field)
        if value is MISSING:
            found[field.name] = sample_of(hints[field.name])
        elif len(found) < most and isinstance(plain := _short(value), (bool, int, float, str)):
            found[field.name] = plain
    return found


def _short(value: object) -> object:
    """Return a component as its name; any other value is unchanged."""
    registry = next((one for base in type(value).__mro__ if (one := registry_of(base))), None)
    return value if registry is None else registry.name_of(type(value))


def sample_of(hint: object) -> object:
    """Return a value that a type accepts, as plain YAML."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        fits = [one for one in (1, 0.5, "text") if isinstance(one, arguments[0])]
        return next((one for one in fits if arguments[1].check(one)), "…")
    if origin is Literal:
        return arguments[0]
    if _is_union(origin):
        return sample_of(next(one for one in arguments if one is not type(None)))
    if origin is tuple:
        return [sample_of(arguments[0])]
    if hint is LocalOptimizer:
        return "sgd"
    if isinstance(hint, type) and (registry := registry_of(hint)):
        return next(iter(registry.components))
    if isinstance(hint, type) and is_dataclass(hint):
        return example_of(hint)
    samples: dict[object, object] = {bool: True, int: 1, float: 0.5, str: "NAME"}
    return samples.get(hint, {"NAME": sample_of(arguments[1])} if len(arguments) == 2 else "package.module:name")


def _read_component(registry: RegistrySpec, value: object, path: str) -> object:
    if isinstance(value, registry.kind):
        return value
    is_class = isinstance(value, type) and issubclass(value, registry.kind)
    if not isinstance(value, str) and not is_class and not (isinstance(value, Mapping) and registry.key in value):
        implied = [name for key, name in IMPLIED.items() if isinstance(value, Mapping) and key in value]
        if implied and implied[0] in registry.components:
            value = {registry.key: implied[0], **_mapping(value, path)}
        elif (wrapped := registry.wrapped(value)) is not None:
            return wrapped
    name, given = _name_and_settings(value, path, registry.key)
    if isinstance(name, str) and ":" not in name and not registry.has(name) and (hint := kind_of(name, registry)):
        raise ConfigError(f"{path}: unknown {name!r}; {hint}")
    component = registry.find(name, path)
    return build(component, given, path, registry.name_of(component))


def _name_and_settings(value: object, path: str, key: str) -> tuple[str | type, dict[str, object]]:
    """Return the name or class of a component and its settings; a name alone has none."""
    given: dict[str, object] = {key: value} if isinstance(value, (str, type)) else dict(_mapping(value, path))
    name = given.pop(key, None)
    if not isinstance(name, (str, type)):
        raise ConfigError(f"{_join(path, key)}: {shown(name)} is not a name; write {{{key}: NAME, setting: value}}")
    return name, given


def _read_local_optimizer(value: object, path: str) -> LocalOptimizer:
    """Build a torch.optim optimizer; torch's hints give the types of its settings, and torch checks their ranges."""
    if isinstance(value, LocalOptimizer):
        return value
    found, given = _name_and_settings(value, path, "name")
    name = found if isinstance(found, str) else found.__name__
    if name not in LOCAL_OPTIMIZERS:
        raise ConfigError(f"{path}: unknown {name!r}; {nearest(name, LOCAL_OPTIMIZERS)}")
    hints, allowed = get_type_hints(LOCAL_OPTIMIZERS[name].__init__), LocalOptimizer(name).allowed_settings()
    for key, setting in given.items():
        if key not in allowed:
            _refuse_key(key, setting, path, name, allowed)
    settings = {key: read(without_tensors(hints[key]), item, _join(path, key)) for key, item in given.items()}
    optimizer = LocalOptimizer(name, settings)
    try:
        optimizer.build([], learning_rate=1.0)
    except ValueError as error:
        if "empty parameter list" not in str(error):  # torch raises this one after it has checked the settings
            raise ConfigError(f"{path}: {name}: {error}") from None
    return optimizer


def without_tensors(hint: object) -> object:
    """Return one of torch's hints as it applies to plain YAML: no tensors, and numbers of either sign."""
    arguments = tuple(without_tensors(one) for one in get_args(hint) if one is not torch.Tensor)
    if _is_union(get_origin(hint)):
        return Union[arguments]  # noqa: UP007  (a computed union)
    if get_origin(hint) is tuple:
        return tuple.__class_getitem__(arguments)
    return FiniteFloat if hint is float else hint


def written(value: object, path: str = "") -> Any:
    """Return plain mappings, lists and values from which `read` restores an equal value.

    Raises:
        ConfigError: The value holds a Python object that YAML cannot represent.
    """
    if isinstance(value, LocalOptimizer):
        return {"name": value.name} | written(value.settings, path)
    kind = type(value)
    if is_dataclass(kind):
        registry = next((found for base in kind.__mro__ if (found := registry_of(base))), None)
        name = {registry.key: registry.name_of(kind)} if registry else {}
        # components that hold Python objects define `plain`, their settings as YAML
        plain = value.plain() if hasattr(value, "plain") else {f.name: getattr(value, f.name) for f in fields(kind)}
        return name | {key: written(item, _join(path, key)) for key, item in plain.items()}
    if isinstance(value, Mapping):
        return {key: written(item, _join(path, key)) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [written(item, _join(path, i)) for i, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"{path}: {shown(value)} is a Python object, which YAML cannot represent")


def described(hint: object) -> str:
    """Describe a type in words, for error messages and `simfl list`."""
    hint = DEFAULT_LIMITS.get(hint, hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return str(arguments[1].description)
    if _is_union(origin):
        return " or ".join(described(one) for one in arguments)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(str(one) for one in arguments)
    if origin is tuple:
        return "a list" if arguments[1:] == (...,) else f"a list of {len(arguments)}"
    if isinstance(hint, type) and (registry := registry_of(hint)):
        return f"one of {', '.join(registry.components)}"
    words: dict[object, str] = {
        bool: "true or false",
        str: "text",
        type(None): "null",
        LocalOptimizer: "an optimizer of torch.optim",
    }
    words |= {object: "package.module:name"}
    return words.get(hint, "a mapping of keys to values")


def default(field: Field[Any]) -> object:
    """Return the default of a field; MISSING if it is required."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def shown(value: object) -> str:
    """Format a value for an error message, as YAML writes it and at most 60 characters long."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        text = "an integer of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_union(origin: object) -> bool:
    return origin is Union or origin is types.UnionType


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _refuse(hint: object, value: object, path: str) -> NoReturn:
    allowed = ("true", "false") if hint is bool else get_args(hint) if get_origin(hint) is Literal else ()
    if isinstance(value, str) and RENAMED_VALUES.get(value) in allowed:
        _refuse_renamed(value, path)
    raise ConfigError(f"{path}: {shown(value)} is not {described(hint)}")


def _refuse_renamed(value: object, path: str) -> None:
    if isinstance(value, str) and value in RENAMED_VALUES:
        raise ConfigError(f"{path}: {value!r} was renamed to {RENAMED_VALUES[value]}")


def _refuse_key(key: str, value: object, path: str, name: str, known: Iterable[str]) -> NoReturn:
    if RENAMED_KEYS.get(key, "") in known:
        raise ConfigError(f"{_join(path, key)}: renamed to {RENAMED_KEYS[key]}")
    fault = f"{name} has no key {key!r}" if name else "unknown key"
    raise ConfigError(f"{_join(path, key)}: {fault} (given {shown(value)}); {hint_for(key, known)}")
