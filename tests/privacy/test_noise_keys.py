"""Keys of private runs: no noise serves two releases, and a lost or repeated round is paid for."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Stopping, Toy, experiment, model, run, traces

from simfl import simulation
from simfl.config.rules import violations
from simfl.debug.replay import replay
from simfl.errors import RunError
from simfl.experiment import AdaptiveClip, Checkpoint, Experiment, Privacy
from simfl.models.mlp import Mlp
from simfl.privacy.account import Account
from simfl.privacy.budget import Budget
from simfl.privacy.paid import PaidRound, append, read, with_round
from simfl.privacy.randomness import KEY_FILE, read_keys, stored_key
from simfl.privacy.scheme import Population, Scheme
from simfl.runs.manifest import RunManifest
from simfl.runs.results import Run
from simfl.sampling import sample_groups
from simfl.session import noise_key
from simfl.session.noise_key import source_of
from simfl.session.options import RunOptions
from simfl.training import batches
from simfl.virtual_time.settings import RoundTime

GROUPS = Privacy(clip=0.05, groups_per_client=2, noise_multiplier=0.7)
RECORDS = Privacy(unit="record", clip=0.5, noise_multiplier=1.0)


def private(privacy: Privacy = GROUPS, algorithm: str = "group_dp", **settings: Any) -> Experiment:
    defaults: dict[str, Any] = {
        "weighting": "uniform",
        "participation": 1.0,
        "rounds": 2,
        "data": Toy(sizes=(12, 9, 7)),
    }
    return experiment(algorithm, privacy=privacy, model=Mlp(hidden_sizes=(8,), dropout=0.0), **defaults | settings)


def moved(folder: Path) -> torch.Tensor:
    return torch.cat([t.double().reshape(-1) for t in model(folder).values()])


def test_two_runs_of_one_seed_and_another_epsilon_share_no_noise(tmp_path: Path) -> None:
    """If both carried the same draws, their difference would give the update without noise."""
    groups, found = replace(GROUPS, groups_per_client=3), {}
    for name, sigma in (("a", 1.0), ("b", 0.4), ("bare", 0.0)):
        run(private(replace(groups, noise_multiplier=sigma), rounds=1), tmp_path / name)
        found[name] = moved(tmp_path / name)
    rebuilt = (1.0 * found["b"] - 0.4 * found["a"]) / (1.0 - 0.4)
    noise = float((found["a"] - found["bare"]).norm())
    assert float((rebuilt - found["bare"]).norm()) > 0.5 * noise


CHANGES: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon": 9.0},
    "delta": {"delta": 1e-6},
    "accountant": {"accountant": "pld"},
    "clip": {"clip": 0.06},
    "noise": {"noise": "central"},
    "adaptive": {"adaptive": AdaptiveClip()},
    "seed": {"noise_seed": 2},
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_key_of_a_seeded_run_depends_on_every_setting_of_privacy(name: str, tmp_path: Path) -> None:
    seeded = replace(GROUPS, noise_seed=1)
    run(private(seeded, rounds=1), tmp_path)
    manifest = RunManifest.read(tmp_path)
    a, b = (source_of(private(one, rounds=1), manifest) for one in (seeded, replace(seeded, **CHANGES[name])))
    assert a is not None
    assert b is not None
    assert a.key_id != b.key_id
    others = (private(seeded, rounds=2), private(seeded, learning_rate=0.2), replace(private(seeded), seed=5))
    assert len({a.key_id, *(source.key_id for one in others if (source := source_of(one, manifest)))}) == 4
    moved_data = replace(manifest, data_sha256="other")
    assert source_of(private(seeded, rounds=1), moved_data) != a
    vectorized = source_of(private(seeded, rounds=1, mode="vectorized"), manifest)
    assert vectorized == a  # execution modes can be compared


FIRST_PHASE_SETTINGS = {
    "objective", "local", "rounds", "name", "algorithm", "server", "participation", "clients_per_round", "poisson",
    "rounding", "weighting", "train", "frozen", "personal_params", "communicate", "centralized", "buffers", "codec",
    "transform", "carry_over",
}  # fmt: skip


def test_settings_that_were_added_later_are_in_a_key_only_where_they_are_used() -> None:
    """A new setting of a phase must be named in `LATER_PHASE_SETTINGS`, or all seeded runs change."""
    manifest: Any = SimpleNamespace(data_sha256="data", partition_sha256="partition")
    given = private(replace(GROUPS, noise_seed=1))
    facts: Any = noise_key.facts_of(given, manifest)
    assert set(facts["phases"][0]) == FIRST_PHASE_SETTINGS
    timed = replace(given, phases=(replace(given.phases[0], time=RoundTime(deadline=5.0)),))
    facts = noise_key.facts_of(timed, manifest)
    assert set(facts["phases"][0]) == FIRST_PHASE_SETTINGS | {"time"}


def test_a_seeded_run_says_first_that_it_claims_nothing(tmp_path: Path) -> None:
    display = Stopping()
    run(private(replace(GROUPS, noise_seed=1), rounds=1), tmp_path / "seeded", display=display)
    assert display.messages[0].startswith("for tests: privacy.noise_seed is given")
    text = (tmp_path / "seeded" / "privacy.md").read_text()
    assert text.split("\n\n")[1].startswith("**For tests.**")
    assert not (tmp_path / "seeded" / KEY_FILE).exists()
    run(private(rounds=1), tmp_path / "keyed")
    assert "For tests" not in (tmp_path / "keyed" / "privacy.md").read_text()


def test_a_key_is_kept_for_its_owner_alone_and_makes_a_resumed_run_bit_identical(tmp_path: Path) -> None:
    given = private(rounds=3)
    run(given, tmp_path / "run", display=Stopping(1))
    mode = (tmp_path / "run" / KEY_FILE).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    for name in ("a", "b"):
        import shutil

        shutil.copytree(tmp_path / "run", tmp_path / name)
        run(given, tmp_path / name, resume=True)
    assert traces(tmp_path / "a") == traces(tmp_path / "b")
    key = read_keys(tmp_path / "a")[0].randomness.key.hex()
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file() and path.name != KEY_FILE:
            assert key.encode() not in path.read_bytes()
    assert key not in repr(read_keys(tmp_path / "a"))
    update = Run(tmp_path / "a").clients().to_pylist()[-1]
    assert replay(Run(tmp_path / "a"), update["round"], update["client"]).equal
    (tmp_path / "a" / KEY_FILE).unlink()
    with pytest.raises(RunError, match=r"noise\.key: missing; without the key no round of a private run"):
        replay(Run(tmp_path / "a"), update["round"], update["client"])


def test_a_round_that_is_made_again_on_another_platform_has_a_new_key_and_is_paid_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = private(rounds=3)
    for name in ("same", "other"):
        with pytest.raises(RuntimeError):  # the run fails in its third round, after that was charged
            run(given, tmp_path / name, display=Stopping(2, scoring=True, error=RuntimeError))
        if name == "other":
            monkeypatch.setattr(noise_key, "_processor_model", lambda: "another processor")
        run(given, tmp_path / name, resume=True)
    assert Run(tmp_path / "same").snapshot().charged == {0: 3}
    assert len(read_keys(tmp_path / "same")) == 1
    assert len(read_keys(tmp_path / "other")) == 2
    paid = read(tmp_path / "other")
    assert Run(tmp_path / "other").snapshot().charged == {0: len(set(paid))}
    assert len(set(paid)) > 3


def test_incomplete_lines_of_the_paid_rounds_count_as_paid(tmp_path: Path) -> None:
    append(tmp_path, PaidRound(0, 1, "a"), {"epsilon": 0.5})
    append(tmp_path, PaidRound(1, 1, "a"), {"epsilon": 0.6})
    path = tmp_path / "privacy.jsonl"
    path.write_bytes(path.read_bytes() + b'{"phase": 1, "rou')
    assert read(tmp_path)[-1] == PaidRound(1, None)
    assert with_round(read(tmp_path), PaidRound(1, 2, "a"), {0: 1, 1: 1}) == {0: 1, 1: 3}
    append(tmp_path, PaidRound(1, 2, "a"), {"epsilon": 0.7})  # on a line of its own
    assert read(tmp_path) == [PaidRound(0, 1, "a"), PaidRound(1, 1, "a"), PaidRound(1, None), PaidRound(1, 2, "a")]
    path.write_bytes(b"\xff\x00{" + path.read_bytes()[1:])
    assert len(read(tmp_path)) == 4
    path.unlink()
    assert with_round(read(tmp_path), PaidRound(1, 3, "a"), {0: 1, 1: 2}) == {0: 1, 1: 3}


def test_later_rounds_of_one_key_are_the_same_releases_and_those_of_another_are_not() -> None:
    lost = [PaidRound(0, 1, "a"), PaidRound(0, 2, "a"), PaidRound(0, 3, "a")]
    assert with_round(lost, PaidRound(0, 2, "a"), {0: 1}) == {0: 2}
    assert with_round(lost, PaidRound(0, 2, "b"), {0: 1}) == {0: 4}
    system = [PaidRound(0, 1), PaidRound(0, 2), PaidRound(0, 2)]
    assert with_round(system, PaidRound(0, 2), {0: 1}) == {0: 4}


def test_a_resumed_run_counts_what_a_torn_file_says(tmp_path: Path) -> None:
    given = private(rounds=3)
    run(given, tmp_path / "run", display=Stopping(1))
    path = tmp_path / "run" / "privacy.jsonl"
    path.write_bytes(path.read_bytes() + b'{"phase": 0, "round": 2, "ke')
    run(given, tmp_path / "run", resume=True)
    assert Run(tmp_path / "run").snapshot().charged == {0: 4}
    assert all(json.loads(line)["epsilon"] > 0 for line in path.read_text().splitlines() if line.endswith("}"))


def test_a_damaged_key_file_is_named(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text("{")
    with pytest.raises(RunError, match=r"noise\.key: damaged"):
        stored_key(tmp_path, 0, "here")


@pytest.mark.parametrize("secure", [True, False])
def test_batches_and_samples_of_two_private_runs_differ(
    secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guarantee counts on the secrecy of every sample: of records, and of clients."""
    real, seen = batches.poisson_batches, list[list[np.ndarray]]()

    def spy(*args: Any, **settings: Any) -> np.ndarray:
        seen[-1].append(real(*args, **settings))
        return seen[-1][-1]

    monkeypatch.setattr(batches, "poisson_batches", spy)
    sampled = []
    for name in "ab":
        seen.append([])
        sizes = Toy(sizes=(40, 36, 30))
        given = private(
            replace(RECORDS, secure=secure), "dp_sgd", participation=None, poisson=0.5, rounds=6, data=sizes
        )
        summary = run(given, tmp_path / name)
        assert summary["plan"].startswith("matches")
        sampled.append([(row["round"], row["client"]) for row in Run(tmp_path / name).clients().to_pylist()])
    assert sampled[0] != sampled[1]
    tables = [[one.tolist() for one in tables] for tables in seen]
    assert not [one for one in tables[0] if one in tables[1] and sum(map(len, one)) > 8]


@pytest.mark.parametrize("rate", [None, 0.125])
def test_groups_of_a_secure_run_are_sampled_by_the_system(rate: float | None) -> None:
    def draws(secure: bool) -> list[list[int]]:
        privacy = replace(GROUPS, secure=secure, noise_seed=None, groups_per_client=50, group_rate=rate)
        return [sample_groups(400, privacy, 0, 0, 0, 0) for _ in range(2)]

    first, second = draws(secure=True)
    assert first != second
    assert draws(secure=False)[0] == draws(secure=False)[1] != first


def test_a_noise_seed_has_no_effect_on_secure_runs_and_is_refused() -> None:
    found = list(violations(private(replace(GROUPS, secure=True, noise_seed=1))))
    assert any(line.startswith("privacy.noise_seed: has no effect with secure: true") for line in found)


def test_a_round_is_paid_for_before_anything_of_it_is_planned_and_copied_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("no plan")

    monkeypatch.setattr(simulation, "plan_round", fail)
    with pytest.raises(RuntimeError, match="no plan"):
        run(private(), tmp_path / "run")
    (paid,) = read(tmp_path / "run")
    assert (paid.phase, paid.round) == (0, 1)
    seen: list[int] = []
    budget = Budget(Scheme(GROUPS, private().phases, Population(3, (3,))), 0.7)
    account = Account(budget, tmp_path, store=lambda: seen.append(len(read(tmp_path))))
    charged = account.charge({}, 0, 0)
    assert account.charge({}, 0, 0) == charged == {0: 1}  # the same release
    assert account.charge(charged, 0, 1) == {0: 2}
    assert seen == [1, 2]


def test_the_copy_at_a_url_has_every_paid_round_before_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, real, found = f"file://{tmp_path}/copy/run", simulation.plan_round, []

    def plan(*args: Any) -> Any:
        found.append(len(read(tmp_path / "copy" / "run")))
        return real(*args)

    monkeypatch.setattr(simulation, "plan_round", plan)
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    simulation.run(private(rounds=3, checkpoint=Checkpoint(rounds=3, seconds=0.0)), RunOptions(url, "inline"))
    assert found == [1, 2, 3]
    pulled = tmp_path / "copy" / "run"  # with the access rights of the storage
    first = read_keys(pulled)[0]
    found_key = stored_key(pulled, 3, first.platform)
    assert found_key is not None
    assert found_key.key == first.randomness.key
    assert stat.S_IMODE((pulled / KEY_FILE).stat().st_mode) == 0o600
