"""VT5 against transformers' T5, its published counts, and its settings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from small_vt5 import batch, small_vt5
from transformers import T5ForConditionalGeneration

from simfl.errors import ConfigError
from simfl.models.base import tied_names
from simfl.models.call_context import ModelCall, call_context
from simfl.models.lora import Lora
from simfl.models.prompt import Prompt
from simfl.models.t5_reader import causal_mask, shift_right
from simfl.models.vt5 import VT5
from simfl.models.vt5_network import VT5Network
from simfl.protocol import Task

TASK = Task(seed=3)


def joined(network: VT5Network, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of text and page as inputs of a plain T5, and their mask."""
    text = network.t5.shared(given["input_ids"]) + network.spatial_embedding(given["boxes"])
    page = network.visual_projection(network.encode_page(given["pixel_values"]))
    mask = torch.cat([given["attention_mask"], torch.ones(page.shape[:2], dtype=torch.bool)], 1)
    return torch.cat([text, page], 1), mask


def on_meta(**settings: Any) -> VT5Network:
    with torch.device("meta"):
        return VT5(**settings).network()


def count(network: VT5Network, *prefixes: str) -> int:
    return sum(p.numel() for name, p in network.named_parameters() if name.startswith(prefixes))


def test_vt5s_logits_equal_those_of_t5_on_the_same_embeddings() -> None:
    network, given = small_vt5().build(TASK), batch(3)
    embeddings, mask = joined(network, given)
    expected = network.t5(inputs_embeds=embeddings, attention_mask=mask.long(), labels=given["labels"])
    out = network(**given)
    assert torch.allclose(out.logits, expected.logits, atol=1e-5)
    assert out.mask.tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1] * 5]
    assert torch.allclose(out.features[0], expected.encoder_last_hidden_state[0][mask[0]].mean(0), atol=1e-5)


def test_vt5s_patches_equal_those_of_beit() -> None:
    network, pixels = small_vt5().build(TASK), batch(2)["pixel_values"]
    expected = network.vision(pixels / 127.5 - 1.0).last_hidden_state
    assert torch.allclose(network.encode_page(pixels), expected, atol=1e-6)


def test_greedy_answers_equal_those_of_transformers() -> None:
    network, given = small_vt5().build(TASK), batch(4)
    del given["labels"]
    end = network.generate(**given, max_tokens=3)[0][1, 2]
    network.t5.config.eos_token_id = network.t5.generation_config.eos_token_id = int(end)  # makes answers end early
    embeddings, mask = joined(network, given)
    plain = network.t5.generate(
        inputs_embeds=embeddings, attention_mask=mask.long(), max_new_tokens=12, do_sample=False,
        output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    tokens, probabilities = network.generate(**given, max_tokens=12)
    assert torch.equal(tokens, plain.sequences[:, 1:])
    assert len({(row == end).any().item() for row in tokens}) == 2  # some have ended, others have not
    expected = torch.stack(plain.scores, 1).softmax(-1).amax(-1)
    assert torch.allclose(probabilities, expected, atol=1e-5)


def test_generation_stops_when_every_answer_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    network, given = small_vt5().build(TASK), batch(2)
    del given["labels"]

    def generate_with(first: int, second: int) -> list[list[int]]:
        logits = torch.nn.functional.one_hot(torch.tensor([[first], [second]]), 400).float()
        monkeypatch.setattr(network, "head", lambda hidden: logits)
        return network.generate(**given, max_tokens=3)[0].tolist()

    assert generate_with(7, 7) == [[7, 7, 7], [7, 7, 7]]
    assert generate_with(1, 7) == [[1, 0, 0], [7, 7, 7]]
    assert generate_with(1, 1) == [[1], [1]]


def test_the_decoders_input_is_the_labels_shifted_by_one() -> None:
    assert shift_right(torch.tensor([[7, 8, 1, -100]])).tolist() == [[0, 7, 8, 1]]
    assert shift_right(torch.tensor([[7, 1, -100, -100]])).tolist() == [[0, 7, 1, 0]]
    assert (causal_mask(3, torch.device("cpu")) == 0).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_vt5_reads_text_without_a_page() -> None:
    given = batch(2)
    del given["pixel_values"]
    assert small_vt5().build(TASK)(**given, pixel_values=None).logits.shape == (2, 5, 400)


def test_padding_of_vt5s_text_does_not_change_the_logits() -> None:
    network, given = small_vt5().build(TASK), batch(2)
    before = network(**given).logits
    given["input_ids"][0, 10:], given["boxes"][0, 10:] = 5, 77
    assert torch.equal(network(**given).logits, before)


def test_vt5_base_has_the_published_250_million_parameters() -> None:
    base = on_meta(size="base")
    assert count(base, "t5.") == 222_903_552 + 24_674_304  # T5-base and its untied head
    assert count(base, "t5.shared") == count(base, "t5.lm_head") == 24_674_304
    assert count(base, "t5.encoder") == 84_954_240
    assert count(base, "t5.decoder") == 113_275_008
    assert count(base, "spatial_embedding") == 2_164_992
    assert count(base, "visual_projection") == 590_592
    assert count(base, "t5.", "spatial_embedding.", "visual_projection.") == 250_333_440
    assert count(base, "vision.") == 85_806_336  # ≈ 85.8 M, without a pooler


def test_a_message_with_tied_weights_has_299_682_048_floats() -> None:
    base = on_meta(size="base")
    names = tied_names(base)
    assert names == {f"t5.{side}.embed_tokens.weight": "t5.shared.weight" for side in ("encoder", "decoder")}
    sizes = dict(base.named_parameters())
    sent = count(base, "t5.", "spatial_embedding.", "visual_projection.") + sum(
        sizes[o].numel() for o in names.values()
    )
    assert sent == 299_682_048


def test_a_tied_head_is_a_third_tied_tensor() -> None:
    tied = on_meta(size="base", head="tied")
    assert count(tied, "t5.") == 222_903_552
    assert tied_names(tied)["t5.lm_head.weight"] == "t5.shared.weight"


def test_vt5s_lora_of_rank_6_has_663_552_parameters() -> None:
    base = on_meta(size="base")
    with torch.device("meta"):
        Lora(rank=6).attach(base)
    lora = sum(p.numel() for name, p in base.named_parameters() if ".lora_" in name)
    assert lora == 36 * 2 * 2 * 768 * 6 == 663_552
    assert lora + count(base, "spatial_embedding.", "visual_projection.") == 3_419_136


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_both_heads_keep_the_scaling_of_t5(head: str) -> None:
    network = small_vt5(head=head).build(TASK)
    hidden = torch.ones(1, 1, 32)
    assert torch.allclose(network.head(hidden), network.t5.lm_head(hidden) * 32**-0.5, atol=1e-5)


def test_vt5_tiny_has_about_six_million_parameters() -> None:
    tiny = on_meta(size="tiny", vocab_size=3072, head="tied")
    assert 5.5e6 < count(tiny, "t5.", "spatial_embedding.", "visual_projection.") < 7e6


def test_vt5_is_bit_identical_for_the_same_seed_and_keeps_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, two, three = (small_vt5().build(Task(seed)).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["t5.shared.weight"], three["t5.shared.weight"])


@pytest.mark.parametrize("frozen_dropout", [False, True])
def test_the_page_reader_drops_paths_only_with_frozen_dropout(frozen_dropout: bool) -> None:
    network, given = small_vt5(frozen_dropout=frozen_dropout).build(TASK).train(), batch(16)
    assert network.vision.training is frozen_dropout
    without_key = network.encode_page(given["pixel_values"])
    with call_context(ModelCall(dropout_key=torch.tensor(5))):
        changed = not torch.equal(network.encode_page(given["pixel_values"]), without_key)
    assert changed is frozen_dropout


def test_vt5s_dropout_depends_on_the_key_alone() -> None:
    network, given = small_vt5().build(TASK).train(), batch(2)

    def logits(key: int) -> torch.Tensor:
        with call_context(ModelCall(dropout_key=torch.tensor(key))):
            return network(**given).logits

    first = logits(1)
    assert not torch.equal(logits(2), first)
    assert torch.equal(logits(1), first)
    assert torch.equal(network.eval()(**given).logits, network(**given).logits)


def test_every_dropout_layer_has_its_own_number() -> None:
    network = small_vt5(adapters=Lora()).build(TASK)
    numbers = [m.dropout_layer for m in network.modules() if type(m).__name__ == "KeyedDropout"]
    assert len(numbers) == len(set(numbers)) > 20
    assert not [m for m in network.modules() if isinstance(m, torch.nn.Dropout)]


def test_the_page_reader_alone_is_frozen() -> None:
    model = small_vt5()
    network = model.build(TASK)
    assert model.frozen_params(network) == ("vision.*",)
    assert all(p.requires_grad is not name.startswith("vision.") for name, p in network.named_parameters())


def test_vt5_in_bf16_is_close_to_float32() -> None:
    given = batch(2)
    full = small_vt5().build(TASK)(**given).logits
    half = small_vt5(precision="bf16").build(TASK)(**given).logits
    assert half.dtype == torch.float32
    assert 0 < (half - full).abs().max() < 0.1 * full.abs().max()


def test_unknown_weights_are_rejected() -> None:
    with pytest.raises(ConfigError, match="is not a folder, a hub id or bundled weights; did you mean 'vt5_tiny'"):
        small_vt5(weights="vt5-tyni").build(TASK)


def test_a_copy_of_vt5_gives_the_same_logits() -> None:
    network, given = small_vt5().build(TASK), batch(2)
    assert torch.equal(copy.deepcopy(network)(**given).logits, network(**given).logits)
    assert isinstance(network.t5, T5ForConditionalGeneration)


def test_a_vocabulary_larger_than_the_embedding_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"10 rows are too few for \d+ tokens"):
        small_vt5(vocab_size=10).build(TASK)


def test_vt5s_prompts_precede_the_text_and_follow_the_class_token_of_the_page() -> None:
    plain, prompted = small_vt5().build(Task(1)), small_vt5(adapters=Prompt(tokens=3)).build(Task(1))
    given = {name: tensor for name, tensor in batch(2).items() if name != "labels"}
    before, seen, _ = plain.embed(**given)
    after, visible, bias = prompted.embed(**given)
    length = given["input_ids"].shape[1]
    kept = [*range(3, 3 + length + 1), *range(3 + length + 1 + 3, after.shape[1])]  # the class token is one of them
    assert torch.equal(after[:, kept], before)
    assert torch.equal(visible[:, kept], seen)
    assert int(visible.sum() - seen.sum()) == 2 * 6
    assert bias.shape[-1] == after.shape[1]
    assert not torch.equal(prompted(**batch(2)).logits, plain(**batch(2)).logits)
    assert {name.partition(".")[0] for name, p in prompted.named_parameters() if p.requires_grad} == {"prompts"}
