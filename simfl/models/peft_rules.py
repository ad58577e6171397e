"""Rules about peft configurations: what simfl carries as `get_peft_model` would, and what it refuses by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from typing import Any

from torch import nn

from simfl.errors import ConfigError, nearest

PeftConfiguration = object  # peft.PeftConfig; peft is imported on first use, since that takes seconds

PROMPT_LEARNING = "it adds virtual tokens in the forward pass of a PeftModel"
UNSUPPORTED_METHODS = {
    "adalora": "its ranks are reallocated after each step of one training run, and its loss has a term of its own",
    "adaption_prompt": "it changes the attention of a PeftModel",
    "cartridge": PROMPT_LEARNING,
    "cpt": PROMPT_LEARNING,
    "osf": "it projects gradients by hooks on its parameters",
    "poly": "it needs a task number in every forward pass",
    "shadow": "it needs the forward pass of a PeftModel",
    "xlora": "it mixes adapters that were trained before",
}
DATA_DRIVEN = ("eva", "corda", "lora_ga")  # initializations that read activations or gradients
UNSUPPORTED_SETTINGS = {  # in any method; a value other than the default is refused
    "alora_invocation_tokens": "the adapter is switched on by hooks of a PeftModel",
    "arrow_config": "it routes between several adapters",
    "corda_config": "it needs activations of data before training",
    "eva_config": "it needs activations of data before training",
    "inference_mode": "it freezes every tensor, so that nothing is trained",
    "kasa_config": "it needs a loss term that peft leaves to the training loop",
    "layer_replication": "it adds layers to the model",
    "lora_ga_config": "it needs gradients of data before training",
    "megatron_config": "it needs Megatron's layers",
    "monteclora_config": "it draws from torch's global generator and needs a loss term of its own",
    "runtime_config": "devices are chosen by simfl",
    "use_asa": "its masks are updated after each step of one training run",
    "use_qalora": "it needs quantized layers",
    "velora_config": "its layers keep state between steps",
}
DESCRIPTIVE = (  # written by peft, and without effect on a new adapter
    "auto_mapping", "base_model_name_or_path", "peft_type", "peft_version", "revision",
)  # fmt: skip
CLASSIFIERS = ("classifier", "score")
TASK_HEADS = {"SEQ_CLS": CLASSIFIERS, "TOKEN_CLS": CLASSIFIERS, "QUESTION_ANS": ("qa_outputs",)}  # peft trains them


def supported_methods() -> list[str]:
    """Return peft's names of all methods that simfl trains, in lower case."""
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

    return [name for kind in PEFT_TYPE_TO_TUNER_MAPPING if not _reason_against(name := str(kind.value).lower())]


def peft_hint(method: str) -> str:
    """Return a hint for a method of peft that was given as a kind of adapter; empty if peft has no such method."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    known = {str(kind.value).lower() for kind in PEFT_TYPE_TO_CONFIG_MAPPING} | {
        "prompt_tuning",
        "prefix_tuning",
        "p_tuning",
    }
    if method not in known:
        return ""
    reason = _reason_against(method)
    return f"simfl does not support it, because {reason}" if reason else f"write {{kind: peft, method: {method}}}"


def check_method(method: str, where: str = "adapters.method") -> None:
    """Raise ConfigError for a method that peft does not have, or that simfl does not train."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    if method not in {str(kind.value).lower() for kind in PEFT_TYPE_TO_CONFIG_MAPPING}:
        raise ConfigError(f"{where}: peft has no {method!r}; {nearest(method, supported_methods())}")
    if reason := _reason_against(method):
        allowed = ", ".join(sorted(supported_methods()))
        raise ConfigError(f"{where}: simfl does not support {method}, because {reason}; allowed: {allowed}")


def _reason_against(method: str) -> str:
    """Return the reason why simfl does not train a method of peft; empty if it does."""
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
    from peft.tuners.tuners_utils import BaseTuner

    if method in UNSUPPORTED_METHODS:
        return UNSUPPORTED_METHODS[method]
    tuner: Any = next((t for k, t in PEFT_TYPE_TO_TUNER_MAPPING.items() if str(k.value).lower() == method), None)
    if tuner is None or not issubclass(tuner, BaseTuner):
        return PROMPT_LEARNING
    if tuner.forward is not BaseTuner.forward:
        return "it needs the forward pass of a PeftModel"
    return "it keeps tensors that several layers share" if tuner.uses_shared_state else ""


def check_settings(config: PeftConfiguration, where: str = "adapters.settings") -> None:
    """Raise ConfigError for a setting whose effect would be lost."""
    start = getattr(config, "init_lora_weights", True)
    if start in DATA_DRIVEN:
        raise ConfigError(
            f"{where}.init_lora_weights: simfl does not support {start}, because it reads data before"
            " training; allowed: true, false, gaussian, orthogonal, olora, pissa, pissa_niter_N, loftq"
        )
    usual = defaults(type(config))
    for name, reason in UNSUPPORTED_SETTINGS.items():
        value = getattr(config, name, None)
        if value not in (None, False, usual.get(name)):
            given, allowed = _shown(value), _shown(usual.get(name))
            raise ConfigError(f"{where}.{name}: simfl does not support {given}, because {reason}; allowed: {allowed}")


def check_names(settings: Mapping[str, object], module: nn.Module) -> None:
    """Raise ConfigError for a name or a layer in the settings that matches no module; peft would ignore it."""
    names = [name for name, _ in module.named_modules() if name]
    parameters = [name for name, _ in module.named_parameters()]
    for setting, entry, pattern in _entries(settings):
        of_parameters = setting == "target_parameters"
        if not any(re.fullmatch(pattern, name) for name in (parameters if of_parameters else names)):
            kind = "parameter" if of_parameters else "module"
            hint = nearest(entry.rpartition(".")[2], {name.rpartition(".")[2] for name in names})
            raise ConfigError(f"adapters.settings.{setting}: {entry!r} matches no {kind}; {hint}")
    layers = settings.get("layers_to_transform")
    for index in layers if isinstance(layers, (list, tuple)) else [layers]:
        if index is not None and not any(str(index) in name.split(".") for name in names):
            raise ConfigError(f"adapters.settings.layers_to_transform: there is no layer {index!r}")


def check_tokens(settings: Mapping[str, object], module: nn.Module) -> None:
    """Raise ConfigError for an index of `trainable_token_indices` that is no row of its embedding."""
    given: Any = settings.get("trainable_token_indices") or ()
    for name, indices in given.items() if isinstance(given, Mapping) else [("", given)]:
        rows = _num_tokens(module, name)
        outside = [index for index in indices if rows is not None and not 0 <= index < rows]
        if outside:
            where = "adapters.settings.trainable_token_indices"
            raise ConfigError(f"{where}: {outside[0]} is no row of the embedding; allowed: 0 to {(rows or 0) - 1}")


def check_task(settings: Mapping[str, object], module: nn.Module) -> None:
    """Raise ConfigError if the head that a task type trains does not exist, and none is named."""
    heads = TASK_HEADS.get(str(plain(settings.get("task_type"))), ())
    names = [name for name, _ in module.named_modules()]
    named = [name for name in _names(settings.get("modules_to_save")) if name not in heads]
    if heads and not named and not any(name.endswith(heads) for name in names):
        last = sorted({name.rpartition(".")[2] for name, _ in module.named_children()})
        raise ConfigError(
            f"adapters.settings.task_type: {settings['task_type']} trains {' or '.join(heads)}, which the model lacks;"
            f" list its head under modules_to_save, one of {', '.join(last)}"
        )


def _num_tokens(module: Any, name: str) -> int | None:
    """Return the rows of the embedding whose name ends like this, or of the model's own for an empty name."""
    if name:
        found = next((layer for path, layer in module.named_modules() if path.endswith(name)), None)
    else:
        found = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else None
    return found.num_embeddings if isinstance(found, nn.Embedding) else None


def _entries(settings: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Yield each setting, name and regular expression by which peft matches the name with those of modules."""
    for setting in ("target_modules", "exclude_modules", "feedforward_modules", "target_parameters"):
        yield from ((setting, entry, rf"(.*\.)?{re.escape(entry)}") for entry in _names(settings.get(setting)))
    for setting in ("modules_to_save", "trainable_token_indices"):
        for entry in _names(settings.get(setting)):
            if setting != "modules_to_save" or not any(entry in heads for heads in TASK_HEADS.values()):
                yield setting, entry, f".*{re.escape(entry)}"
    for setting in ("rank_pattern", "alpha_pattern"):
        yield from ((setting, entry, rf"(.*\.)?({entry})") for entry in _names(settings.get(setting)))


def _names(value: object) -> list[str]:
    """Return the texts of a list, or the keys of a mapping; a single text is an expression, which peft checks."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, (list, tuple, set, Mapping)) else []


def non_default_settings(config: PeftConfiguration) -> dict[str, object]:
    """Return the settings of a configuration that differ from peft's defaults, as YAML stores them.

    Raises:
        ConfigError: The configuration has layer types of the user's own, which no file can name.
    """
    if getattr(config, "_custom_modules", None):
        raise ConfigError("adapters: the configuration registers layer types of your own, which simfl does not carry")
    usual = defaults(type(config))
    given = {one.name: getattr(config, one.name) for one in fields(config)}  # type: ignore[arg-type]
    return {name: plain(value) for name, value in given.items() if name not in DESCRIPTIVE and value != usual.get(name)}


def defaults(kind: type) -> dict[str, object]:
    """Return the values of a configuration without settings, after peft has filled in what it derives."""
    found = {one.name: one.default if one.default is not MISSING else None for one in fields(kind)}
    found |= {one.name: one.default_factory() for one in fields(kind) if one.default_factory is not MISSING}
    with suppress(TypeError, ValueError):  # a configuration with a required setting
        instance = kind()
        found = {name: getattr(instance, name) for name in found}
    return found


def plain(value: object) -> object:
    """Convert sets, in which peft keeps names, to sorted lists, and other Python objects to what YAML has."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def _shown(value: object) -> str:
    """Format a setting for an error message, as YAML writes it and at most 60 characters long."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = str(plain(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
