"""Adapters of peft by method: what `peft.get_peft_model` would train is trained and sent, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from torch import nn

from simfl.errors import ConfigError, nearest
from simfl.models import peft_rules
from simfl.models.adapters import Adapter

TRAINED = "peft_trained"  # attribute of a module: names of the parameters that peft made trainable
SEQUENTIAL_ONLY = (  # their arithmetic has no form for the stacked weights of several clients
    "c3a", "fourierft", "lily", "loha", "lokr", "oft", "peanut", "randlora", "shira", "waveft",
)  # fmt: skip
NOTICES = ("fan_in_fan_out is set to", "`is_gradient_checkpointing`")  # warnings about what peft corrects, or asks
ERRORS = (AttributeError, ImportError, IndexError, KeyError, NotImplementedError, TypeError, ValueError)


@dataclass(frozen=True)
class PeftMethod(Adapter):
    """A method of peft that adds tensors to layers, such as lora, ia3, oft, loha, lokr.

    Modules that the configuration trains fully (`modules_to_save`, the head of a `task_type`), biases and single rows
    of embeddings are trained as well. Methods that need a PeftModel around the module are refused. Clients with oft,
    loha, lokr and a few others (`SEQUENTIAL_ONLY`) are trained in `execution.mode: sequential`.
    """

    method: str = "ia3"  # peft's name in lower case
    settings: Mapping[str, object] = field(default_factory=dict)  # of peft's configuration, such as target_modules
    example: ClassVar[Mapping[str, object]] = {"settings": {"feedforward_modules": []}}

    def attach(self, module: nn.Module) -> None:
        """Add the method's tensors; raise ConfigError for a method or a setting that cannot be carried out."""
        config = self._configuration(module)
        peft_rules.check_settings(config)
        peft_rules.check_names(self.settings, module)
        peft_rules.check_tokens(self.settings, module)
        peft_rules.check_task(self.settings, module)
        inject(module, config)
        single = "target_parameters" if self.settings.get("target_parameters") else self.method
        if self.method in SEQUENTIAL_ONLY or single != self.method:
            setattr(module, "sequential_only", f"peft's {single} trains one client at a time")  # noqa: B010

    def _configuration(self, module: nn.Module) -> Any:
        """Return a new configuration of peft; default targets are those that the module declares, or else peft's."""
        from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

        peft_rules.check_method(self.method)
        kind = next(c for k, c in PEFT_TYPE_TO_CONFIG_MAPPING.items() if str(k.value).lower() == self.method)
        allowed = {one.name for one in fields(kind)}
        for name in self.settings:
            if name not in allowed:
                raise ConfigError(
                    f"adapters.settings: {kind.__name__} has no setting {name!r}; {nearest(name, allowed)}"
                )
        declared = getattr(module, "queries_and_values", None)
        names_targets = "target_modules" in allowed and self.method != "trainable_tokens"
        usual = {"target_modules": list(declared)} if declared and names_targets else {}
        try:
            return kind(**(usual | dict(self.settings)))
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(f"adapters.settings: {_in_one_line(error)}") from error

    def own_params(self) -> tuple[str, ...]:
        """Return globs of the tensors that the method adds; raise ConfigError for an unknown method."""
        from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

        peft_rules.check_method(self.method)
        tuner = next(t for k, t in PEFT_TYPE_TO_TUNER_MAPPING.items() if str(k.value).lower() == self.method)
        extra = {"modules_to_save": "*.modules_to_save.*", "trainable_token_indices": "*.trainable_tokens_*"}
        return (f"*.{tuner.prefix}*", *(glob for name, glob in extra.items() if self.settings.get(name)))

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return the names of all parameters that peft made trainable in `module`."""
        return trained_by_peft(module)


def inject(module: nn.Module, config: Any) -> None:
    """Attach adapters to `module` in place as `get_peft_model` does, and record what peft makes trainable.

    Adapters of a float16 or bfloat16 layer are float32.

    Raises:
        ConfigError: The module has adapters of peft already, peft refuses a setting, or nothing would be trained.
    """
    from peft import get_peft_model  # takes seconds to import, and many runs need none of it
    from peft.tuners.tuners_utils import BaseTunerLayer

    if any(isinstance(layer, BaseTunerLayer) for layer in module.modules()):
        raise ConfigError("adapters: the module has adapters of peft already; give the module or the adapters alone")
    try:
        with warnings.catch_warnings():
            for notice in NOTICES:
                warnings.filterwarnings("ignore", notice)
            get_peft_model(module, config)
    except ERRORS as error:
        if isinstance(error, NotImplementedError) and any(one.is_meta for one in module.parameters()):
            raise  # `build_on_meta` builds the module on the CPU then
        raise ConfigError(f"adapters.settings: {_in_one_line(error)}") from error
    _check_layers(module)
    trained = tuple(name for name, parameter in module.named_parameters() if parameter.requires_grad)
    if not trained:
        raise ConfigError("adapters.settings: peft would train no tensor; allowed: settings that train at least one")
    setattr(module, TRAINED, trained)


def _check_layers(module: nn.Module) -> None:
    """Raise ConfigError for adapters that torch's own layers would bypass, and prevent that where it is possible."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for path, layer in module.named_modules():
        inside = [name for name, part in layer.named_modules() if isinstance(part, BaseTunerLayer)]
        if inside and isinstance(layer, nn.MultiheadAttention):
            name = path.removesuffix(".base_layer")
            raise ConfigError(
                f"adapters.settings.target_modules: {name!r} is torch's MultiheadAttention, which does not call its"
                " adapted layers; allowed: targets outside of it"
            )
        if inside and isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # keeps torch from its fused evaluation, which reads the base's weights


def check_given(module: nn.Module) -> None:
    """Raise ConfigError if a module with adapters of peft has a method or a setting that simfl does not train."""
    configs = getattr(module, "peft_config", None)
    for config in configs.values() if isinstance(configs, Mapping) else ():
        method = str(getattr(config.peft_type, "value", config.peft_type)).lower()
        peft_rules.check_method(method, "model.of")
        peft_rules.check_settings(config, "model.of")
    if configs:
        _check_layers(module)


def trained_by_peft(module: nn.Module) -> tuple[str, ...]:
    """Return globs that match exactly the parameters that peft made trainable in `module`."""
    names: tuple[str, ...] = getattr(module, TRAINED)
    return tuple(name.replace("[", "[[]") for name in names)


def wrap(value: object) -> Adapter | None:
    """Convert a peft configuration to a component that holds its non-default settings; return None for other values."""
    try:
        from peft import PeftConfig
    except ImportError:
        return None
    if not isinstance(value, PeftConfig):
        return None
    method = str(getattr(value.peft_type, "value", value.peft_type)).lower()
    return PeftMethod(method, peft_rules.non_default_settings(value))


def _in_one_line(error: Exception) -> str:
    """Return the message of an error without its inner lines, which show a layer."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, KeyError) or not lines:
        return f"{type(error).__name__} {error}"
    return lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"
