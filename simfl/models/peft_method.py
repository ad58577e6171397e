"""Adapters of peft by name, for methods without a file here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from torch import nn

from simfl.errors import ConfigError, nearest
from simfl.models.adapters import Adapter

NO_SETTINGS = ("peft_type", "peft_version", "inference_mode")  # fields of a configuration that are no settings
UNSUPPORTED = ("adaption_prompt", "poly", "shadow", "trainable_tokens", "xlora")  # need a PeftModel around the module
SEQUENTIAL_ONLY = (  # their arithmetic has no form for the stacked weights of several clients
    "c3a", "fourierft", "lily", "loha", "lokr", "oft", "peanut", "randlora", "shira", "waveft",
)  # fmt: skip


@dataclass(frozen=True)
class PeftMethod(Adapter):
    """A tuner of peft that adds tensors to layers, such as ia3, oft, loha, lokr.

    Tuners that share tensors between layers, such as vera, need a PeftModel around the module and are not supported.
    Clients with oft, loha, lokr and a few others (`SEQUENTIAL_ONLY`) are trained in `execution.mode: sequential`.
    """

    method: str = "ia3"  # peft's name in lower case
    settings: Mapping[str, object] = field(default_factory=dict)  # of peft's configuration, such as target_modules
    example: ClassVar[Mapping[str, object]] = {"settings": {"feedforward_modules": []}}

    def attach(self, module: nn.Module) -> None:
        """Add the tuner's tensors; raise ConfigError for a method or a setting that peft does not know."""
        from peft import inject_adapter_in_model
        from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

        configs = {str(kind.value).lower(): config for kind, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
        self.own_params()  # raises for an unknown method
        settings = {"target_modules": list(getattr(module, "queries_and_values", ("q", "v")))} | dict(self.settings)
        try:
            inject_adapter_in_model(configs[self.method](**settings), module)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"adapters.settings: {str(error).splitlines()[0]}") from error
        if self.method in SEQUENTIAL_ONLY:
            setattr(module, "sequential_only", f"peft's {self.method} trains one client at a time")  # noqa: B010

    def own_params(self) -> tuple[str, ...]:
        """Return a glob of the tuner's tensors by peft's prefix; raise ConfigError for an unknown method."""
        from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

        prefixes = {str(k.value).lower(): getattr(t, "prefix", "") for k, t in PEFT_TYPE_TO_TUNER_MAPPING.items()}
        tuners = {
            name: prefix for name, prefix in prefixes.items()
            if prefix and not prefix.startswith("prompt") and name not in UNSUPPORTED
        }  # fmt: skip
        if self.method not in tuners:
            raise ConfigError(f"adapters.method: peft has no {self.method!r}; {nearest(self.method, tuners)}")
        return (f"*.{tuners[self.method]}*",)


def wrap(value: object) -> Adapter | None:
    """Convert a peft configuration to a component that holds its non-default settings; return None for other values."""
    try:
        from peft import PeftConfig
    except ImportError:
        return None
    if not isinstance(value, PeftConfig):
        return None
    default = type(value)()
    given = {f.name: getattr(value, f.name) for f in fields(value)}
    settings = {
        name: _sets_as_lists(setting) for name, setting in given.items()
        if setting != getattr(default, name) and name not in NO_SETTINGS
    }  # fmt: skip
    return PeftMethod(str(value.peft_type.value).lower(), settings)


def _sets_as_lists(value: object) -> object:
    """Convert a set, in which peft keeps names, to a sorted list."""
    return sorted(value) if isinstance(value, (set, frozenset)) else value
