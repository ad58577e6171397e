"""A trained model with adapters is loaded by transformers and by peft with nothing missing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import tiny_transformers as tiny
import torch
from peft import IA3Config, LoraConfig
from torch import nn

from simfl.config.fields import read
from simfl.models.adapters import Adapter
from simfl.models.lora import Lora
from simfl.models.own import OwnModel, release
from simfl.models.saved_adapters import save_with_adapters
from simfl.protocol import Task

pytestmark = pytest.mark.filterwarnings("ignore")  # peft's, about tied weights
QV = ["q_proj", "v_proj"]
WITH_ADAPTER: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "llama": (tiny.llama, LoraConfig(task_type="CAUSAL_LM")),
    "t5": (tiny.t5, LoraConfig(task_type="SEQ_2_SEQ_LM")),
    "gpt2": (tiny.gpt2, LoraConfig(target_modules=["c_attn"], bias="lora_only", fan_in_fan_out=True)),
    "classifier": (tiny.qwen_classifier, LoraConfig(task_type="SEQ_CLS")),
    "all biases": (tiny.qwen, LoraConfig(target_modules=QV, bias="all")),
    "rows of embeddings": (tiny.qwen, LoraConfig(target_modules=QV, trainable_token_indices=[5, 6])),
    "embedding and output": (
        tiny.tied_qwen,
        LoraConfig(target_modules=QV, modules_to_save=["embed_tokens", "lm_head"]),
    ),
    "ia3": (tiny.qwen, IA3Config(task_type="CAUSAL_LM")),
    "simfl's lora": (tiny.qwen, Lora(targets=("q_proj",))),
}
MERGED: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "dora": (tiny.qwen, LoraConfig(target_modules=QV, use_dora=True)),
    "dora of one of two tied layers": (
        tiny.tied_qwen,
        LoraConfig(target_modules=QV, use_dora=True, modules_to_save=["lm_head"]),
    ),
    "pissa": (tiny.qwen, LoraConfig(target_modules=QV, init_lora_weights="pissa")),
    "pissa by random projections": (tiny.qwen, LoraConfig(target_modules=QV, init_lora_weights="pissa_niter_4")),
    "rows of tied embeddings": (tiny.tied_qwen, LoraConfig(target_modules=QV, trainable_token_indices=[5, 6])),
}


def trained(base: nn.Module, config: Any) -> Any:
    """Return the module as a run hands it over, with trained tensors moved away from their start."""
    adapters = read(Adapter, config, "adapters")
    module: Any = OwnModel(base, adapters=adapters).build(Task(seed=1))
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    return release(module).eval()


@pytest.mark.parametrize(("make", "config"), WITH_ADAPTER.values(), ids=WITH_ADAPTER)
def test_base_and_adapters_are_loaded_exactly(make: Callable[[], nn.Module], config: Any, tmp_path: Path) -> None:
    base: Any = tiny.seeded(make)
    module = trained(base, config)
    module.save_pretrained(tmp_path)
    loaded, report = type(base).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert torch.equal(tiny.logits(loaded.eval()), tiny.logits(module))
    assert not torch.allclose(tiny.logits(base.eval()), tiny.logits(module))
    by_peft = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    assert torch.equal(tiny.logits(by_peft.get_base_model()), tiny.logits(module))


@pytest.mark.parametrize(("make", "config"), MERGED.values(), ids=MERGED)
def test_adapters_that_transformers_would_not_load_exactly_are_merged(
    make: Callable[[], nn.Module], config: Any, tmp_path: Path
) -> None:
    base: Any = tiny.seeded(make)
    module = trained(base, config)
    expected = tiny.logits(module)
    module.save_pretrained(tmp_path)
    assert not (tmp_path / "adapter_config.json").exists()
    loaded, report = type(base).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert torch.allclose(tiny.logits(loaded.eval()), expected, atol=1e-5)
    assert torch.equal(tiny.logits(module), expected)  # the module itself keeps its adapters


def test_modules_without_adapters_are_saved_as_usual() -> None:
    module = tiny.qwen()
    save_with_adapters(module)
    assert "save_pretrained" not in vars(module)
    save_with_adapters(nn.Linear(2, 2))
