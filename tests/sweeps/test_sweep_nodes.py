"""Sweeps on a cluster whose machines join and die."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import experiment, run, traces
from nodes import SlowScaffold, cluster

from simfl.errors import ConfigError, RunError
from simfl.sweeps import pool as pools
from simfl.sweeps import sweep
from simfl.sweeps.file import Point, Sweep
from simfl.sweeps.folder import RunLocation
from simfl.sweeps.job import Outcome, SweepJob
from simfl.sweeps.pool import RayRuns, SweepPlacement
from simfl.sweeps.status import NullSweepDisplay, SweepState

SLOW = experiment(SlowScaffold(seconds=0.1), rounds=12)


class Lost(Exception):
    """The error of Ray for an actor that died."""


class FakeRay:
    """A cluster whose actors start where there is room, and whose runs end when the test says so."""

    def __init__(self, **nodes: int) -> None:
        self.cpus, self.waiting, self.placed = nodes, list[Any](), dict[Any, str]()
        self.done, self.exceptions = dict[Any, object](), self
        self.RayActorError = self.OutOfMemoryError = self.RayTaskError = Lost

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "Alive": True, "Resources": {"CPU": n}} for name, n in self.cpus.items()]

    def remote(self, **_: Any) -> Any:
        return lambda cls: self

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.0}

    def wait(self, refs: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        for actor in list(self.waiting):
            room = [n for n in self.cpus if list(self.placed.values()).count(n) < self.cpus[n]]
            if room:
                self.waiting.remove(actor)
                self.placed[actor] = self.done[actor.node_ref] = room[0]
        ready = [ref for ref in refs if ref in self.done]
        return ready[:num_returns], []

    def get(self, ref: Any) -> Any:
        if isinstance(found := self.done[ref], Lost):
            raise found
        return found

    def kill(self, actor: Any) -> None:
        self.placed.pop(actor, None)
        if actor in self.waiting:
            self.waiting.remove(actor)

    def new(self) -> Any:
        actor = FakeActor()
        self.waiting.append(actor)
        return actor


class FakeActor:
    """An actor of `FakeRay`."""

    def __init__(self) -> None:
        self.node_ref, self.calls, self.node, self.execute = object(), list[Any](), self, self

    def remote(self, *job: Any) -> Any:
        return (self, job[0].label) if job else self.node_ref


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """A cluster of two nodes with one CPU each."""
    found = FakeRay(a=1, b=1)
    monkeypatch.setattr(pools.cluster, "connect", lambda address: found)
    monkeypatch.setattr(pools.cluster, "worker_resource", lambda address: "CPU")
    monkeypatch.setattr(pools, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(RayRuns, "_start_actor", lambda self: self.starting.update({(a := found.new()).node_ref: a}))
    return found


def job(label: str, folder: Path) -> SweepJob:
    return SweepJob(label, SLOW, RunLocation(folder / label))


def step(pool: RayRuns, queue: list[SweepJob]) -> list[Outcome]:
    """Do what a sweep does in one turn."""
    pool.expect(len(queue))
    while pool.free and queue:
        pool.start(queue.pop(0))
    return pool.ended(0.0)


def labels(pool: RayRuns) -> list[str]:
    return sorted(one.label for _, one, _ in pool.running.values())


def test_a_run_of_a_dead_machine_takes_the_next_idle_actor(ray: FakeRay, tmp_path: Path) -> None:
    pool, queue = RayRuns(SweepPlacement(address="x"), print), [job(label, tmp_path) for label in "pqr"]
    step(pool, queue)
    step(pool, queue)
    assert labels(pool) == ["p", "q"]
    (first, second), lost = list(pool.running), Lost("gone")
    dead = pool.running[second][0]
    del ray.cpus[dead.node]
    ray.placed.pop(dead.actor)
    ray.done[second] = lost
    assert step(pool, queue) == []
    assert [one.label for one, _ in pool.returned] == [second[1]]
    ray.done[first] = Outcome(first[1], "completed")
    assert [outcome.label for outcome in step(pool, queue)] == [first[1]]
    assert labels(pool) == [second[1]]  # before the run that never began; no actor is idle
    assert not pool.idle
    assert [tries for _, _, tries in pool.running.values()] == [0]  # the death of a machine does not count


def test_machines_that_join_are_used_and_idle_actors_end(ray: FakeRay, tmp_path: Path) -> None:
    pool, queue = RayRuns(SweepPlacement(address="x"), print), [job(label, tmp_path) for label in "pqrs"]
    step(pool, queue)
    step(pool, queue)
    assert len(pool.running) == 2
    assert len(pool.starting) == 1  # waits for a machine
    ray.cpus["c"] = 2
    for _ in range(3):
        step(pool, queue)
    assert labels(pool) == ["p", "q", "r", "s"]
    ended = next(iter(pool.running))
    ray.done[ended] = Outcome(ended[1], "completed")
    step(pool, queue)
    step(pool, queue)
    assert (len(pool.idle), len(pool.starting)) == (0, 0)
    pool.close()


def test_a_run_that_kills_its_workers_fails(ray: FakeRay, tmp_path: Path) -> None:
    said = list[str]()
    pool, queue, outcomes = RayRuns(SweepPlacement(), said.append), [job("p", tmp_path)], list[Outcome]()
    (tmp_path / "p").mkdir()
    while not outcomes:
        outcomes = step(pool, queue)
        for call in pool.running:
            ray.done[call] = Lost("killed")
            ray.placed.pop(call[0], None)
    assert outcomes == [Outcome("p", "failed", "RuntimeError: its worker died 3 times: killed")]
    assert len(said) == 2


def test_workers_bound_the_number_of_runs_at_a_time(ray: FakeRay, tmp_path: Path) -> None:
    pool, queue = RayRuns(SweepPlacement(workers=1, address="x"), print), [job(label, tmp_path) for label in "pq"]
    for _ in range(3):
        step(pool, queue)
    assert labels(pool) == ["p"]
    assert not pool.starting
    with pytest.raises(ConfigError, match="requested 3 workers, but Ray has 2 CPUs"):
        RayRuns(SweepPlacement(workers=3), print)


def test_the_resources_of_a_run_are_checked() -> None:
    assert SweepPlacement(gpus=0.25).share("GPU") == 0.25
    assert SweepPlacement(gpus=2).share("GPU") == 2
    assert SweepPlacement(cpus=3).share("CPU") == 3
    for gpus in (0, -1, 1.5):
        with pytest.raises(
            ConfigError, match=rf"--gpus-per-run: {gpus} given; allowed: above 0, at most 1, or a whole"
        ):
            SweepPlacement(gpus=gpus).share("GPU")
    with pytest.raises(ConfigError, match=r"--gpus-per-run: 0\.5 given, but there are no GPUs"):
        SweepPlacement(gpus=0.5).share("CPU")
    with pytest.raises(ConfigError, match=r"--cpus-per-run: 2 given, but runs use GPUs; allowed: --gpus-per-run"):
        SweepPlacement(cpus=2).share("GPU")


def test_runs_of_several_workers_take_what_machines_have_room_for(ray: FakeRay, tmp_path: Path) -> None:
    ray.cpus = {"a": 5, "b": 3}
    assert RayRuns(SweepPlacement(cpus=2), print).nodes == {"a": 2, "b": 1}
    assert sum(RayRuns(SweepPlacement(cpus=6), print).nodes.values()) == 1  # on both machines
    with pytest.raises(ConfigError, match="--cpus-per-run: 9 given, but Ray has 8 CPUs"):
        RayRuns(SweepPlacement(cpus=9), print)
    with pytest.raises(ConfigError, match="--workers: requested 4 runs of 2 CPUs each, but Ray has 8 CPUs"):
        RayRuns(SweepPlacement(cpus=2, workers=4), print)


def test_workers_that_cannot_start_end_the_sweep(ray: FakeRay, tmp_path: Path) -> None:
    pool = RayRuns(SweepPlacement(), print)
    pool.expect(1)
    ray.wait(list(pool.starting), 1, 0.0)
    error: Any = Lost("no module x")
    error.actor_init_failed = True
    ray.done[next(iter(pool.starting))] = error
    with pytest.raises(RunError, match="a worker of the sweep cannot start: no module x"):
        pool.ended(0.0)


@pytest.mark.slow
@pytest.mark.timeout(290)
def test_a_sweep_survives_a_killed_node_and_uses_one_that_joins(tmp_path: Path) -> None:
    points = tuple(Point(f"s{seed}", {"seed": seed}, replace(SLOW, name=f"s{seed}", seed=seed)) for seed in range(6))
    used = list[int]()

    class Disturbing(NullSweepDisplay):
        """Kill a node once a run has two rounds, and add one once a run has ended."""

        def __init__(self, ray: Any) -> None:
            self.ray, self.node, self.killed, self.joined = ray, ray.add_node(num_cpus=1), False, False

        def show(self, state: SweepState) -> None:
            used.append(len(state.running))
            if not self.killed and len(state.running) == 2 and all(v.status.done >= 2 for v in state.views.values()):
                self.killed = True
                self.ray.remove_node(self.node, allow_graceful=False)
            if self.killed and state.outcomes and not self.joined:
                self.joined = True
                self.ray.add_node(num_cpus=2)

    with cluster(1) as ray:
        display = Disturbing(ray)
        found = sweep.run(Sweep("s", points), tmp_path / "s", SweepPlacement(address=ray.address), display=display)
    assert display.killed
    assert [outcome.status for outcome in found] == ["completed"] * 6
    assert max(used) == 3
    for point in points:
        run(point.experiment, tmp_path / point.label)
        assert traces(tmp_path / "s" / "runs" / point.label) == traces(tmp_path / point.label)


@pytest.mark.slow
@pytest.mark.timeout(290)
def test_runs_of_two_workers_are_bit_identical_and_survive_a_killed_node(tmp_path: Path) -> None:
    """Two machines with room for one run each; one of them dies while both train."""
    short = experiment(SlowScaffold(seconds=0.1), rounds=6)
    points = tuple(Point(f"s{seed}", {"seed": seed}, replace(short, name=f"s{seed}", seed=seed)) for seed in range(2))
    used = list[int]()

    class Killing(NullSweepDisplay):
        """Kill a node once both runs have a round."""

        def __init__(self, ray: Any) -> None:
            self.ray, self.node, self.killed = ray, ray.add_node(num_cpus=2), False

        def show(self, state: SweepState) -> None:
            used.append(len(state.running))
            if not self.killed and len(state.running) == 2 and all(v.status.done >= 1 for v in state.views.values()):
                self.killed = len(state.views) == 2
                if self.killed:
                    self.ray.remove_node(self.node, allow_graceful=False)

    with cluster(2) as ray:
        display = Killing(ray)
        placement = SweepPlacement(address=ray.address, cpus=2)
        found = sweep.run(Sweep("s", points), tmp_path / "s", placement, display=display)
    assert display.killed
    assert [outcome.status for outcome in found] == ["completed"] * 2
    assert max(used) == 2
    for point in points:
        run(point.experiment, tmp_path / point.label)
        assert traces(tmp_path / "s" / "runs" / point.label) == traces(tmp_path / point.label)
