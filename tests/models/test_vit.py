"""ViT against transformers', in the names of transformers 4 and 5, and its counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from checkpoint_lists import official_shapes, parameter_shapes, renamed_shapes
from safetensors.torch import save_file
from transformers import ViTConfig, ViTForImageClassification

from simfl.errors import ConfigError
from simfl.models.bottleneck import Bottleneck
from simfl.models.vit import ViT, vit_rules
from simfl.models.vit_network import ViTNetwork
from simfl.protocol import Task

CONFIG = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
TASK = Task(seed=1, num_classes=4, shape=(3, 32, 32))
OLD = (  # names of transformers 5 -> 4, independent of the rules under test
    ("vit.layers.", "vit.encoder.layer."), ("attention.q_proj.", "attention.attention.query."),
    ("attention.k_proj.", "attention.attention.key."), ("attention.v_proj.", "attention.attention.value."),
    ("attention.o_proj.", "attention.output.dense."), ("mlp.fc1.", "intermediate.dense."),
    ("mlp.fc2.", "output.dense."),
)  # fmt: skip


def old(name: str) -> str:
    for new, before in OLD:
        name = name.replace(new, before)
    return name


def folder(path: Path, tensors: dict[str, torch.Tensor]) -> str:
    path.mkdir(exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return str(path)


def base(classes: int = 345) -> ViTNetwork:
    with torch.device("meta"):
        return ViT(size="base").network(Task(0, classes, (3, 224, 224)))


@pytest.mark.parametrize("version", [4, 5])
def test_vits_logits_equal_those_of_transformers(version: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = ViTForImageClassification(ViTConfig(**CONFIG, num_labels=4)).eval()
    tensors = {old(name) if version == 4 else name: t for name, t in plain.state_dict().items()}
    network = ViT(weights=folder(tmp_path / "w", tensors)).build(TASK)
    x = torch.randint(0, 256, (3, 3, 32, 32), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    assert torch.allclose(network(x).logits, plain(x / 127.5 - 1.0).logits, atol=1e-5)
    assert torch.equal(network(x.flatten(1)).logits, network(x).logits)


def test_a_checkpoint_without_a_classifier_and_one_of_other_classes_leave_the_head_as_drawn(tmp_path: Path) -> None:
    plain = ViTForImageClassification(ViTConfig(**CONFIG, num_labels=7))
    bare = {re.sub("^vit.", "", name): t for name, t in plain.vit.state_dict().items()}
    drawn = ViT(weights=folder(tmp_path / "a", bare)).build(TASK).head.weight
    other = ViT(weights=folder(tmp_path / "b", plain.state_dict())).build(TASK).head.weight
    assert torch.equal(drawn, other)
    assert drawn.shape == (4, 32)


def test_every_tensor_of_vit_base_has_a_counterpart_of_its_shape() -> None:
    names = official_shapes("vit_base_patch16_224")
    assert len(names) == 200
    assert renamed_shapes(names, vit_rules()) == parameter_shapes(base(1000))


def test_vit_base_has_86_million_parameters() -> None:
    by_hand = 12 * 7_087_872 + (3 * 16 * 16 * 768 + 768) + 768 + 197 * 768 + 2 * 768
    assert sum(p.numel() for p in base().parameters()) == by_hand + 345 * 769 == 85_798_656 + 265_305


def test_vits_adapters_have_as_many_parameters_as_feddats() -> None:
    network = base()
    with torch.device("meta"):
        Bottleneck(names=("shared",)).attach(network)
    assert sum(p.numel() for name, p in network.named_parameters() if ".adapter_" in name) == 894_528


def test_grey_images_of_another_size_are_scaled_and_expanded() -> None:
    module = ViT().build(Task(seed=1, num_classes=4, shape=(1, 28, 28)))
    assert module(torch.zeros(2, 1, 28, 28)).logits.shape == (2, 4)


def test_data_without_a_shape_are_read_at_the_models_size() -> None:
    module = ViT().build(Task(seed=1, num_classes=4))
    assert module(torch.zeros(2, 3, 40, 30)).logits.shape == (2, 4)


def test_data_that_are_not_images_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'vit' reads grey or colour images .* the data have shape \(12,\)"):
        ViT().build(Task(0, 3, (12,)))
