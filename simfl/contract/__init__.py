"""Contract tests: the checks that every registered component passes, for your own components too.

    import simfl.contract
    simfl.contract.check(MyAlgorithm)  # raises ContractError, naming what is broken and what to do

A component declares what its checks need as class attributes, described in its base class: an `example` (settings of a
small instance), and for some kinds a bound or a limit, such as `Codec.error_bound` and `Algorithm.fedavg_settings`.
`tests/test_contract.py` calls `check` for all registered components: registering a component puts it under test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from simfl.algorithms.base import Algorithm
from simfl.config.catalogue import entry
from simfl.config.fields import build
from simfl.config.registries import REGISTRIES
from simfl.contract.algorithms import check_algorithm
from simfl.contract.clusters import check_cluster
from simfl.contract.codecs import check_codec
from simfl.contract.data import check_data, check_partitioner
from simfl.contract.factorizations import check_factorization
from simfl.contract.models import check_adapter, check_model, check_objective
from simfl.contract.optimizers import check_schedule, check_server_optimizer
from simfl.contract.search import check_pruner, check_sampler
from simfl.contract.staleness import check_staleness
from simfl.contract.time import check_availability, check_selection
from simfl.errors import ConfigError, SimflError

CHECKS: dict[str, Callable[[Any], Iterator[str]]] = {  # by registry; each yields one line per broken rule
    "adapters": check_adapter,
    "algorithms": check_algorithm,
    "availabilities": check_availability,
    "clusters": check_cluster,
    "codecs": check_codec,
    "data": check_data,
    "factorizations": check_factorization,
    "models": check_model,
    "objectives": check_objective,
    "partitioners": check_partitioner,
    "pruners": check_pruner,
    "samplers": check_sampler,
    "schedules": check_schedule,
    "selections": check_selection,
    "server_optimizers": check_server_optimizer,
    "staleness": check_staleness,
}


class ContractError(AssertionError):
    """A component breaks rules of its kind; the message has one line per rule."""


def check(component: type) -> None:
    """Check a component class by the rules of its kind. Raises ContractError if it breaks any."""
    broken = violations(component)
    if broken:
        raise ContractError(f"{component.__qualname__}: " + "\n".join(broken))


def violations(component: type) -> list[str]:
    """Return one line for each rule that a component class breaks."""
    registry = next((name for name, spec in REGISTRIES.items() if issubclass(component, spec.kind)), None)
    if registry is None:
        bases = ", ".join(spec.base for spec in REGISTRIES.values())
        return [f"is not a component: it needs one of these base classes: {bases}"]
    broken = list(_check_class(component))
    if broken:
        return broken
    try:
        instance = example_of(component)
    except ConfigError as error:
        return [f"no example can be built: {error}; declare its settings as the class attribute `example`"]
    try:
        return list(CHECKS[registry](instance))
    except ConfigError as error:
        return [f"its example fails: {error}; declare settings that work as the class attribute `example`"]
    except SimflError as error:
        return [f"its example fails: {brief(error)}"]
    except Exception as error:  # of the component's own code
        return [f"raises {type(error).__name__}: {error}"]


def brief(error: SimflError) -> str:
    """Return the first and the last line of an error message, without the traceback between them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


def example_of(component: Any) -> Any:
    """Build the example instance of a component class."""
    if issubclass(component, Algorithm):  # its example is settings of an experiment
        settings = {
            path.removeprefix("algorithm."): value
            for path, value in component.example.items()
            if path.startswith("algorithm.")
        }
    else:
        settings = dict(getattr(component, "example", {}))
        if "path" in {field.name for field in fields(component) if field.default is MISSING}:
            settings.setdefault("path", "missing")
    return build(component, settings, component.__qualname__)


def _check_class(component: type) -> Iterator[str]:
    own = "__dataclass_fields__" in vars(component)  # not only inherited from the base class
    if not (is_dataclass(component) and own and component.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        yield "needs the decorator @dataclass(frozen=True)"
        return
    if "__doc__" not in vars(component) or (component.__doc__ or "").startswith(f"{component.__name__}("):
        yield "has no docstring; its first line is shown by `simfl list` and in the documentation"
    for name in vars(component):
        inherited = _public_names(component.__mro__[1:])
        similar = get_close_matches(name, inherited, n=1, cutoff=0.8)
        if similar and not name.startswith("_") and name not in inherited and callable(getattr(component, name)):
            yield f"{name}: never called; did you mean {similar[0]!r}?"
    if _has_source(component):
        for setting in entry(component.__name__, component).settings:
            if not setting.meaning:
                yield f"{setting.name}: has no description; write a comment behind the field, on the same line"


def _public_names(classes: Sequence[type]) -> set[str]:
    return {name for kind in classes for name in vars(kind) if not name.startswith("_")}


def _has_source(component: type) -> bool:
    try:
        inspect.getsource(component)
    except (OSError, TypeError):
        return False
    return True
