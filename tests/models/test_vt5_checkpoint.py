"""VT5 checkpoints in three layouts, the published checkpoint's names, and errors of loading."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_lists import official_shapes
from safetensors.torch import load_file, save_file
from small_vt5 import SMALL, batch, near, small_vt5
from torch import Tensor

from simfl.errors import ConfigError
from simfl.models.base import tied_names
from simfl.models.lora import Lora
from simfl.models.tokenizer import public_tokenizer
from simfl.models.vt5 import VT5
from simfl.models.vt5_checkpoint import VISION_KEYS, rename_vt5, save_vt5
from simfl.protocol import Task

BACK = (  # our names -> those of the published checkpoint, independent of the rules under test
    ("spatial_embedding.x.", "spatial_embedding.x_position_embeddings."),
    ("spatial_embedding.y.", "spatial_embedding.y_position_embeddings."),
    ("spatial_embedding.norm.", "spatial_embedding.LayerNorm."),
    ("spatial_embedding.projection.", "spatial_embedding.spatial_emb_matcher.layers.0."),
    ("visual_projection.", "visual_embedding.visual_emb_matcher.layers.0."),
    ("vision.layers.", "visual_embedding.image_model.encoder.layer."),
    ("vision.", "visual_embedding.image_model."),
    (".attention.q_proj.", ".attention.attention.query."),
    (".attention.k_proj.", ".attention.attention.key."),
    (".attention.v_proj.", ".attention.attention.value."),
    (".attention.o_proj.", ".attention.output.dense."),
    (".mlp.fc1.", ".intermediate.dense."),
    (".mlp.fc2.", ".output.dense."),
)


def published_name(name: str) -> str:
    for ours, theirs in BACK:
        name = name.replace(ours, theirs) if not name.startswith("t5.") else name
    return re.sub("^t5\\.", "language_backbone.", name)


def published(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Build a state dict in the published layout, with copies of the embedding and the unused pooler."""
    made = {published_name(name): t.clone() for name, t in tensors.items()}
    for side in ("encoder", "decoder"):
        made[f"language_backbone.{side}.embed_tokens.weight"] = tensors["t5.shared.weight"].clone()
    width = len(tensors["vision.embeddings.cls_token"][0, 0])
    return made | {
        f"visual_embedding.image_model.pooler.layernorm.{kind}": torch.ones(width) for kind in ("weight", "bias")
    }


def folder(path: Path, tensors: dict[str, Tensor], **config: Any) -> str:
    path.mkdir(exist_ok=True)
    save_file(tensors, path / "model.safetensors")
    vision = {key: getattr(small_vt5().network().vision.config, key) for key in VISION_KEYS}
    (path / "config.json").write_text(json.dumps({**SMALL, "d_kv": 64, "vision": vision, **config}))
    public_tokenizer().save(str(path / "tokenizer.json"))
    return str(path)


def parameters(model: VT5) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.build(Task(1)).named_parameters()}


def test_every_tensor_of_the_published_vt5_has_a_counterpart_of_its_shape() -> None:
    with torch.device("meta"):
        base = VT5(size="base").network()
    own = {name: tuple(p.shape) for name, p in base.named_parameters(remove_duplicate=False)}
    shapes = official_shapes("vt5_base_spdocvqa")
    renamed = rename_vt5(shapes)
    unused = set(shapes) - set(renamed)
    assert {renamed[name]: shapes[name] for name in renamed} == own
    assert unused == {f"visual_embedding.image_model.pooler.layernorm.{kind}" for kind in ("weight", "bias")}


def test_the_published_vt5_has_250_million_trained_parameters() -> None:
    sizes = {name: math.prod(shape) for name, shape in official_shapes("vt5_base_spdocvqa").items()}
    assert len(sizes) == 478
    trained = sum(size for name, size in sizes.items() if "image_model" not in name and "embed_tokens" not in name)
    assert trained == 250_333_440


def test_a_vt5_checkpoint_in_the_published_layout_is_loaded_completely(tmp_path: Path) -> None:
    tensors = parameters(small_vt5())
    network = VT5(weights=folder(tmp_path / "w", published(tensors))).build(Task(2))
    assert all(torch.equal(p, tensors[name]) for name, p in network.named_parameters())
    assert "t5.lm_head.weight" not in tied_names(network)


def test_a_pytorch_file_is_loaded_too(tmp_path: Path) -> None:
    tensors = parameters(small_vt5())
    where = Path(folder(tmp_path / "w", {}))
    (where / "model.safetensors").unlink()
    torch.save(published(tensors), where / "pytorch_model.bin")
    network = VT5(weights=str(where)).build(Task(2))
    assert all(torch.equal(p, tensors[name]) for name, p in network.named_parameters())


def test_missing_and_unknown_tensors_of_a_vt5_are_named(tmp_path: Path) -> None:
    tensors = published(parameters(small_vt5()))
    del tensors["spatial_embedding.LayerNorm.bias"]
    tensors["spatial_embedding.h_position_embeddings.weight"] = torch.zeros(3)
    with pytest.raises(
        ConfigError, match=r"missing \['spatial_embedding.norm.bias'\], unknown .*h_position_embeddings"
    ):
        VT5(weights=folder(tmp_path / "w", tensors)).build(Task(2))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    tensors = published(parameters(small_vt5()))
    tensors["spatial_embedding.LayerNorm.bias"] = torch.zeros(31)
    with pytest.raises(ConfigError, match=r"spatial_embedding.norm.bias is \[31\], the model's is \[32\]"):
        VT5(weights=folder(tmp_path / "w", tensors)).build(Task(2))


def test_a_tied_tensor_with_other_values_is_rejected(tmp_path: Path) -> None:
    tensors = published(parameters(small_vt5()))
    tensors["language_backbone.encoder.embed_tokens.weight"] += 1
    with pytest.raises(ConfigError, match=r"encoder\.embed_tokens\.weight differs from t5\.shared"):
        VT5(weights=folder(tmp_path / "w", tensors)).build(Task(2))


def test_a_plain_t5_fills_the_language_model_alone(tmp_path: Path) -> None:
    tensors = parameters(small_vt5(head="tied"))
    plain = {name.removeprefix("t5."): t for name, t in tensors.items() if name.startswith("t5.")}
    old = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(32, 2)}
    network = VT5(weights=folder(tmp_path / "w", plain | old)).build(Task(2))
    own = dict(network.named_parameters())
    assert all(torch.equal(own[f"t5.{name}"], t) for name, t in plain.items())
    assert torch.equal(own["t5.lm_head.weight"], plain["shared.weight"])  # untied in the model, tied in the file
    assert not torch.equal(own["spatial_embedding.x.weight"], tensors["spatial_embedding.x.weight"])


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_saved_weights_are_loaded_at_half_precision(tmp_path: Path, head: str) -> None:
    network, given = small_vt5(head=head).build(Task(1)), batch(2)
    save_vt5(network, tmp_path / "s")
    stored = load_file(tmp_path / "s" / "model.safetensors")
    assert {t.dtype for t in stored.values()} == {torch.float16}
    again = VT5(weights=str(tmp_path / "s")).build(Task(2))
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    assert all(torch.equal(p, stored[name].float()) for name, p in again.named_parameters())
    assert len(tied_names(again)) == (3 if head == "tied" else 2)
    assert torch.allclose(again(**given).logits, network(**given).logits, atol=0.05)


def test_adapters_are_added_to_loaded_weights(tmp_path: Path) -> None:
    save_vt5(small_vt5().build(Task(1)), tmp_path / "s", torch.float32)
    given = batch(2)
    adapted = VT5(weights=str(tmp_path / "s"), adapters=Lora()).build(Task(2))
    assert near(adapted(**given).logits, small_vt5().build(Task(1))(**given).logits)


def test_a_size_other_than_the_weights_is_rejected(tmp_path: Path) -> None:
    save_vt5(small_vt5().build(Task(1)), tmp_path / "s")
    with pytest.raises(ConfigError, match=r"'base' is not the size of .* whose d_model is 32"):
        VT5(size="base", weights=str(tmp_path / "s")).build(Task(1))


def test_untied_weights_cannot_be_tied_by_a_setting(tmp_path: Path) -> None:
    network = small_vt5().build(Task(1))
    with torch.no_grad():
        network.t5.lm_head.weight += 1
    save_vt5(network, tmp_path / "s")
    with pytest.raises(ConfigError, match=r"t5\.lm_head\.weight differs from t5\.shared"):
        VT5(head="tied", weights=str(tmp_path / "s")).build(Task(1))


def test_a_gated_t5_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a T5 with gated-gelu"):
        VT5(weights=folder(tmp_path / "w", {}, feed_forward_proj="gated-gelu")).build(Task(1))


def test_a_folder_without_config_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        VT5(weights=str(tmp_path)).build(Task(1))


def test_a_hub_id_that_cannot_be_downloaded_is_a_one_line_error() -> None:
    with pytest.raises(ConfigError, match="'missing/weights' is not a local folder and cannot be downloaded") as error:
        VT5(weights="missing/weights").build(Task(1))
    assert "\n" not in str(error.value)
