"""Small experiments with models of transformers run without a download, on tiny models with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from simfl import config, simulation
from simfl.session.options import RunOptions

ROOT = Path(__file__).parent.parent / "experiments"
TINY = (
    "model={name: hf, config: {model_type: llama, hidden_size: 32, intermediate_size: 32, num_hidden_layers: 2,"
    + " num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16},"
    + " adapters: {kind: lora, rank: 4, targets: [q_proj]}}"
)
SHORT = "phases.0.local={steps: 1, batch_size: 2, optimizer: adamw, learning_rate: 1e-3}"
pytestmark = pytest.mark.slow


def run(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str):
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    experiment = config.load(ROOT / path, [SHORT, *overrides])
    return simulation.run(experiment, RunOptions(out=tmp_path / "run", backend="inline"))


def test_four_domains_are_trained_and_scored_in_both_kinds_of_wording(tmp_path, monkeypatch):
    data = "data={name: instruction_tasks, train: 10, valid: 2, test: 2, unseen: 2}"
    found = run("fedllm/domains_small.yaml", tmp_path, monkeypatch, TINY, data, "rounds=1", "evaluate.every=1")
    assert {"anls", "unseen.anls"} <= set(found["final"])
    assert found["plan"] == "matches"
    assert found["clients"] == 20


@pytest.mark.parametrize("personal", [False, True])
def test_questions_about_pages_share_all_adapters_or_those_of_the_lower_layers(tmp_path, monkeypatch, personal):
    ways = ["personal_params=['*.layers.1.*lora_*']", "evaluate.models=[global, personal]"] if personal else []
    found = run("fedvlm/invoices_small.yaml", tmp_path, monkeypatch, *ways)
    assert ("personal.anls" in found["final"]) == personal
    sent = found["bytes"]["upload"]
    assert found["plan"] == "matches"
    assert sent == (8_064 if personal else 16_128)  # NF4: two rounds of two clients
