"""ViLT against transformers', its published counts, several pairs and heads, and answer lists."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_lists import official_shapes, parameter_shapes, renamed_shapes
from safetensors.torch import save_file
from toy_vqa import batch
from transformers import ViltConfig, ViltForImagesAndTextClassification, ViltForQuestionAnswering

from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.bottleneck import Bottleneck
from simfl.models.heads import MASKED_LOGIT, HeadSpec
from simfl.models.lora import Lora
from simfl.models.partial_tuning import BiasTuning, HeadTuning, LastLayersTuning
from simfl.models.prompt import Prompt
from simfl.models.vilt import TEXT_SIZES, Vilt, vilt_rules
from simfl.models.vilt_network import ViltNetwork
from simfl.protocol import Batch, Task

TASK = Task(seed=3, num_classes=5)
CONFIG = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8, "vocab_size": 200, "max_position_embeddings": 16,
}  # fmt: skip


def on_meta(classes: int = 100, **settings: Any) -> ViltNetwork:
    with torch.device("meta"):
        return Vilt(size="base", **settings).network(Task(0, classes))


def count(network: torch.nn.Module, *globs: str) -> int:
    return sum(p.numel() for name, p in network.named_parameters() if any(fnmatchcase(name, glob) for glob in globs))


def folder(path: Path, tensors: dict[str, torch.Tensor], **config: Any) -> str:
    path.mkdir(exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "what", "paid", "which", "side", "##s"]
    (path / "vocab.txt").write_text("\n".join([*words, *(f"w{i}" for i in range(200 - len(words)))]) + "\n")
    return str(path)


def inputs(rows: int, *pairs: int, length: int = 8) -> Batch:
    """Random pairs; the text of the first is shorter."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 200, (rows, *pairs, length), generator=draw)
    ids[0, ..., 5:] = 0
    pixels = torch.randint(0, 256, (rows, *pairs, 3, 32, 32), generator=draw).to(torch.uint8)
    return {"input_ids": ids, "attention_mask": ids != 0, "pixel_values": pixels}


def theirs(given: Batch) -> Batch:
    """The inputs in transformers' format."""
    return {
        "input_ids": given["input_ids"],
        "attention_mask": given["attention_mask"].long(),
        "pixel_values": given["pixel_values"] / 127.5 - 1.0,
    }


def test_vilts_logits_equal_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = ViltForQuestionAnswering(ViltConfig(**CONFIG, num_labels=5)).eval()
    network = Vilt(weights=folder(tmp_path / "w", plain.state_dict())).build(TASK)
    given = inputs(3)
    assert torch.allclose(network(**given).logits, plain(**theirs(given)).logits, atol=1e-5)


def test_vilts_logits_of_two_images_equal_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = ViltConfig(**CONFIG, num_labels=2, num_images=2, modality_type_vocab_size=3)
    plain = ViltForImagesAndTextClassification(config).eval()
    heads = {"answers": HeadSpec(reads="two", classes=2)}
    weights = folder(tmp_path / "w", plain.state_dict(), modality_type_vocab_size=3)
    network, given = Vilt(weights=weights, heads=heads).build(TASK), inputs(3, 2)
    given["input_ids"] = given["input_ids"][:, :1].expand(-1, 2, -1)
    given["attention_mask"] = given["input_ids"] != 0
    one = {
        **theirs(given),
        "input_ids": given["input_ids"][:, 0],
        "attention_mask": given["attention_mask"][:, 0].long(),
    }
    assert torch.allclose(network(**given).logits, plain(**one).logits, atol=1e-5)


def test_every_tensor_of_vilt_b32_mlm_has_a_counterpart_of_its_shape() -> None:
    names = official_shapes("vilt_b32_mlm")
    assert len(names) == 214
    assert renamed_shapes(names, vilt_rules()) == parameter_shapes(on_meta(), "head.")


def test_a_second_image_starts_as_the_first_and_a_larger_grid_is_interpolated(tmp_path: Path) -> None:
    plain = Vilt(weights=None).network(TASK)
    tensors = {
        f"vilt.{name}": p for name, p in ViltForQuestionAnswering(ViltConfig(**CONFIG)).vilt.state_dict().items()
    }
    weights = folder(tmp_path / "w", tensors)
    network = Vilt(weights=weights, heads={"pair": HeadSpec("two", 2)}, image_size=48).build(TASK)
    kinds = network.embeddings.token_type_embeddings.weight
    assert torch.equal(kinds[1], kinds[2])
    assert not torch.equal(kinds[0], kinds[1])
    assert network.embeddings.position_embeddings.shape == (1, 37, 32)
    assert plain.embeddings.token_type_embeddings.weight.shape[0] == 2


def test_missing_and_unknown_tensors_of_a_vilt_are_named(tmp_path: Path) -> None:
    tensors = ViltForQuestionAnswering(ViltConfig(**CONFIG, num_labels=5)).state_dict()
    del tensors["vilt.layernorm.bias"]
    tensors["vilt.more.weight"] = torch.zeros(2)
    with pytest.raises(ConfigError, match=r"missing \['layernorm.bias'\], unknown \['more.weight'\]"):
        Vilt(weights=folder(tmp_path / "w", tensors)).build(TASK)


def test_vilt_uses_berts_tokenizer(tmp_path: Path) -> None:
    text = Vilt(weights=folder(tmp_path / "w", {})).tokenizer()
    assert text.encode(["What paids"]) == [[4, 5, 8]]
    assert (text.start_id, text.end_id, text.image_size) == (2, 3, 32)


def test_vilt_base_has_the_papers_parameter_counts() -> None:
    fedvqa = on_meta(1642)
    assert count(fedvqa, "layers.0.*") == 7_087_872
    assert count(fedvqa, *LastLayersTuning(3).trainable_params(fedvqa)) == 21_263_616
    assert count(fedvqa, "head.*") == 768 * 1536 + 1536 + 2 * 1536 + 1536 * 1642 + 1642 == 3_708_010
    assert count(fedvqa, "*") - count(fedvqa, "head.*") == 111_595_008
    assert TEXT_SIZES["vocab_size"] * 768 == count(fedvqa, "*word_embeddings*")


TRAINED = {  # FedDAT, as printed: adapter .89 M, prompt .60 M, LoRA .60 M, bias .10 M; heads are not sent
    "adapter": (Bottleneck(names=("shared",)), 12 * 74_544, 894_528),
    "dual": (Bottleneck(), 24 * 74_544, 1_789_056),
    "prompt": (Prompt(), 2 * (5 * 768 + 768 * 192 + 192 + 192 * 768 + 768), 599_424),
    "lora": (Lora(rank=16), 24 * 2 * 16 * 768, 589_824),
    "lora with biases": (Lora(rank=16, biases=True), 589_824 + 24 * 768, 608_256),
    "bias": (BiasTuning(), 12 * 8_448 + 4 * 768, 104_448),
    "head": (HeadTuning(), 0, 0),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_each_adapter_kind_trains_the_published_number_of_parameters(kind: str) -> None:
    adapters, by_hand, published = TRAINED[kind]
    network = on_meta()
    with torch.device("meta"):
        adapters.attach(network)
    trained = set(globbed(network, adapters.trainable_params(network)))
    sizes = {name: p.numel() for name, p in network.named_parameters()}
    assert sum(sizes[name] for name in trained if not name.startswith("head.")) == by_hand == published


def globbed(network: torch.nn.Module, globs: tuple[str, ...]) -> list[str]:
    return [name for name, _ in network.named_parameters() if any(fnmatchcase(name, glob) for glob in globs)]


def test_vilt_with_five_heads_and_adapters_has_feddats_119_2_million_parameters() -> None:
    network = on_meta(heads={f"task{n}": HeadSpec(classes=100) for n in range(5)})
    with torch.device("meta"):
        Bottleneck(names=("shared",)).attach(network)
    assert count(network, "head.*") == 5 * 1_337_956
    assert count(network, "*") == 119_179_316


@pytest.mark.parametrize(
    "adapters", [Bottleneck(), Prompt(), Lora(rank=2), BiasTuning(), LastLayersTuning(1), HeadTuning()]
)
def test_the_head_is_trained_with_every_adapter_kind(adapters: Adapter) -> None:
    network = Vilt(adapters=adapters).build(TASK)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert {name for name in trained if name.startswith("head.")} == set(globbed(network, ("head.*",)))
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert "layers.0.attention.q_proj.weight" in {name.replace("base_layer.", "") for name in frozen}


def test_vilts_prompts_change_the_logits_and_can_be_limited_to_a_modality() -> None:
    network = Vilt(adapters=Prompt(tokens=2)).build(TASK)
    given = batch(Vilt().tokenizer(), 2)
    before = network(**given).logits
    network.prompts["image"].up.bias.data += torch.arange(64) % 2  # a shift of all would be removed by the norm
    assert not torch.allclose(network(**given).logits, before, atol=1e-4)
    one = Vilt(adapters=Prompt(places=("text",))).build(TASK)
    assert list(one.prompts) == ["text"]
    with pytest.raises(ConfigError, match="no place 'txt'; did you mean 'text'"):
        Vilt(adapters=Prompt(places=("txt",))).build(TASK)


def test_examples_of_several_tasks_use_their_own_heads() -> None:
    heads = {"vqa": HeadSpec(classes=4), "pair": HeadSpec("two", 2), "choice": HeadSpec("each")}
    network, given = Vilt(heads=heads).build(TASK), inputs(3, 3)
    given["input_ids"] %= 100
    out = network(**given, head=torch.tensor([0, 1, 2])).logits
    assert out.shape == (3, 4)
    assert (out == MASKED_LOGIT).tolist() == [[False] * 4, [False, False, True, True], [False, False, False, True]]
    alone = network(**{name: t[:1] for name, t in given.items()}, head=torch.tensor([0])).logits
    assert torch.allclose(out[:1], alone, atol=1e-5)
    swapped = {name: t[:, [0, 2, 1]] for name, t in given.items()}  # VQA reads the first pair alone
    assert torch.allclose(network(**swapped, head=torch.tensor([0, 1, 2])).logits[0], out[0], atol=1e-5)


def test_answers_beyond_a_clients_list_have_probability_zero() -> None:
    network, given = Vilt().build(TASK), batch(Vilt().tokenizer(), 2)
    out = network(**given, num_answers=torch.tensor([5, 2])).logits
    probabilities = out.softmax(-1)
    assert probabilities[1, 2:].tolist() == [0, 0, 0]
    assert torch.equal(out[0], network(**given).logits[0])
    divergence = (probabilities * (out.log_softmax(-1) - out.flip(0).log_softmax(-1)))[0]
    assert torch.isfinite(divergence).all()


def test_padding_of_vilts_text_does_not_change_the_logits() -> None:
    network, given = Vilt().build(TASK), batch(Vilt().tokenizer(), 2)
    before = network(**given).logits
    longer = {**given, "input_ids": torch.nn.functional.pad(given["input_ids"], (0, 4), value=0)}
    longer["attention_mask"] = longer["input_ids"] != 0
    assert torch.allclose(network(**longer).logits, before, atol=1e-5)


def test_vilt_in_bf16_is_close_to_float32() -> None:
    given = batch(Vilt().tokenizer(), 2)
    full, half = Vilt().build(TASK)(**given).logits, Vilt(precision="bf16").build(TASK)(**given).logits
    assert half.dtype == torch.float32
    assert 0 < (half - full).abs().max() < 0.1


def test_vilt_is_bit_identical_for_the_same_seed() -> None:
    one, two = (Vilt(adapters=Bottleneck()).build(TASK).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_task_without_a_number_of_answers_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"model\.heads\.answers\.classes: missing"):
        Vilt().build(Task(0))
