"""Python's garbage collector: it does not scan the preparation in each round, and is left as the process had it."""

import gc
from typing import Any

import pytest
from fakes import experiment, run, toy

from simfl.runtime.worker import Worker
from simfl.session.callbacks import NullDisplay


class Counting(NullDisplay):
    """Counts collections outside of client updates, by round."""

    def __init__(self) -> None:
        self.training, self.count, self.rounds = False, 0, list[int]()

    def collected(self, phase: str, info: dict[str, int]) -> None:
        self.count += phase == "start" and not self.training

    def round_done(self, row: dict[str, Any]) -> None:
        self.rounds.append(self.count)
        self.count = 0


def test_no_collection_starts_in_a_round_of_many_clients(tmp_path, monkeypatch):
    counting, train = Counting(), Worker.train

    def counted(self, *given):
        counting.training = True
        try:
            return train(self, *given)
        finally:
            counting.training = False

    monkeypatch.setattr(Worker, "train", counted)
    given = experiment(
        data=toy(sizes=(2,) * 600), mode="vectorized", clients_per_batch=300, rounds=3, clients_per_round=600
    )
    gc.callbacks.append(counting.collected)
    try:
        run(given, tmp_path / "r", display=counting)
    finally:
        gc.callbacks.remove(counting.collected)
    assert len(counting.rounds) == 3
    assert counting.rounds[1:] == [0, 0]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("enabled", [False, True])
def test_run_leaves_the_collector_as_it_was(tmp_path, frozen, enabled):
    try:
        gc.enable() if enabled else gc.disable()
        if frozen:
            gc.freeze()
        before = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0
        run(experiment(rounds=1), tmp_path / "r")
        assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0) == before
    finally:
        gc.unfreeze(), gc.enable()
