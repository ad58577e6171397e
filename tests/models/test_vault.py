"""VAuLT against transformers' BERT and ViLT, and its published counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_lists import official_shapes, parameter_shapes, renamed_shapes
from safetensors.torch import save_file
from test_vilt import CONFIG, count, inputs, theirs
from test_vilt import folder as vilt_folder
from transformers import BertConfig, BertModel, ViltConfig, ViltForQuestionAnswering

from simfl.errors import ConfigError
from simfl.models.bottleneck import Bottleneck
from simfl.models.heads import HeadSpec
from simfl.models.lora import Lora
from simfl.models.prompt import Prompt
from simfl.models.vault import TEXT_RULES, Vault
from simfl.models.vault_network import VaultNetwork
from simfl.protocol import Task

TASK = Task(seed=3, num_classes=5)
BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 200,
    "max_position_embeddings": 20,
}  # fmt: skip


def on_meta(**settings: Any) -> VaultNetwork:
    heads = {f"task{n}": HeadSpec(classes=100) for n in range(5)}
    with torch.device("meta"):
        return Vault(size="base", heads=heads, **settings).network(Task(0))


def bert_folder(path: Path, tensors: dict[str, torch.Tensor], **config: Any) -> str:
    """Save a BERT under the names of Google's files."""
    path.mkdir(exist_ok=True)
    old = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for n, t in tensors.items()
    }
    save_file({f"bert.{name}": t.contiguous() for name, t in old.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(BERT | config))
    (path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "what"]) + "\n")
    return str(path)


def test_vaults_logits_equal_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bert = BertModel(BertConfig(**BERT)).eval()
    vilt = ViltForQuestionAnswering(ViltConfig(**CONFIG, num_labels=5)).eval()
    weights, text = vilt_folder(tmp_path / "v", vilt.state_dict()), bert_folder(tmp_path / "b", bert.state_dict())
    network, given = Vault(weights=weights, text=text).build(TASK), inputs(3)
    plain = theirs(given)
    words = bert(input_ids=plain["input_ids"], attention_mask=plain["attention_mask"]).last_hidden_state
    expected = vilt(inputs_embeds=words, **{name: t for name, t in plain.items() if name != "input_ids"})
    assert torch.allclose(network(**given).logits, expected.logits, atol=1e-5)
    assert Vault(text=text, weights=weights).tokenizer().encode(["What"]) == [[4]]


def test_vault_has_the_published_227_77_million_parameters() -> None:
    network = on_meta()
    assert count(network, "bert.*") == 109_482_240
    assert count(network, "*") == 227_767_028


def test_adapters_have_1_79_million_parameters_and_half_of_that_with_a_frozen_bert() -> None:
    for frozen, expected in ((False, 24 * 74_544), (True, 12 * 74_544)):
        network = on_meta(frozen_text=frozen)
        with torch.device("meta"):
            Bottleneck(names=("shared",)).attach(network)
        assert count(network, "*.adapter_*") == expected
    assert 24 * 74_544 == 1_789_056


def test_vaults_lora_prompts_and_biases_are_those_of_feddat() -> None:
    network = on_meta()
    biases = [p.numel() for name, p in network.named_parameters() if name.endswith(".bias")]
    heads, pooler = 5 * (1536 + 1536 + 100), 768
    assert sum(biases) - heads - pooler == 104_448 + 12 * 8_448 + 768 == 206_592  # .21 M
    with torch.device("meta"):
        Lora(rank=16, biases=True).attach(network)
        Prompt().attach(network)
    assert count(network, "*.lora_*", "*.base_layer.bias") == 608_256  # .60 M: in ViLT alone
    assert count(network, "prompts.*") == 599_424


def test_every_tensor_of_bert_has_a_counterpart_in_vault() -> None:
    own = {name: shape for name, shape in parameter_shapes(on_meta()).items() if name.startswith("bert.")}
    assert renamed_shapes(official_shapes("bert_base_uncased"), TEXT_RULES) == own


def test_tensors_without_use_are_never_trained() -> None:
    model = Vault()
    network = model.build(TASK)
    frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
    assert frozen == [
        "embeddings.text_embeddings.word_embeddings.weight", "bert.pooler.dense.weight", "bert.pooler.dense.bias",
    ]  # fmt: skip
    loss = network(**{n: t % 100 if n == "input_ids" else t for n, t in inputs(2).items()}).logits.square().sum()
    trained = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, [p for _, p in trained])  # raises if one is unused
    assert all(
        g.abs().sum() > 0
        for (name, _), g in zip(trained, gradients, strict=True)
        if "key" not in name and "k_proj" not in name
    )


def test_a_frozen_bert_stays_in_evaluation_mode() -> None:
    network = Vault(frozen_text=True, dropout=0.1).build(TASK).train()
    assert network.layers.training
    assert not network.bert.training
    assert not [name for name, p in network.named_parameters() if p.requires_grad and name.startswith("bert.")]


def test_different_widths_of_bert_and_vilt_are_rejected(tmp_path: Path) -> None:
    text = bert_folder(tmp_path / "b", {}, hidden_size=64 * 2)
    with pytest.raises(ConfigError, match=r"BERT's width is 128, ViLT's 64"):
        Vault(text=text).build(TASK)
