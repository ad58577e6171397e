"""Values by type hint: plain YAML to fields (`read`), fields to plain YAML (`written`), a type in words (`described`).

`read` walks a hint and a value side by side and raises one line with the path of what is wrong. A field whose type is
the base of a shelf takes the name of a component, or a mapping of its name and settings.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import torch

from simfl.config.registries import RegistrySpec, registry_of
from simfl.constraints import Amount, Limit, Signed, Whole
from simfl.errors import ConfigError, nearest
from simfl.optimizers.local import LOCAL_OPTIMIZERS, LocalOptimizer

PLAIN = {int: Whole, float: Amount}  # the limits of a number whose field names none


def read(hint: Any, value: Any, path: str) -> Any:
    """`value` as a `hint`, with every part checked. `path` is where it stands."""
    hint = PLAIN.get(hint, hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limited(arguments[0], arguments[1], value, path)
    if _is_union(origin):
        return _either(hint, value, path)
    if origin is Literal:
        fits = any(value == one and type(value) is type(one) for one in arguments)
        return value if fits else _refuse(hint, value, path)
    if origin is tuple:
        return _list(hint, value, path)
    if origin is not None and issubclass(origin, Mapping):
        return {key: read(arguments[1], item, _join(path, key)) for key, item in _mapping(value, path).items()}
    if hint in (bool, str):
        return value if isinstance(value, hint) else _refuse(hint, value, path)
    if hint is LocalOptimizer:
        return _local_optimizer(value, path)
    if isinstance(hint, type) and (shelf := registry_of(hint)):
        return _component(shelf, value, path)
    if isinstance(hint, type) and is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, _mapping(value, path), path)
    return value  # `object` and `Any` take anything


def build(cls: Any, given: Mapping[str, Any], path: str, name: str = "simfl") -> Any:
    """A dataclass from a mapping of its fields; `name` is what an error calls it."""
    hints, known = get_type_hints(cls, include_extras=True), {field.name: field for field in fields(cls)}
    for key, value in given.items():
        if key not in known:
            _unknown_key(key, value, path, name, known)
    for key, field in known.items():
        if key not in given and default(field) is MISSING:
            raise ConfigError(f"{_join(path, key)}: missing; give {described(hints[key])}")
    values = {key: read(hints[key], value, _join(path, key)) for key, value in given.items()}
    try:
        return cls(**values)
    except (ConfigError, ValueError) as error:
        where, _, rest = str(error).partition(": ")
        key = where.rpartition(".")[2]  # a component's own check names the field first: `block: 3 is …`
        raise ConfigError(f"{_join(path, key)}: {rest}" if key in known else f"{path}: {error}") from error


def _limited(kind: type, limit: Limit, value: Any, path: str) -> Any:
    accepted = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, accepted) or not limit.holds(value):
        raise ConfigError(f"{path}: {shown(value)} is not {limit.words}")
    return kind(value)


def _either(hint: Any, value: Any, path: str) -> Any:
    options = [option for option in get_args(hint) if option is not type(None)]
    if value is None:
        return None if len(options) < len(get_args(hint)) else _refuse(hint, value, path)
    if len(options) == 1:
        return read(options[0], value, path)
    for option in options:
        try:
            return read(option, value, path)
        except ConfigError:
            continue
    return _refuse(hint, value, path)


def _list(hint: Any, value: Any, path: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        _refuse(hint, value, path)
    each = get_args(hint)
    hints = each[:1] * len(value) if each[1:] == (...,) else each
    if len(hints) != len(value):
        _refuse(hint, value, path)
    return tuple(read(one, item, _join(path, i)) for i, (one, item) in enumerate(zip(hints, value, strict=True)))


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path or 'experiment'}: {shown(value)} is not a mapping of keys to values")
    return value


def _component(shelf: RegistrySpec, value: Any, path: str) -> Any:
    if isinstance(value, shelf.kind):
        return value
    is_kind = isinstance(value, type) and issubclass(value, shelf.kind)
    if not isinstance(value, str) and not is_kind and not (isinstance(value, Mapping) and shelf.key in value):
        if isinstance(value, Mapping) and "of" in value and "own" in shelf.components:
            value = {shelf.key: "own", **value}
        elif (wrapped := shelf.wrapped(value)) is not None:
            return wrapped
    name, given = _named(value, path, shelf.key)
    component = shelf.find(name, path)
    return build(component, given, path, shelf.name_of(component))


def _named(value: Any, path: str, key: str) -> tuple[str | type, dict[str, Any]]:
    """The name of a component, or its class, and its settings; a bare name has none."""
    given = {key: value} if isinstance(value, (str, type)) else dict(_mapping(value, path))
    name = given.pop(key, None)
    if not isinstance(name, (str, type)):
        raise ConfigError(f"{_join(path, key)}: {shown(name)} is not a name; write {{{key}: NAME, setting: value}}")
    return name, given


def _local_optimizer(value: Any, path: str) -> LocalOptimizer:
    """An optimizer of torch.optim; the types of its settings are torch's own hints, and torch checks their ranges."""
    if isinstance(value, LocalOptimizer):
        return value
    named, given = _named(value, path, "name")
    name = named if isinstance(named, str) else named.__name__
    if name not in LOCAL_OPTIMIZERS:
        raise ConfigError(f"{path}: unknown {name!r}; {nearest(name, LOCAL_OPTIMIZERS)}")
    hints, allowed = get_type_hints(LOCAL_OPTIMIZERS[name].__init__), LocalOptimizer(name).allowed()
    for key, setting in given.items():
        if key not in allowed:
            _unknown_key(key, setting, path, name, allowed)
    settings = {key: read(without_tensors(hints[key]), item, _join(path, key)) for key, item in given.items()}
    optimizer = LocalOptimizer(name, settings)
    try:
        optimizer.build([], learning_rate=1.0)
    except ValueError as error:
        if "empty parameter list" not in str(error):  # raised after the settings have been checked
            raise ConfigError(f"{path}: {name}: {error}") from None
    return optimizer


def without_tensors(hint: Any) -> Any:
    """A hint of torch's for plain YAML: no tensors, and numbers of either sign."""
    arguments = tuple(without_tensors(one) for one in get_args(hint) if one is not torch.Tensor)
    if _is_union(get_origin(hint)):
        return Union[arguments]  # noqa: UP007  (a computed union)
    if get_origin(hint) is tuple:
        return tuple.__class_getitem__(arguments)
    return Signed if hint is float else hint


def written(value: Any, path: str = "") -> Any:
    """The plain mappings, lists and values that `read` makes an equal value of."""
    if isinstance(value, LocalOptimizer):
        return {"name": value.name} | written(value.settings, path)
    kind = type(value)
    if is_dataclass(kind):
        shelf = next((shelf for base in kind.__mro__ if (shelf := registry_of(base))), None)
        name = {shelf.key: shelf.name_of(kind)} if shelf else {}
        # a component that holds Python objects says itself what is written of it
        plain = value.plain() if hasattr(kind, "plain") else {f.name: getattr(value, f.name) for f in fields(value)}
        return name | {key: written(item, _join(path, key)) for key, item in plain.items()}
    if isinstance(value, Mapping):
        return {key: written(item, _join(path, key)) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [written(item, _join(path, i)) for i, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"{path}: {shown(value)} is an object and has no form in YAML")


def described(hint: Any) -> str:
    """A type in a reader's words."""
    hint = PLAIN.get(hint, hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return str(arguments[1].words)
    if _is_union(origin):
        return " or ".join(described(one) for one in arguments)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(str(one) for one in arguments)
    if origin is tuple:
        return "a list" if arguments[1:] == (...,) else f"a list of {len(arguments)}"
    if isinstance(hint, type) and (shelf := registry_of(hint)):
        return f"one of {', '.join(shelf.components)}"
    words = {bool: "true or false", str: "text", type(None): "null", LocalOptimizer: "an optimizer of torch.optim"}
    words |= {object: "package.module:name"}
    return words.get(hint, "a mapping of keys to values")


def default(field: Field[Any]) -> Any:
    """The default of a field; MISSING for a required one."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def shown(value: object) -> str:
    """A value as YAML writes it, short enough for a line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_union(origin: Any) -> bool:
    return origin is Union or origin is types.UnionType


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _refuse(hint: Any, value: Any, path: str) -> NoReturn:
    raise ConfigError(f"{path}: {shown(value)} is not {described(hint)}")


def _unknown_key(key: str, value: Any, path: str, name: str, known: Any) -> NoReturn:
    raise ConfigError(f"{_join(path, key)}: {name} has no key {key!r} (given {shown(value)}); {nearest(key, known)}")
