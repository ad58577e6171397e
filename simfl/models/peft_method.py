"""Any adapter of peft by its name and settings, for methods that have no file here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from torch import nn

from simfl.errors import ConfigError, nearest
from simfl.models.adapters_base import Adapter

FIXED = ("peft_type", "peft_version", "inference_mode")  # no settings of a method
OUTSIDE = ("adaption_prompt", "poly", "shadow", "trainable_tokens", "xlora")  # need peft's own model around ours
ONE_BY_ONE = (  # their arithmetic has no form for weights of several clients side by side
    "c3a", "fourierft", "lily", "loha", "lokr", "oft", "peanut", "randlora", "shira", "waveft",
)  # fmt: skip


@dataclass(frozen=True)
class PeftMethod(Adapter):
    """A tuner of peft that hangs tensors into layers, such as ia3, oft, loha, lokr.

    Tuners that share tensors between layers, such as vera, cannot be hung in without peft's own model around ours.
    Clients with oft, loha, lokr and a few others are trained one by one (`mode: loop`).
    """

    method: str = "ia3"  # peft's name in lower case
    settings: Mapping[str, object] = field(default_factory=dict)  # of peft's configuration, such as target_modules

    def attach(self, module: nn.Module) -> None:
        """Inject in place; ConfigError for a method or a setting that peft does not know."""
        from peft import inject_adapter_in_model
        from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

        configs = {str(kind.value).lower(): config for kind, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
        self.trains()
        settings = {"target_modules": list(getattr(module, "queries_and_values", ("q", "v")))} | dict(self.settings)
        try:
            inject_adapter_in_model(configs[self.method](**settings), module)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"adapters.settings: {str(error).splitlines()[0]}") from error
        if self.method in ONE_BY_ONE:
            setattr(module, "one_by_one", f"peft's {self.method} trains clients one by one")  # noqa: B010

    def trains(self) -> tuple[str, ...]:
        """The tuner's tensors, by the prefix that peft gives them."""
        from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

        prefixes = {str(k.value).lower(): getattr(t, "prefix", "") for k, t in PEFT_TYPE_TO_TUNER_MAPPING.items()}
        tuners = {n: prefix for n, prefix in prefixes.items() if prefix and not prefix.startswith("prompt")}
        tuners = {name: prefix for name, prefix in tuners.items() if name not in OUTSIDE}
        if self.method not in tuners:
            raise ConfigError(f"adapters.method: peft has no {self.method!r}; {nearest(self.method, tuners)}")
        return (f"*.{tuners[self.method]}*",)


def wrap(value: object) -> Adapter | None:
    """A configuration of peft as a component, with the settings that differ from peft's defaults; None for others."""
    try:
        from peft import PeftConfig
    except ImportError:
        return None
    if not isinstance(value, PeftConfig):
        return None
    usual = type(value)()
    given = {f.name: getattr(value, f.name) for f in fields(value)}
    settings = {name: _listed(v) for name, v in given.items() if v != getattr(usual, name) and name not in FIXED}
    return PeftMethod(str(value.peft_type.value).lower(), settings)


def _listed(value: object) -> object:
    """Sets, in which peft keeps names, as lists in the order of the alphabet."""
    return sorted(value) if isinstance(value, (set, frozenset)) else value
