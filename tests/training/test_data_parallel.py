"""Micro-batches: their gradients add up to that of the batch, bit-identical whichever worker takes which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Scattered, Stopping, Toy, experiment, run, scatter, toy, traces
from fakes_documents import Pages

from simfl.algorithms import ALGORITHMS
from simfl.config import rules
from simfl.data.partition.partitioners import Provider
from simfl.errors import ConfigError
from simfl.experiment import Evaluate, Execution
from simfl.models.cnn import Cnn
from simfl.models.dropout import keyed_bits
from simfl.models.vt5 import VT5
from simfl.objectives.docvqa import DocVqa
from simfl.run_context import RunContext
from simfl.runs import checkpoint
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.training.batches import TrainingUnit
from simfl.training.data_parallel import micro_batches

TINY: dict[str, Any] = {
    "size": "tiny",
    "d_model": 32,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": 4000,
    "dropout": 0.1,
}
PAGES = {
    "data": Pages(), "partition": Provider(clients=3), "objective": DocVqa(max_tokens=64), "batch_size": 4,
    "participation": 1.0, "train": ("spatial_embedding.*", "visual_projection.*"), "rounds": 1, "model": VT5(**TINY),
}  # fmt: skip
CASES = {
    "fedavg": {"algorithm": "fedavg"},
    "prox and momentum": {"algorithm": "fedprox", "optimizer": "adam", "learning_rate": 0.01, "keep_optimizer": True},
    "moon": {"algorithm": "moon"},  # a term per example, and a second pass with the received model
    "scaffold": {"algorithm": "scaffold"},
    "convolutions": {
        "algorithm": "fedavg", "data": toy(shape=(1, 12, 12)), "model": Cnn(channels=(4, 4), hidden=8, dropout=0.2),
    },
    "documents": PAGES,  # a loss over tokens, so micro-batches have unequal weights; dropout in attention
}  # fmt: skip
FEW = {"clients_per_round": 2, "rounds": 3}  # fewer than three workers


def in_micro_batches(count, **settings):
    """Return a sequential experiment whose batches are cut into this many micro-batches."""
    return replace(
        experiment(**settings), execution=Execution(mode="sequential", clients_per_batch=2, data_parallel=count)
    )


def weights(folder):
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    return Snapshot.restore(found).model


@pytest.mark.parametrize("name", CASES)
def test_micro_batches_give_the_update_of_whole_batches_with_the_same_dropout(name, tmp_path):
    settings = {"rounds": 2} | CASES[name]
    for count in (1, 3):
        run(in_micro_batches(count, **settings), tmp_path / str(count))
    setting = RunContext(experiment(**settings), tmp_path / "cache")
    start = dict(setting.module.named_parameters()) | dict(setting.module.named_buffers())
    one, three = weights(tmp_path / "1"), weights(tmp_path / "3")
    gap = torch.stack([(three[n] - t).double().square().sum() for n, t in one.items()]).sum().sqrt()
    path = torch.stack([(t - start[n]).double().square().sum() for n, t in one.items()]).sum().sqrt()
    assert path > 0
    assert gap < 1e-5 * path


@pytest.mark.parametrize("name", ["prox and momentum", "scaffold"])
def test_gradients_from_several_workers_are_bit_identical(name, tmp_path, monkeypatch):
    """Three workers take micro-batches in random order; a resumed run is bit-identical too."""
    case = in_micro_batches(4, **CASES[name] | FEW)
    run(case, tmp_path / "alone")
    scatter(monkeypatch)
    run(case, tmp_path / "led")
    assert traces(tmp_path / "led") == traces(tmp_path / "alone")
    run(case, tmp_path / "stopped", display=Stopping(1))
    run(case, tmp_path / "stopped", resume=True)
    assert traces(tmp_path / "stopped") == traces(tmp_path / "alone")


def recorded_calls(monkeypatch, method):
    """Record the number of rows of each task that three workers are given, call by call."""
    calls, done = [], getattr(Scattered, method)

    def counted(self, plans, *rest):
        calls.append([plan.num_examples if method == "evaluate" else len(plan.rows) for plan in plans])
        return done(self, plans, *rest)

    scatter(monkeypatch)
    monkeypatch.setattr(Scattered, method, counted)
    return calls


def test_every_worker_takes_micro_batches_if_there_are_fewer_cohorts(tmp_path, monkeypatch):
    """4 micro-batches of each batch of 8 go to 3 workers; 8 clients are trained with whole batches."""
    calls = recorded_calls(monkeypatch, "partial_gradients")
    run(in_micro_batches(4, rounds=1, clients_per_round=2), tmp_path / "few")
    assert [2, 2, 2, 2] in calls
    calls.clear()
    run(in_micro_batches(4, rounds=1, clients_per_round=8), tmp_path / "many")
    assert calls == []


@pytest.mark.parametrize(("count", "mode"), [(1, "vectorized"), (2, "sequential")])
def test_data_parallel_chooses_the_sequential_mode(count, mode, tmp_path):
    """Forty small clients a round are vectorized if batches stay whole."""
    case = experiment(rounds=1, data=Toy(sizes=(6,) * 40), participation=1.0)
    run(replace(case, execution=Execution(data_parallel=count)), tmp_path)
    assert Run(tmp_path).manifest.identity.mode == mode


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("workers", [pytest.param(workers, marks=pytest.mark.slow) for workers in (1, 2, 3)])
def test_ray_workers_are_bit_identical_to_this_process(workers, tmp_path):
    case = in_micro_batches(4, algorithm="fedprox", **FEW)
    run(case, tmp_path / "here")
    run(case, tmp_path / "ray", workers=workers)
    assert traces(tmp_path / "ray") == traces(tmp_path / "here")


def test_a_batch_is_cut_evenly_without_empty_micro_batches():
    """7 examples in 3 micro-batches: 2, 2 and 3; 2 examples: one each, in two."""
    batches = np.array([[4, 9, 2, 7, 1, 8, 5, -1], [3, 6, -1, -1, -1, -1, -1, -1]])
    item = TrainingUnit(client=5, unit=0, batches=batches, learning_rates=np.ones(2), key=1, num_examples=9)
    first, second = micro_batches(item, 0, 3), micro_batches(item, 1, 3)
    assert [part.rows.tolist() for part in first] == [[4, 9], [2, 7], [1, 8, 5]]
    assert [(part.first, part.batch_size) for part in first] == [(0, 7), (2, 7), (4, 7)]
    assert [part.rows.tolist() for part in second] == [[3], [6]]


def test_dropout_bits_of_a_part_are_those_of_the_whole_batch():
    key = torch.tensor(123456789)
    whole = keyed_bits(key, 3, 21)
    for first, count in ((0, 21), (4, 6), (5, 7), (20, 1)):
        assert torch.equal(keyed_bits(key, 3, count, first), whole[first : first + count])


@pytest.mark.parametrize(
    ("settings", "cohort", "message"),
    [
        (
            {"batch_size": 4},
            {},
            "phases.0.local.batch_size: 4 given, but execution.data_parallel is 8; allowed: at least 8",
        ),
        (
            {},
            {"mode": "vectorized"},
            "phases.0.algorithm: execution.mode is vectorized, but execution.data_parallel is 8",
        ),
        ({"algorithm": "ditto"}, {}, "phases.0.algorithm: Ditto observes single local steps"),
        (
            {"algorithm": "similarity_preserving"},
            {},
            "phases.0.algorithm: the loss of SimilarityPreserving is not a sum",
        ),
    ],
)
def test_unsupported_settings_are_refused(settings, cohort, message):
    given = replace(experiment(**settings), execution=Execution(**{"mode": "sequential", "data_parallel": 8} | cohort))
    with pytest.raises(ConfigError) as refused:
        rules.check(given)
    assert str(refused.value).startswith(message)


@pytest.mark.slow
def test_every_algorithm_with_a_term_over_the_whole_batch_declares_it(tmp_path):
    """All others run without error: the engine checks whether a client's term depends on the passes."""
    for name, kind in ALGORITHMS.items():
        algorithm = kind()
        given = in_micro_batches(2, algorithm=algorithm, rounds=1, clients_per_round=None, participation=1.0)
        if list(rules.violations(given)) or algorithm.needs_targets or name == "fedkd":
            continue
        run(given, tmp_path / name)


def test_an_evaluation_of_few_batches_is_divided_among_workers(tmp_path, monkeypatch):
    """60 examples in batches of 16 are 4 tasks, with the scores of one worker."""
    case = replace(experiment(rounds=1), evaluate=Evaluate(batch_size=16))
    run(case, tmp_path / "alone")
    calls = recorded_calls(monkeypatch, "evaluate")
    run(case, tmp_path / "spread")
    assert calls[0] == [16, 16, 16, 12]
    assert traces(tmp_path / "spread") == traces(tmp_path / "alone")
