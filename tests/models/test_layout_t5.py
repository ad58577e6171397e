"""FeDocVQA's model: against transformers' UDOP, its counts, and checkpoints in three layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from checkpoint_lists import official_shapes, parameter_shapes, renamed_shapes
from safetensors.torch import save_file
from transformers import T5Config, T5ForConditionalGeneration, UdopConfig, UdopForConditionalGeneration

from simfl.errors import ConfigError
from simfl.models.grouped_layers import ungrouped_params
from simfl.models.layout_t5 import CHECKPOINT_RULES, MAE_RULES, LayoutT5
from simfl.models.layout_t5_network import MEAN, STD, LayoutT5Network
from simfl.models.lora import Lora
from simfl.models.prompt import Prompt
from simfl.models.tokenizer import public_tokenizer
from simfl.protocol import Batch, Task

TASK = Task(seed=1)
ROWS = public_tokenizer().get_vocab_size()
T5 = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 2, "d_kv": 32, "vocab_size": ROWS, "dropout_rate": 0.0}


def on_meta(**settings: Any) -> LayoutT5Network:
    with torch.device("meta"):
        return LayoutT5(**{"size": "base"} | settings).network()


def batch(rows: int = 2) -> Batch:
    """Six words and an end; the last two tokens of the first row are padding. The first word is in patch 0."""
    draw = torch.Generator().manual_seed(0)
    corner = torch.randint(0, 7, (rows, 9, 2), generator=draw) * 125  # eighths of a page are exact in every precision
    boxes = torch.cat([corner, corner + 125], -1)
    boxes[:, 0], boxes[:, 6] = torch.tensor([0, 0, 125, 125]), 0
    mask = torch.ones(rows, 9, dtype=torch.bool)
    mask[0, 7:], boxes[0, 7:] = False, 0
    return {
        "input_ids": torch.randint(3, ROWS, (rows, 9), generator=draw) * mask,
        "boxes": boxes,
        "attention_mask": mask,
        "labels": torch.randint(3, ROWS, (rows, 4), generator=draw),
        "pixel_values": torch.randint(0, 256, (rows, 3, 64, 64), generator=draw).to(torch.uint8),
    }


def folder(path: Path, tensors: dict[str, torch.Tensor]) -> str:
    path.mkdir(exist_ok=True)
    save_file({name: t.clone().contiguous() for name, t in tensors.items()}, path / "model.safetensors")
    public_tokenizer().save(str(path / "tokenizer.json"))
    return str(path)


def udop() -> UdopForConditionalGeneration:
    torch.manual_seed(0)
    kinds = [{"type": kind} for kind in ("1d", "horizontal", "vertical")]
    config = UdopConfig(
        **T5, image_size=64, patch_size=16, max_2d_position_embeddings=1024, relative_bias_args=kinds,
        feed_forward_proj="relu", decoder_start_token_id=0,
    )  # fmt: skip
    return UdopForConditionalGeneration(config).eval()


def test_logits_equal_those_of_udop_from_its_checkpoint(tmp_path: Path) -> None:
    plain, given = udop(), batch()
    tensors = plain.state_dict() | {"special_vis_token": torch.zeros(1, 1, 64)}
    network = LayoutT5(weights=folder(tmp_path / "w", tensors)).build(TASK)
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    expected = plain(
        input_ids=given["input_ids"], attention_mask=given["attention_mask"].long(), bbox=given["boxes"] / 1000,
        pixel_values=(given["pixel_values"] / 255 - mean) / std, labels=given["labels"],
    )  # fmt: skip
    assert torch.allclose(network(**given).logits, expected.logits, atol=2e-5)


def test_words_without_a_position_carry_no_patch_and_hide_none() -> None:
    network, given = LayoutT5().build(TASK), batch()
    given["boxes"][:, :] = torch.tensor([0, 0, 1000, 1000])
    tokens, visible, _ = network.embed(*(given[k] for k in ("input_ids", "boxes", "attention_mask", "pixel_values")))
    words = network.t5.shared(given["input_ids"]) + network.box(torch.zeros(2, 9, 4))
    assert torch.allclose(tokens[:, :9], words)
    assert visible[:, 9:].sum(1).tolist() == [16, 16]


def test_a_patch_under_a_word_is_added_to_the_word_and_removed_from_the_patches() -> None:
    network, given = LayoutT5().build(TASK), batch()
    given["boxes"][:, :] = 0
    given["boxes"][1, 2] = torch.tensor([300, 550, 400, 600])  # centre (.35, .575) of a 4 × 4 grid: column 1, row 2
    tokens, visible, _ = network.embed(*(given[k] for k in ("input_ids", "boxes", "attention_mask", "pixel_values")))
    patches = network.embed_patches(given["pixel_values"])
    place = torch.tensor([[0.3, 0.55, 0.4, 0.6]])
    expected = network.t5.shared(given["input_ids"])[1, 2] + patches[1, 9] + network.box(place)[0]
    assert torch.allclose(tokens[1, 2], expected, atol=1e-6)
    assert visible[:, 9:].sum(1).tolist() == [16, 15]
    grid = torch.tensor([[0.5, 0.5, 0.75, 0.75]])  # the next one, number 10, has moved up
    assert torch.allclose(
        tokens[1, 9 + 9], patches[1, 10] + network.patch_token.weight[0] + network.box(grid)[0], atol=1e-6
    )
    assert visible[1, -1] == 0


def test_padding_does_not_change_the_logits() -> None:
    network, given = LayoutT5().build(TASK), batch()
    before = network(**given).logits
    given["input_ids"][0, 7:], given["boxes"][0, 7:] = 5, 77
    assert torch.equal(network(**given).logits, before)


def test_layout_t5_has_225_million_parameters() -> None:
    base = on_meta()
    sizes = {name: p.numel() for name, p in base.named_parameters()}
    t5, patches, tables = 222_903_552, 3 * 16 * 16 * 768 + 768, 2 * 1024 * 768
    assert (patches, tables) == (590_592, 1_572_864)
    assert sum(sizes.values()) == t5 + patches + tables + 768 + 2 * 32 * 12 == 225_068_544
    grown = sum(p.numel() for p in on_meta(vocab_size=33_201).parameters())
    assert grown - sum(sizes.values()) == (33_201 - 32_128) * 768 == 824_064


def test_linear_boxes_have_3_840_parameters() -> None:
    assert sum(p.numel() for p in on_meta(boxes="linear").box.parameters()) == 3_840
    assert LayoutT5(boxes="linear").build(TASK)(**batch()).logits.shape == (2, 4, ROWS)


def test_every_tensor_of_fldocvqa_has_a_counterpart_of_its_shape() -> None:
    base = on_meta()
    own = {name: tuple(p.shape) for name, p in base.named_parameters(remove_duplicate=False)}
    assert renamed_shapes(official_shapes("fldocvqa"), CHECKPOINT_RULES) == own


def test_mae_provides_the_patch_embedding_alone() -> None:
    names = official_shapes("mae_pretrain_vit_base")
    assert renamed_shapes(names, MAE_RULES) == {
        n: s for n, s in parameter_shapes(on_meta()).items() if n.startswith("patches.")
    }


def test_a_plain_t5_and_mae_fill_their_own_parts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = T5ForConditionalGeneration(T5Config(**T5, decoder_start_token_id=0)).state_dict()
    mae = {"patch_embed.proj.weight": torch.ones(64, 3, 16, 16), "patch_embed.proj.bias": torch.ones(64)}
    mae |= {"cls_token": torch.zeros(1, 1, 64), "blocks.0.norm1.weight": torch.zeros(64)}
    (tmp_path / "mae").mkdir()
    torch.save({"model": mae}, tmp_path / "mae" / "mae_pretrain_vit_base.pth")
    drawn = dict(LayoutT5().build(TASK).named_parameters())
    weights = folder(tmp_path / "w", plain)
    network = LayoutT5(weights=weights, patches=str(tmp_path / "mae"), vocab_size=ROWS + 5).build(TASK)
    own = dict(network.named_parameters())
    assert all(
        torch.equal(own[f"t5.{name}"], t) for name, t in plain.items() if f"t5.{name}" in own and "shared" not in name
    )
    assert torch.equal(own["t5.shared.weight"][:ROWS], plain["shared.weight"])
    assert torch.equal(own["patches.weight"], mae["patch_embed.proj.weight"])
    assert own["box.x.weight"].shape == drawn["box.x.weight"].shape


def test_a_full_checkpoint_must_be_complete(tmp_path: Path) -> None:
    tensors = udop().state_dict()
    with pytest.raises(ConfigError, match=r"missing \['patch_token\.weight'\]"):
        LayoutT5(weights=folder(tmp_path / "w", tensors)).build(TASK)


def test_lora_has_as_many_parameters_as_in_t5() -> None:
    network = on_meta()
    with torch.device("meta"):
        Lora(rank=6).attach(network)
    assert sum(p.numel() for name, p in network.named_parameters() if ".lora_" in name) == 663_552


def test_generated_answers_agree_with_teacher_forcing() -> None:
    network, given = LayoutT5(dropout=0.0).build(TASK), batch()
    del given["labels"]
    tokens, probabilities = network.generate(**given, max_tokens=4)
    logits = network(**given, labels=tokens).logits
    assert torch.equal(logits.argmax(-1), tokens)
    assert torch.allclose(logits.softmax(-1).amax(-1), probabilities, atol=1e-5)


def test_prompts_precede_words_and_patches_without_a_position() -> None:
    plain, prompted = LayoutT5().build(TASK), LayoutT5(adapters=Prompt(tokens=3)).build(TASK)
    given = {name: tensor for name, tensor in batch().items() if name != "labels"}
    before, seen, bias = plain.embed(**given)
    after, visible, wider = prompted.embed(**given)
    words, patches = slice(3, 12), slice(15, None)  # of 9 and 16, after three tokens each
    assert after.shape[1] == before.shape[1] + 6
    assert torch.equal(torch.cat([after[:, words], after[:, patches]], 1), before)
    assert torch.equal(visible[:, :3], torch.ones(2, 3))
    assert torch.equal(torch.cat([visible[:, words], visible[:, patches]], 1), seen)
    assert torch.equal(wider[:, :, words, words], bias[:, :, :9, :9])
    assert not torch.equal(prompted(**batch()).logits, plain(**batch()).logits)


def test_the_medium_size_has_16_million_parameters() -> None:
    sizes = {name: p.numel() for name, p in on_meta(size="medium", special_tokens=True).named_parameters()}
    attention, feed_forward, norm = 4 * 384 * 384, 2 * 384 * 1024, 384
    encoder = 4 * (attention + feed_forward + 2 * norm) + norm + 32 * 6
    decoder = 4 * (2 * attention + feed_forward + 3 * norm) + norm + 32 * 6
    words, boxes, patches = (3072 + 1201) * 384, 2 * 1024 * 384, 3 * 16 * 16 * 384 + 384
    assert sum(sizes.values()) == encoder + decoder + words + boxes + patches + 384 + 2 * 32 * 6 == 16_101_504


def test_a_vocabulary_is_loaded_without_its_weights() -> None:
    given, own = (
        LayoutT5(vocabulary="vt5_tiny", size="small").tokenizer(),
        LayoutT5(weights="vt5_tiny", size="small").tokenizer,
    )
    assert given.backend.to_str() == own().backend.to_str() != public_tokenizer().to_str()
    with pytest.raises(ConfigError, match=r"model\.vocabulary: .*'vt5_tony'"):
        LayoutT5(vocabulary="vt5_tony").tokenizer()


def test_boxes_and_patches_start_small_against_words() -> None:
    network = LayoutT5(size="small").build(TASK)
    place = network.box(torch.rand(1, 500, 4)).detach().std()  # four rows of deviation 1/16 each
    white = network.embed_patches(torch.full((1, 3, 64, 64), 255, dtype=torch.uint8)).detach().std()
    words = network.t5.shared.weight.detach().std()
    assert 0.9 < words < 1.1
    assert abs(float(place) - 0.125) < 0.02
    assert white < 0.3


@pytest.mark.parametrize("boxes", ["tables", "linear"])
def test_every_layer_has_a_grouped_form(boxes: Literal["tables", "linear"]) -> None:
    network = LayoutT5(boxes=boxes).build(TASK)
    assert ungrouped_params(network, tuple(dict(network.named_parameters()))) == []


def gradients(device: str, precision: Literal["float32", "bf16"]) -> dict[str, torch.Tensor]:
    """Gradients of the mean cross-entropy."""
    network = LayoutT5(dropout=0.0, precision=precision).build(TASK).to(device).train()
    given = {name: tensor.to(device) for name, tensor in batch(8).items()}
    loss = torch.nn.functional.cross_entropy(network(**given).logits.flatten(0, 1), given["labels"].flatten())
    loss.backward()
    return {name: p.grad.detach().cpu() for name, p in network.named_parameters()}


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "bound"), [("float32", 0.02), ("bf16", 0.1)])
def test_gradients_on_a_gpu_equal_those_on_the_cpu(precision: Literal["float32", "bf16"], bound: float) -> None:
    expected, found = gradients("cpu", "float32"), gradients("cuda", precision)
    for name, slope in expected.items():
        assert (found[name] - slope).norm() < bound * slope.norm(), name
