"""A local batch in pieces: the gradient of the whole, to rounding; and the same bits, whoever takes which piece."""

from __future__ import annotations

from dataclasses import replace

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
from simfl.training.context import TrainingUnit
from simfl.training.data_parallel import cut

TINY = {"size": "tiny", "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 2, "vocab_size": 4000, "dropout": 0.1}
PAGES = {
    "data": Pages(), "partition": Provider(clients=3), "objective": DocVqa(max_tokens=64), "batch_size": 4,
    "participation": 1.0, "train": ("spatial_embedding.*", "visual_projection.*"), "rounds": 1, "model": VT5(**TINY),
}  # fmt: skip
CASES = {
    "fedavg": {"algorithm": "fedavg"},
    "prox and momentum": {"algorithm": "fedprox", "optimizer": "adam", "learning_rate": 0.01, "keep_optimizer": True},
    "moon": {"algorithm": "moon"},  # a term for each example, and a second pass with the received model
    "scaffold": {"algorithm": "scaffold"},
    "convolutions": {
        "algorithm": "fedavg", "data": toy(shape=(1, 12, 12)), "model": Cnn(channels=(4, 4), hidden=8, dropout=0.2),
    },
    "documents": PAGES,  # a loss over tokens, so pieces have unequal weights; dropout in attention
}  # fmt: skip
FEW = {"clients_per_round": 2, "rounds": 3}  # fewer than three workers


def in_pieces(pieces, **settings):
    """An experiment in the loop, with batches cut into this many pieces."""
    return replace(
        experiment(**settings), execution=Execution(mode="sequential", clients_per_batch=2, data_parallel=pieces)
    )


def weights(folder):
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    return Snapshot.restore(found).model


@pytest.mark.parametrize("name", CASES)
def test_pieces_take_the_path_of_whole_batches_with_the_same_dropout(name, tmp_path):
    settings = {"rounds": 2} | CASES[name]
    for pieces in (1, 3):
        run(in_pieces(pieces, **settings), tmp_path / str(pieces))
    setting = RunContext(experiment(**settings), tmp_path / "cache")
    start = dict(setting.module.named_parameters()) | dict(setting.module.named_buffers())
    one, three = weights(tmp_path / "1"), weights(tmp_path / "3")
    gap = torch.stack([(three[n] - t).double().square().sum() for n, t in one.items()]).sum().sqrt()
    path = torch.stack([(t - start[n]).double().square().sum() for n, t in one.items()]).sum().sqrt()
    assert path > 0
    assert gap < 1e-5 * path


@pytest.mark.parametrize("name", ["prox and momentum", "scaffold"])
def test_a_led_visit_has_the_bits_of_one_that_is_trained_alone(name, tmp_path, monkeypatch):
    """Three workers take pieces in random order; a run that stops and goes on has them too."""
    case = in_pieces(4, **CASES[name] | FEW)
    run(case, tmp_path / "alone")
    scatter(monkeypatch)
    run(case, tmp_path / "led")
    assert traces(tmp_path / "led") == traces(tmp_path / "alone")
    run(case, tmp_path / "stopped", display=Stopping(1))
    run(case, tmp_path / "stopped", resume=True)
    assert traces(tmp_path / "stopped") == traces(tmp_path / "alone")


def heard(monkeypatch, method):
    """The numbers of rows in each piece of work, call by call, that three workers are given from now on."""
    calls, done = [], getattr(Scattered, method)

    def counted(self, plans, *rest):
        calls.append([len(plan.rows) for plan in plans])
        return done(self, plans, *rest)

    scatter(monkeypatch)
    monkeypatch.setattr(Scattered, method, counted)
    return calls


def test_every_worker_takes_pieces_where_clients_are_fewer(tmp_path, monkeypatch):
    """4 pieces of each local batch of 8 go to 3 workers; of 8 clients each is trained whole."""
    calls = heard(monkeypatch, "slopes")
    run(in_pieces(4, rounds=1, clients_per_round=2), tmp_path / "few")
    assert [2, 2, 2, 2] in calls
    calls.clear()
    run(in_pieces(4, rounds=1, clients_per_round=8), tmp_path / "many")
    assert calls == []


@pytest.mark.parametrize(("pieces", "mode"), [(1, "vectorized"), (2, "sequential")])
def test_where_the_way_is_open_pieces_are_taken_one_client_at_a_time(pieces, mode, tmp_path):
    """Forty small clients a round are trained side by side if batches are whole: pieces would have no effect."""
    case = experiment(rounds=1, data=Toy(sizes=(6,) * 40), participation=1.0)
    run(replace(case, execution=Execution(data_parallel=pieces)), tmp_path)
    assert Run(tmp_path).manifest.identity.mode == mode


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3]
)
def test_workers_on_ray_leave_the_bits_of_this_process(workers, tmp_path):
    case = in_pieces(4, algorithm="fedprox", **FEW)
    run(case, tmp_path / "here")
    run(case, tmp_path / "ray", workers=workers)
    assert traces(tmp_path / "ray") == traces(tmp_path / "here")


def test_a_batch_is_cut_evenly_and_empty_pieces_are_left_out():
    """7 examples in 3 pieces: 2, 2 and 3; 2 examples in 3 pieces: one each, in two."""
    batches = np.array([[4, 9, 2, 7, 1, 8, 5, -1], [3, 6, -1, -1, -1, -1, -1, -1]])
    item = TrainingUnit(client=5, unit=0, batches=batches, rates=np.ones(2), key=1, examples=9)
    first, second = cut(item, 0, 3), cut(item, 1, 3)
    assert [piece.rows.tolist() for piece in first] == [[4, 9], [2, 7], [1, 8, 5]]
    assert [(piece.first, piece.whole) for piece in first] == [(0, 7), (2, 7), (4, 7)]
    assert [piece.rows.tolist() for piece in second] == [[3], [6]]


def test_dropout_bits_of_a_part_are_those_of_the_whole_from_there_on():
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
            "phases.0.local.batch_size: 4 examples are fewer than execution.data_parallel, which is 8",
        ),
        ({}, {"mode": "vectorized"}, "phases.0.algorithm: execution.mode is batch"),
        ({"algorithm": "ditto"}, {}, "phases.0.algorithm: Ditto looks at every step on its own"),
        ({"algorithm": "similarity_preserving"}, {}, "phases.0.algorithm: SimilarityPreserving has a loss over"),
    ],
)
def test_what_cannot_be_cut_is_refused(settings, cohort, message):
    given = replace(experiment(**settings), execution=Execution(**{"mode": "sequential", "pieces": 8} | cohort))
    with pytest.raises(ConfigError) as refused:
        rules.check(given)
    assert str(refused.value).startswith(message)


def test_every_algorithm_with_a_term_of_a_whole_batch_says_so(tmp_path):
    """Those that do not are cut without complaint: the engine looks whether a client's term reads the passes."""
    for name, kind in ALGORITHMS.items():
        algorithm = kind()
        given = in_pieces(2, algorithm=algorithm, rounds=1, clients_per_round=2)
        if list(rules.violations(given)) or algorithm.needs_targets or name == "fedkd":
            continue
        run(given, tmp_path / name)


def test_scoring_a_few_batches_is_work_for_several_workers(tmp_path, monkeypatch):
    """60 examples in batches of 16 are 4 pieces of work, which leave the scores of one worker."""
    case = replace(experiment(rounds=1), evaluate=Evaluate(batch_size=16))
    run(case, tmp_path / "alone")
    calls = heard(monkeypatch, "evaluate")
    run(case, tmp_path / "spread")
    assert calls[0] == [16, 16, 16, 12]
    assert traces(tmp_path / "spread") == traces(tmp_path / "alone")
