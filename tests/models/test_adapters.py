"""LoRA, bottlenecks, partial tuning and peft methods: their arithmetic, their names, and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_transformers as tiny
import torch
from fakes import experiment, run
from small_vt5 import batch, near, small_vt5
from torch import nn

from simfl.errors import ConfigError
from simfl.models.bottleneck import Bottleneck, BottleneckAdapter
from simfl.models.call_context import ModelCall, call_context
from simfl.models.cnn import Cnn
from simfl.models.lora import Lora, merge
from simfl.models.mlp import Mlp
from simfl.models.own import OwnModel
from simfl.models.partial_tuning import BiasTuning, HeadTuning, LastLayersTuning
from simfl.models.peft_method import PeftMethod
from simfl.models.prompt import Prompt
from simfl.protocol import Task

TASK = Task(seed=3)
FEATURES = Task(seed=3, num_classes=3, shape=(6,))


def randomized(module: nn.Module) -> nn.Module:
    """Draw the adapters' tensors: at its start LoRA is the identity."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if ".lora_" in name or ".adapter_" in name:
                p.copy_(torch.randn(p.shape, generator=draw))
    return module


def on_branch(module: nn.Module, branch: str, x: torch.Tensor) -> Any:
    with call_context(ModelCall(branch=branch)):
        return module(x)


def test_lora_keeps_names_and_values_of_the_other_tensors() -> None:
    plain, adapted = small_vt5().build(TASK), small_vt5(adapters=Lora()).build(TASK)
    names = [name for name, _ in adapted.named_parameters()]
    assert "t5.encoder.block.0.layer.0.SelfAttention.q.lora_A.default.weight" in names
    assert "t5.decoder.block.1.layer.1.EncDecAttention.v.lora_B.default.weight" in names
    base = {name.replace("base_layer.", ""): p for name, p in adapted.named_parameters() if ".lora_" not in name}
    assert list(base) == [name for name, _ in plain.named_parameters()]
    assert all(torch.equal(p, base[name]) for name, p in plain.named_parameters())


def test_lora_starts_as_the_identity() -> None:
    given = batch(2)
    assert near(small_vt5(adapters=Lora()).build(TASK)(**given).logits, small_vt5().build(TASK)(**given).logits)


def test_merged_lora_equals_unmerged_lora() -> None:
    network, given = randomized(small_vt5(adapters=Lora(rank=2)).build(TASK)), batch(2)
    before = network(**given).logits
    merge(network)
    after = network(**given).logits
    assert near(after, before, 1e-4)  # the random products are large
    assert not near(before, small_vt5().build(TASK)(**given).logits, 0.1)


def test_lora_equals_its_formula() -> None:
    network = randomized(Mlp(hidden_sizes=(4,), adapters=Lora(rank=1, alpha=3, targets=("linear",))).build(FEATURES))
    layer, x = network.layers[0].linear, torch.arange(6.0)[None]
    a, b = layer.lora_A.default.weight, layer.lora_B.default.weight
    expected = x @ layer.base_layer.weight.T + layer.base_layer.bias + 3 / 1 * (x @ a.T) @ b.T
    assert torch.allclose(layer(x), expected, atol=1e-5)


@pytest.mark.parametrize("adapters", [Lora(rank=2), Bottleneck()])
def test_only_adapters_are_trained_by_default(adapters: Lora | Bottleneck) -> None:
    network = small_vt5(adapters=adapters).build(TASK)
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    assert trained == [name for name, _ in network.named_parameters() if ".lora_" in name or ".adapter_" in name]
    assert trained


def test_an_unknown_lora_target_is_rejected() -> None:
    with pytest.raises(ConfigError, match="no linear layer is named 'qq'; did you mean 'q'"):
        small_vt5(adapters=Lora(targets=("qq",))).build(TASK)
    with pytest.raises(ConfigError, match="'q_proj'"):  # inside the frozen page reader
        small_vt5(adapters=Lora(targets=("q_proj",))).build(TASK)


@pytest.mark.parametrize(
    ("targets", "chosen"),
    [
        ("q", 6),  # of two encoder blocks, and of two attentions in two decoder blocks
        ("t5.encoder.block.0.layer.0.SelfAttention.q", 1),
        ("SelfAttention.q", 4),
        ("t5.encoder.*.q", 2),
        (r"t5\.encoder\.block\.[01]\..*\.(q|v)", 4),
    ],
)
def test_lora_targets_are_names_globs_or_expressions(targets: str, chosen: int) -> None:
    network = small_vt5(adapters=Lora(targets=(targets,))).build(TASK)
    layers = {name.partition(".lora_")[0] for name, _ in network.named_parameters() if ".lora_" in name}
    assert len(layers) == chosen
    assert all(layer.endswith((".q", ".v")) and not layer.startswith("vision.") for layer in layers)


def test_a_vision_tower_is_adapted_by_targets_that_name_it() -> None:
    def adapted(*targets: str) -> set[str]:
        network = OwnModel(tiny.smol_vlm(), adapters=Lora(targets=targets)).build(TASK)
        return {name.partition(".lora_")[0] for name, _ in network.named_parameters() if ".lora_" in name}

    text = {f"model.text_model.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in ("q_proj", "v_proj")}
    vision = {"model.vision_model.encoder.layers.0.self_attn.q_proj"}
    assert adapted("q_proj", "v_proj") == adapted("*.q_proj", "*.v_proj") == text
    assert adapted("q_proj", "v_proj", "*vision_model.*q_proj") == text | vision
    assert adapted(r".*vision_model\..*\.q_proj") == vision
    with pytest.raises(
        ConfigError, match=r"^adapters\.targets: 'fc1' matches only layers such as 'model\.vision_model\."
    ):
        adapted("fc1")


def test_lora_of_transposed_layers_starts_as_the_identity() -> None:
    plain = tiny.seeded(tiny.gpt2).eval()
    adapted = OwnModel(plain, adapters=Lora(targets=("c_attn",))).build(TASK)
    assert near(tiny.logits(adapted), tiny.logits(plain))


def test_bottleneck_branches_equal_their_formulas() -> None:
    network = randomized(Mlp(hidden_sizes=(32,), adapters=Bottleneck(reduction=16)).build(FEATURES))
    x, place = torch.arange(6.0)[None] / 6, network.layers[0]
    h = nn.functional.gelu(place.linear(x))
    shared, client = place.adapter_shared(h), place.adapter_client(h)
    expected = {"": h + shared, "shared": h + shared, "client": h + client, "dual": h + shared / 2 + client / 2}
    for branch, features in expected.items():
        assert torch.allclose(on_branch(network, branch, x).features, features, atol=1e-6), branch


def test_bottleneck_equals_relu_between_two_linear_layers() -> None:
    adapter = BottleneckAdapter(width=32, reduction=16)
    h = torch.arange(32.0)[None]
    down = (h @ adapter.down.weight.T + adapter.down.bias).clamp_min(0)
    assert torch.allclose(adapter(h), down @ adapter.up.weight.T + adapter.up.bias)
    assert adapter.down.weight.shape == (2, 32)


def test_bottleneck_of_768_has_the_published_74_544_parameters() -> None:
    with torch.device("meta"):
        adapter = BottleneckAdapter(width=768, reduction=16)
    assert sum(p.numel() for p in adapter.parameters()) == 768 * 48 * 2 + 48 + 768 == 74_544


def test_a_bottleneck_with_zero_output_does_not_change_the_logits() -> None:
    network, given = small_vt5(adapters=Bottleneck()).build(TASK), batch(2)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if ".adapter_" in name and ".up." in name:
                p.zero_()
    expected = small_vt5().build(TASK)(**given).logits
    for branch in ("", "client", "dual"):
        with call_context(ModelCall(branch=branch)):
            assert near(network(**given).logits, expected)


def test_dual_equals_shared_for_equal_adapters() -> None:
    network, given = randomized(small_vt5(adapters=Bottleneck()).build(TASK)), batch(2)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if ".adapter_client." in name:
                p.copy_(network.get_parameter(name.replace("adapter_client", "adapter_shared")))
    with call_context(ModelCall(branch="dual")):
        dual = network(**given).logits
    assert torch.allclose(dual, network(**given).logits, atol=1e-4)


def test_every_block_of_t5_has_both_adapters() -> None:
    network = small_vt5(adapters=Bottleneck()).build(TASK)
    names = {name.rpartition(".adapter_")[0] for name, _ in network.named_parameters() if ".adapter_" in name}
    assert names == {f"t5.encoder.block.{i}.layer.1" for i in (0, 1)} | {
        f"t5.decoder.block.{i}.layer.2" for i in (0, 1)
    }


def test_a_model_without_a_place_rejects_bottlenecks() -> None:
    with pytest.raises(ConfigError, match="no place for a bottleneck"):
        Cnn(adapters=Bottleneck()).build(Task(seed=0, num_classes=2, shape=(1, 12, 12)))


def test_each_path_name_has_its_own_bottleneck() -> None:
    one = Mlp(hidden_sizes=(32,), adapters=Bottleneck(names=("shared",))).build(FEATURES)
    assert {n.split(".")[2] for n, _ in one.named_parameters() if "adapter" in n} == {"adapter_shared"}
    three = randomized(Mlp(hidden_sizes=(32,), adapters=Bottleneck(names=("a", "b", "c"))).build(FEATURES))
    x, place = torch.arange(6.0)[None] / 6, three.layers[0]
    h = nn.functional.gelu(place.linear(x))
    assert torch.allclose(on_branch(three, "c", x).features, h + place.adapter_c(h), atol=1e-6)
    mean = (place.adapter_a(h) + place.adapter_b(h) + place.adapter_c(h)) / 3
    assert torch.allclose(on_branch(three, "dual", x).features, h + mean, atol=1e-6)
    with pytest.raises(ConfigError, match=r"adapters\.names: \['a', 'a'\] given"):
        Mlp(hidden_sizes=(32,), adapters=Bottleneck(names=("a", "a"))).build(FEATURES)


def test_last_layers_of_t5_start_at_the_decoders_end() -> None:
    trained = LastLayersTuning(3).trainable_params(small_vt5().build(TASK))
    assert trained == ("t5.encoder.block.1.*", "t5.decoder.block.0.*", "t5.decoder.block.1.*")
    with pytest.raises(ConfigError, match=r"adapters\.layers: 9 given; VT5Network has 4 blocks"):
        LastLayersTuning(9).trainable_params(small_vt5().build(TASK))


def test_bias_tuning_trains_every_bias_alone() -> None:
    network = Mlp(hidden_sizes=(4,), layer_norm=True, adapters=BiasTuning()).build(FEATURES)
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    assert trained == ["layers.0.linear.bias", "layers.0.norm.bias", "head.bias"]


def test_a_model_without_a_head_or_a_place_for_prompts_rejects_them() -> None:
    with pytest.raises(ConfigError, match="VT5Network has no head"):
        small_vt5(adapters=HeadTuning()).build(TASK)
    with pytest.raises(ConfigError, match="MlpNetwork has no place for prompts"):
        Mlp(adapters=Prompt()).build(FEATURES)


@pytest.mark.parametrize(("method", "settings"), [("ia3", {"feedforward_modules": []}), ("oft", {}), ("loha", {})])
def test_peft_methods_are_added_by_name(method: str, settings: dict[str, object]) -> None:
    network = small_vt5(adapters=PeftMethod(method, settings)).build(TASK)
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    assert trained
    assert all(".default" in name for name in trained)


def test_unknown_peft_methods_and_settings_are_one_line_errors() -> None:
    with pytest.raises(ConfigError, match=r"adapters\.method: peft has no 'ia4'; did you mean 'ia3'"):
        small_vt5(adapters=PeftMethod("ia4")).build(TASK)
    with pytest.raises(ConfigError, match=r"^adapters\.settings: LoHaConfig has no setting 'rank'; allowed: alpha,"):
        small_vt5(adapters=PeftMethod("loha", {"rank": 2})).build(TASK)


def test_a_sequential_only_peft_method_is_trained_in_sequential_mode(tmp_path: Path) -> None:
    given = experiment(
        mode="vectorized",
        model=Mlp(hidden_sizes=(8,), adapters=PeftMethod("oft", {"target_modules": ["linear"], "oft_block_size": 4})),
    )
    with pytest.raises(
        ConfigError,
        match=r"^execution\.mode: vectorized, but peft's oft trains one client at a time; allowed: sequential$",
    ):
        run(given, tmp_path / "vectorized")
    run(replace(given, execution=replace(given.execution, mode="auto")), tmp_path / "auto")
    manifest = json.loads((tmp_path / "auto" / "manifest.json").read_text())
    assert manifest["identity"]["mode"] == "sequential"
