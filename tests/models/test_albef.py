"""ALBEF: published counts and names, its parts against transformers', ranking against scoring every answer."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_lists import official_shapes, parameter_shapes
from transformers import BertConfig, BertLMHeadModel, ViTConfig, ViTModel

from simfl.errors import ConfigError
from simfl.models.albef import Albef, albef_tensors
from simfl.models.albef_network import MEAN, STD, AlbefNetwork
from simfl.models.base import tied_names
from simfl.models.bottleneck import Bottleneck
from simfl.models.lora import Lora
from simfl.models.prompt import Prompt
from simfl.protocol import Batch, Task

TASK = Task(seed=3)


def on_meta(**settings: Any) -> AlbefNetwork:
    with torch.device("meta"):
        return Albef(size="base", **settings).network()


def count(network: torch.nn.Module, *globs: str) -> int:
    return sum(p.numel() for name, p in network.named_parameters() if any(fnmatchcase(name, glob) for glob in globs))


def batch(rows: int = 3, answers: int = 2) -> Batch:
    """Random questions, the first of five tokens, and answers of one to three tokens."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 200, (rows, 8), generator=draw)
    ids[0, 5:] = 0
    labels = torch.randint(4, 200, (rows, answers, 4), generator=draw)
    labels[0, 0, 1:], labels[:, -1, 3:] = -100, -100
    pixels = torch.randint(0, 256, (rows, 3, 32, 32), generator=draw).to(torch.uint8)
    return {"input_ids": ids, "attention_mask": ids != 0, "pixel_values": pixels, "labels": labels}


def test_parameters_are_the_published_290_34_million() -> None:
    network = on_meta()
    parts = {name: count(network, f"{name}.*") for name in ("image", "question", "decoder", "head")}
    assert parts == {"image": 86_090_496, "question": 123_075_072, "decoder": 80_547_840, "head": 622_650}
    assert sum(parts.values()) == 290_336_058


def test_trained_parameters_of_each_kind_are_those_of_feddat() -> None:
    network = on_meta()
    biases = count(network, "*.bias") - count(network, "head.*.bias")
    assert biases + 622_650 == 302_592 + 622_650 == 925_242  # .93 M with the head, which is not sent
    with torch.device("meta"):
        Bottleneck(names=("shared",)).attach(network)
        Prompt().attach(network)
    assert count(network, "*.adapter_*") == 30 * 74_544 == 2_236_320  # 2.86 M with the head
    assert count(network, "prompts.*") == 299_712  # .92 M with the head
    network = on_meta()
    with torch.device("meta"):
        Lora(rank=16, biases=True).attach(network)
    assert count(network, "*.lora_*", "*.base_layer.bias") == 60 * (24_576 + 768) == 1_520_640  # 1.52 M
    assert not [name for name, _ in network.named_parameters() if "crossattention" in name and ".lora_" in name]


@pytest.mark.parametrize("name", ["albef_pretrained", "albef_vqa"])
def test_every_tensor_of_the_published_checkpoints_has_a_counterpart_of_its_shape(name: str) -> None:
    network = on_meta()
    stored = {name: torch.empty(shape, device="meta") for name, shape in official_shapes(name).items()}
    found = {
        name: tuple(t.shape) for name, t in albef_tensors(stored, fusion=6).items() if name not in tied_names(network)
    }
    places = "image.embeddings.position_embeddings"
    assert found.pop(places) in ((1, 257, 768), (1, 577, 768))
    assert found == {n: shape for n, shape in parameter_shapes(network).items() if n != places}


IMAGE = (  # our names -> those of ALBEF's image encoder, independent of the rules under test
    ("embeddings.cls_token", "cls_token"), ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.", "patch_embed.proj."), ("layernorm.", "norm."), ("layers.", "blocks."),
    ("layernorm_before", "norm1"), ("layernorm_after", "norm2"), ("attention.o_proj", "attn.proj"),
)  # fmt: skip


def published(network: AlbefNetwork) -> dict[str, torch.Tensor]:
    """Build a question-answering checkpoint in ALBEF's names."""
    made: dict[str, torch.Tensor] = {}
    for name, tensor in network.named_parameters():
        part, _, rest = name.partition(".")
        for ours, original in IMAGE if part == "image" else ():
            first, inside = rest.startswith(ours), rest.replace(f".{ours}", f".{original}")
            rest = original + rest.removeprefix(ours) if first else inside
        if part in ("question", "decoder") and rest.startswith("layer."):
            rest = f"encoder.{rest}"
        path = {"image": "visual_encoder", "question": "text_encoder", "decoder": "text_decoder.bert"}
        rest = rest.replace("out.", "decoder.") if part == "head" else rest
        made[f"{path.get(part, 'text_decoder.cls.predictions')}.{rest}"] = tensor
    for name in [name for name in made if ".attention.q_proj." in name and "visual" in name]:
        joined = [made.pop(name.replace("q_proj", f"{kind}_proj")) for kind in "qkv"]
        made[name.replace("attention.q_proj", "attn.qkv")] = torch.cat(joined)
    return {name: t.detach().clone() for name, t in made.items()}


def folder(path: Path, tensors: dict[str, torch.Tensor], num_tokens: int) -> str:
    path.mkdir(exist_ok=True)
    torch.save({"model": tensors}, path / "ALBEF.pth")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(num_tokens - 4))]
    (path / "vocab.txt").write_text("\n".join(words) + "\n")
    return str(path)


def test_a_checkpoint_in_the_published_layout_is_loaded_completely(tmp_path: Path) -> None:
    network = Albef().build(TASK)
    tensors = published(network)
    tensors |= {f"visual_encoder_m.{name}": torch.zeros(1) for name in ("cls_token",)}
    num_tokens = network.decoder.embeddings.word_embeddings.num_embeddings
    again = Albef(weights=folder(tmp_path / "w", tensors, num_tokens)).build(Task(4))
    assert all(torch.equal(p, dict(again.named_parameters())[name]) for name, p in network.named_parameters())
    assert again.start_id == 2  # [CLS]


def test_from_a_pretraining_checkpoint_the_decoder_gets_the_upper_half(tmp_path: Path) -> None:
    network = Albef().build(TASK)
    tensors = {}
    for name, tensor in published(network).items():
        if name.startswith("text_encoder."):
            tensors[name.replace("text_encoder.", "text_encoder.bert.")] = tensor
        elif "cls" in name or name.startswith("visual"):
            tensors[name.replace("text_decoder.", "text_encoder.")] = tensor
    again = Albef(weights=folder(tmp_path / "w", tensors, 399)).build(Task(4))
    for name, p in again.decoder.layer[0].named_parameters():
        assert torch.equal(p, network.question.layer[1].get_parameter(name)), name
    assert torch.equal(
        again.decoder.embeddings.word_embeddings.weight, network.question.embeddings.word_embeddings.weight
    )
    assert torch.equal(again.head.transform.dense.weight, network.head.transform.dense.weight)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = published(Albef().build(TASK))
    del tensors["text_decoder.bert.encoder.layer.0.crossattention.self.key.bias"]
    with pytest.raises(ConfigError, match=r"missing \['decoder.layer.0.crossattention.self.key.bias'\]"):
        Albef(weights=folder(tmp_path / "w", tensors, 399)).build(TASK)


def test_the_decoder_is_transformers_bert_with_cross_attention() -> None:
    network, given = Albef().build(TASK), batch()
    config = BertConfig(
        hidden_size=64, num_attention_heads=2, intermediate_size=128, num_hidden_layers=1, is_decoder=True,
        add_cross_attention=True, vocab_size=399, max_position_embeddings=64,
    )  # fmt: skip
    plain = BertLMHeadModel(config).eval()
    own = published(network)
    decoder = {n.removeprefix("text_decoder."): t for n, t in own.items() if "text_decoder" in n}
    plain.load_state_dict(decoder, strict=False)
    plain.cls.predictions.decoder.weight.data.copy_(network.head.out.weight)
    states, _ = network.encode(*(given[k] for k in ("input_ids", "attention_mask", "pixel_values")))
    one = given["labels"][:, 1:]
    before = torch.cat([torch.full((3, 1), network.start_id), one[:, 0, :-1].clamp_min(0)], 1)
    mask = given["attention_mask"].long()
    expected = plain(input_ids=before, encoder_hidden_states=states, encoder_attention_mask=mask).logits
    logits = network(**{**given, "labels": one}).logits
    assert torch.allclose(logits, expected, atol=1e-5)


def test_the_image_encoder_is_transformers_vit() -> None:
    network, pixels = Albef().build(TASK), batch()["pixel_values"]
    config = ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, image_size=32, patch_size=8,
        layer_norm_eps=1e-6,
    )  # fmt: skip
    plain = ViTModel(config, add_pooling_layer=False).eval()
    plain.load_state_dict(network.image.state_dict())
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    given = (pixels / 255 - mean) / std
    assert torch.allclose(network.image.encode(given, torch.nn.ModuleDict()), plain(given).last_hidden_state, atol=1e-5)


def test_the_answer_depends_on_the_image_and_not_on_later_tokens() -> None:
    network, given = Albef().build(TASK), batch()
    before = network(**given).logits
    dark = {**given, "pixel_values": torch.zeros_like(given["pixel_values"])}
    assert not torch.allclose(network(**dark).logits, before, atol=1e-6)
    other = {**given, "labels": given["labels"].clone()}
    other["labels"][:, :, 2] = 9
    assert torch.equal(network(**other).logits.unflatten(1, (2, 4))[:, :, :3], before.unflatten(1, (2, 4))[:, :, :3])
    assert network(**given).mask.tolist()[0] == [1, 0, 0, 0, 1, 1, 1, 0]


def test_ranking_agrees_with_scoring_every_answer() -> None:
    network, given = Albef().build(TASK), batch()
    torch.manual_seed(1)
    network.head.out.weight.data *= 20.0
    answers = torch.randint(4, 200, (5, 4)).masked_fill(torch.arange(4) >= torch.tensor([1, 2, 3, 4, 2])[:, None], -100)
    question = {name: given[name] for name in ("input_ids", "attention_mask", "pixel_values")}
    logits = network(**question, labels=answers.expand(3, 5, 4)).logits.log_softmax(-1).unflatten(1, (5, 4))
    each = (logits.gather(-1, answers.clamp_min(0).expand(3, 5, 4)[..., None])[..., 0] * (answers >= 0)).sum(-1)
    sizes = torch.tensor([5, 5, 2])
    real = torch.arange(5) < sizes[:, None]
    own = torch.where(real, each, -torch.inf)
    best, probability = network.rank(question, answers.expand(3, 5, 4), sizes, num_ranked=5)
    assert best.tolist() == own.argmax(-1).tolist()
    assert torch.allclose(probability, own.softmax(-1).amax(-1), atol=1e-4)
    alone, _ = network.rank(question, answers.expand(3, 5, 4), sizes, num_ranked=1)
    first = logits[:, :, 0].gather(-1, answers[:, 0].expand(3, 5)[..., None])[..., 0]
    assert alone.tolist() == torch.where(real, first, -torch.inf).argmax(-1).tolist()


def test_prompts_change_the_logits() -> None:
    network, given = Albef(adapters=Prompt()).build(TASK), batch()
    before = network(**given).logits
    network.prompts["image"].up.bias.data += torch.arange(64) % 2
    assert not torch.allclose(network(**given).logits, before, atol=1e-6)


def test_the_head_is_trained_with_adapters_but_not_its_tied_word_embeddings() -> None:
    network = Albef(adapters=Bottleneck()).build(TASK)
    trained = {name for name, p in network.named_parameters() if p.requires_grad and ".adapter_" not in name}
    assert trained == {
        "head.transform.dense.weight", "head.transform.dense.bias", "head.transform.LayerNorm.weight",
        "head.transform.LayerNorm.bias", "head.out.bias",
    }  # fmt: skip
