"""Runs with privacy: reproducible on every backend, charged before each release, with a statement."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Stopping, Toy, experiment, model, run, scatter, traces
from torch.testing import assert_close

from simfl import config, simulation
from simfl.codecs.nf4 import Nf4
from simfl.config.rules import violations
from simfl.debug.replay import replay
from simfl.errors import ConfigError, PrivacyError, RunError
from simfl.experiment import AdaptiveClip, Codecs, Experiment, Privacy
from simfl.models.mlp import Mlp
from simfl.optimizers.server import Adam
from simfl.privacy.budget import Budget
from simfl.privacy.scheme import Population, Scheme
from simfl.privacy.statement import statement
from simfl.runs import tables
from simfl.runs.results import Run
from simfl.runs.summary import summary_lines
from simfl.weights import subtract

SIZES = (12, 9, 6, 12, 9, 7)
GROUPS = Privacy(clip=0.05, groups_per_client=2, noise_multiplier=0.7, noise_seed=0)


def private(algorithm: str = "group_dp", privacy: Privacy = GROUPS, **settings: Any) -> Experiment:
    defaults: dict[str, Any] = {"weighting": "uniform", "participation": 0.5, "rounds": 3, "data": Toy(sizes=SIZES)}
    return experiment(algorithm, privacy=privacy, **defaults | settings)


RUNS = {
    "groups": private(),
    "vectorized": private(mode="vectorized"),
    "central": private(privacy=replace(GROUPS, noise="central")),
    "duals": private("dp_clgecl"),
    "clients": private(
        "dp_fedavg", Privacy(unit="client", clip=0.05, noise_multiplier=0.7, adjacency="zero_out", noise_seed=0)
    ),
    "records": private("dp_sgd", Privacy(unit="record", clip=0.5, noise_multiplier=0.7, noise_seed=0)),
    "adaptive": private(privacy=replace(GROUPS, adaptive=AdaptiveClip())),
    "poisson": private(privacy=replace(GROUPS, group_rate=0.4), poisson=0.3, participation=None, rounds=6),
    "adam and a codec": private(server=Adam(), codec=Codecs(upload=Nf4(error_feedback=True))),
}


SLOW = ("central", "poisson", "clients", "adam and a codec")  # the others cover every place where noise is drawn
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RUNS]


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_bit_identical_scattered_over_workers_and_resumed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = RUNS[name]
    run(given, tmp_path / "whole")
    run(given, tmp_path / "resumed", display=Stopping(2))
    run(given, tmp_path / "resumed", resume=True)
    assert traces(tmp_path / "whole") == traces(tmp_path / "resumed")
    scatter(monkeypatch)
    run(given, tmp_path / "scattered")
    assert traces(tmp_path / "whole") == traces(tmp_path / "scattered")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["groups", "duals", "records"])
def test_a_run_is_bit_identical_on_ray(name: str, tmp_path: Path, ray_session: None) -> None:
    run(RUNS[name], tmp_path / "inline")
    run(RUNS[name], tmp_path / "ray", workers=2)
    assert traces(tmp_path / "inline") == traces(tmp_path / "ray")


@pytest.mark.parametrize("name", ["duals", "adaptive"])
def test_a_client_update_can_be_replayed(name: str, tmp_path: Path) -> None:
    run(RUNS[name], tmp_path / "run")
    made = Run(tmp_path / "run")
    client = made.clients().to_pylist()[0]
    assert replay(made, client["round"], client["client"]).equal


def test_the_plan_counts_the_clip_norm_and_the_count_that_adapts_it(tmp_path: Path) -> None:
    run(private(rounds=1, privacy=replace(GROUPS, adaptive=AdaptiveClip())), tmp_path / "run")
    made = Run(tmp_path / "run")
    assert "clip" in {row["part"] for row in made.ledger().to_pylist()}
    assert made.summary["plan"] == "matches"


def test_both_execution_modes_release_equal_updates_up_to_rounding(tmp_path: Path) -> None:
    sequential, vectorized = (
        private(mode=mode, rounds=1, privacy=replace(GROUPS, noise_multiplier=0.0))
        for mode in ("sequential", "vectorized")
    )
    for name, given in (("sequential", sequential), ("vectorized", vectorized)):
        run(replace(given, model=Mlp(hidden_sizes=(8,))), tmp_path / name)
    assert_close(model(tmp_path / "sequential"), model(tmp_path / "vectorized"), rtol=1e-4, atol=1e-6)


def test_without_noise_and_clip_group_dp_is_fedavg_over_groups(tmp_path: Path) -> None:
    # every group once, nothing clipped: the mean over clients of the mean over their groups
    free = Privacy(clip=1e9, noise_multiplier=0.0)
    run(private("group_dp", free, rounds=1), tmp_path / "group_dp")
    run(private("fedavg", Privacy(), rounds=1), tmp_path / "fedavg")
    assert_close(model(tmp_path / "group_dp"), model(tmp_path / "fedavg"))


@pytest.mark.parametrize(("where", "over"), [("client", 2 * math.sqrt(3)), ("central", 2 * 3)])
def test_the_noise_of_the_average_is_sigma_s_over_m_root_k_or_over_m_k(where: Any, over: float, tmp_path: Path) -> None:
    # K = 3, M = 2, S = 1e-3, sigma 50
    wide = Mlp(hidden_sizes=(400,), dropout=0.0)
    loud = replace(GROUPS, clip=1e-3, noise_multiplier=50.0, noise=where)
    bare = replace(loud, noise_multiplier=0.0)
    for name, privacy in (("loud", loud), ("bare", bare)):
        run(replace(private(privacy=privacy, rounds=1), model=wide), tmp_path / name)
    noise = torch.cat([t.reshape(-1) for t in subtract(model(tmp_path / "loud"), model(tmp_path / "bare")).values()])
    assert len(noise) > 7000
    assert float(noise.std()) == pytest.approx(50 * 1e-3 / over, rel=0.04)


def test_rounds_without_clients_change_the_model_by_noise(tmp_path: Path) -> None:
    given = private(privacy=GROUPS, poisson=0.05, participation=None, rounds=4, data=Toy(sizes=(6, 6)))
    run(given, tmp_path / "run")
    rows = tables.rows(tmp_path / "run" / "rounds.parquet")
    assert [row["sampled"] for row in rows].count(0) >= 2
    hashes = set()
    for rounds in (1, 2, 3, 4):
        hashes.add(
            run(replace(given, phases=(replace(given.phases[0], rounds=rounds),)), tmp_path / f"{rounds}")[
                "weights_sha256"
            ]
        )
    assert len(hashes) == 4


def test_the_dual_follows_the_released_update(tmp_path: Path) -> None:
    """With all clients in every round, no noise and no clipping, duals do not change the average."""
    free = Privacy(clip=1e9, noise_multiplier=0.0)
    run(private("dp_clgecl", free, participation=1.0), tmp_path / "duals")
    run(private("group_dp", free, participation=1.0), tmp_path / "plain")
    assert_close(model(tmp_path / "duals"), model(tmp_path / "plain"), rtol=1e-4, atol=1e-6)
    with_noise = replace(GROUPS, noise_multiplier=1.0)
    run(private("dp_clgecl", with_noise), tmp_path / "noisy duals")
    run(private("group_dp", with_noise), tmp_path / "noisy plain")
    assert (
        model(tmp_path / "noisy duals")["head.bias"].tolist() != model(tmp_path / "noisy plain")["head.bias"].tolist()
    )


# accounting


def test_the_spent_epsilon_is_in_every_row_the_summary_and_the_state(tmp_path: Path) -> None:
    summary = run(private(privacy=Privacy(clip=0.05, groups_per_client=2, epsilon=4.0)), tmp_path / "run")
    rows = tables.rows(tmp_path / "run" / "rounds.parquet")
    spent = [row["epsilon"] for row in rows]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(4.0, rel=1e-5)
    assert {"epsilon_averages", "epsilon_messages", "epsilon_formula", "delta", "noise_multiplier", "clip"} <= rows[
        0
    ].keys()
    assert rows[0]["epsilon_messages"] > rows[0]["epsilon_averages"]
    privacy = summary["privacy"]
    assert privacy["epsilon"] == spent[-1]
    assert privacy["average_multiplier"] == pytest.approx(privacy["message_multiplier"] * math.sqrt(3))
    assert Run(tmp_path / "run").snapshot().charged == {0: 3}
    charges = [json.loads(line) for line in (tmp_path / "run" / "privacy.jsonl").read_text().splitlines()]
    assert [charge["round"] for charge in charges] == [1, 2, 3]
    assert charges[-1]["epsilon"] == spent[-1]


def test_a_round_is_charged_before_its_release_and_refused_beyond_the_budget(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=r"privacy: round \d would raise epsilon to"):
        run(private(privacy=replace(GROUPS, noise_multiplier=3.0, epsilon=1.6), rounds=9), tmp_path / "run")
    rows = Run(tmp_path / "run").rounds().to_pylist()
    assert 0 < len(rows) < 9
    assert all(row["epsilon"] <= 1.6 for row in rows)
    assert len((tmp_path / "run" / "privacy.jsonl").read_text().splitlines()) == len(rows)


def test_the_costs_of_phases_and_resumes_add_up(tmp_path: Path) -> None:
    one = private(rounds=2)
    given = replace(one, phases=one.phases * 2)
    run(given, tmp_path / "run", display=Stopping(3))
    run(given, tmp_path / "run", resume=True)
    assert Run(tmp_path / "run").snapshot().charged == {0: 2, 1: 2}
    run(private(rounds=4), tmp_path / "four")
    last = [tables.rows(tmp_path / name / "rounds.parquet")[-1]["epsilon"] for name in ("run", "four")]
    assert last[0] == pytest.approx(last[1])


def test_secure_runs_cannot_be_repeated_and_every_attempt_is_charged(tmp_path: Path) -> None:
    given = private(privacy=replace(GROUPS, secure=True, noise_seed=None))
    a, b = (run(given, tmp_path / name) for name in "ab")
    assert a["weights_sha256"] != b["weights_sha256"]
    with pytest.raises(RunError, match="no round can be repeated"):
        replay(Run(tmp_path / "a"), 1, 0)
    with pytest.raises(RuntimeError):  # the run fails in its third round, after that was charged
        run(given, tmp_path / "c", display=Stopping(2, scoring=True, error=RuntimeError))
    paid = len((tmp_path / "c" / "privacy.jsonl").read_text().splitlines())
    run(given, tmp_path / "c", resume=True)
    again = len((tmp_path / "c" / "privacy.jsonl").read_text().splitlines())
    snapshot = Run(tmp_path / "c").snapshot()
    assert snapshot.charged == {0: again}
    assert again >= paid + 1
    assert again > snapshot.step  # a lost attempt is charged too


def test_the_statement_names_units_budget_observers_and_what_is_not_covered(tmp_path: Path) -> None:
    summary = run(private(privacy=Privacy(clip=0.05, groups_per_client=2, epsilon=4.0)), tmp_path / "run")
    text = (tmp_path / "run" / "privacy.md").read_text()
    assert text == summary["privacy"]["statement"]
    flat = " ".join(text.split())
    for words in (
        "For adding or removing the data of one unit, the run is (4, 1e-05)-differentially private",
        "for the 3 rounds so far, of a budget of 4.",
        "A group of a client's data (such as all documents of one provider), as a whole.",
        "the smallest number of groups of a client (3, of the data)",
        "one contains the unit's data and the other does not",
        "**Trusted.** The server, which sees single messages and knows which clients it samples.",
        "Whoever can read `noise.key` in the run folder",
        "tuned on them",
        "other runs on the same data",
        "sizes of messages",
        "a tokenizer or vocabulary, if private text was used for them",
    ):
        assert words in flat
    order = ["**Adjacency.**", "**Unit.**", "**Public.**", "**Not covered.**", "**Trusted.**", "**Mechanism.**"]
    assert sorted(order, key=flat.index) == order


def test_a_formula_is_never_called_differential_privacy(tmp_path: Path) -> None:
    given = private(privacy=Privacy(clip=0.05, groups_per_client=2, epsilon=1.0, view="formula"))
    summary = run(given, tmp_path / "run")
    flat = " ".join((tmp_path / "run" / "privacy.md").read_text().split())
    spent = summary["privacy"]["epsilon_averages"]
    assert spent > 1.0 == pytest.approx(summary["privacy"]["epsilon"])
    assert f"the run is ({spent:.4g}, 1e-05)-differentially private" in flat
    assert "budget" not in flat.partition("**Unit.**")[0]
    assert "(Tito et al. 2024, theorem B.9) gives 1 for" in flat
    assert "a number to compare with published ones, and no guarantee" in flat
    (line,) = [line for line in summary_lines(summary) if "privacy" in line]
    assert f"epsilon {spent:.4g} at delta 1e-05" in line
    assert "the formula gives 1 of 1" in line


@pytest.mark.parametrize(
    ("privacy", "settings", "change"),
    [
        ({"unit": "client", "noise": "central"}, {"poisson": 0.5}, "zeroing out"),
        ({"unit": "client", "noise": "central", "min_clients": 4}, {"participation": 0.5}, "zeroing out"),
        ({"unit": "client", "noise": "central", "min_clients": 4}, {"poisson": 0.5}, "adding or removing"),
        ({"unit": "client", "noise": "central", "min_clients": 4}, {"clients_per_round": 2}, "adding or removing"),
        ({"unit": "record"}, {}, "zeroing out"),
        ({"unit": "record", "min_examples": 6}, {}, "adding or removing"),
        ({"unit": "record", "min_examples": 6, "adjacency": "zero_out"}, {}, "zeroing out"),
        ({"unit": "group", "groups_per_client": 2}, {}, "adding or removing"),
    ],
)
def test_adding_and_removing_is_claimed_in_the_first_sentence_only_where_the_count_is_hidden(
    privacy: dict[str, Any], settings: dict[str, Any], change: str
) -> None:
    sampled = {"participation": None} | settings
    given = private("fedavg", Privacy(clip=0.05, noise_multiplier=1.0, **privacy), **sampled)
    assert given.privacy is not None
    budget = Budget(Scheme(given.privacy, given.phases, Population(6, (3,), (6, 9))), 1.0)
    text = statement(budget, {0: 3})
    assert text.split("\n\n")[1].startswith(f"**Adjacency.** For {change} the data of one unit")


@pytest.mark.parametrize(
    ("algorithm", "privacy", "sampled", "sizes"),
    [
        ("dp_fedavg", {"unit": "client", "noise": "central", "min_clients": 4}, {"poisson": 0.5}, [(8,) * 6, (8,) * 5]),
        ("dp_sgd", {"unit": "record", "min_examples": 20}, {"participation": 1.0}, [(20,), (21,)]),
    ],
)
def test_the_noise_of_a_release_does_not_tell_how_many_units_there_are(
    algorithm: str, privacy: dict[str, Any], sampled: dict[str, Any], sizes: list[Any], tmp_path: Path
) -> None:
    found = []
    for number, one in enumerate(sizes):
        loud = Privacy(clip=1e-3, noise_multiplier=200.0, noise_seed=0, **privacy)
        moved = []
        for sigma in (0.0, 200.0):
            given = private(
                algorithm,
                replace(loud, noise_multiplier=sigma),
                **{"participation": None, **sampled},
                rounds=1,
                batch_size=10,
                data=Toy(sizes=one),
                model=Mlp(hidden_sizes=(256,), dropout=0.0),
            )
            run(given, tmp_path / f"{number}{sigma}")
            moved.append(model(tmp_path / f"{number}{sigma}"))
        found.append(float(torch.cat([t.reshape(-1) for t in subtract(moved[1], moved[0]).values()]).std()))
    assert found[0] == pytest.approx(found[1], rel=0.08)


def test_the_statement_of_a_run_without_noise_guarantees_nothing(tmp_path: Path) -> None:
    run(private("fedavg", Privacy(clip=0.05)), tmp_path / "run")
    assert "**None.**" in (tmp_path / "run" / "privacy.md").read_text()


# refused settings


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"algorithm": "dp_sgd"}, "phases.0.algorithm: dp_sgd needs privacy: {unit: record, clip: …}"),
        ({"weighting": "examples"}, "phases.0.weighting: 'examples' reveals how many examples a client has"),
        ({"privacy": replace(GROUPS, clip=None)}, "privacy.clip: missing"),
        ({"privacy": replace(GROUPS, groups_per_client=None)}, "privacy.groups_per_client: missing"),
        (
            {"privacy": replace(GROUPS, denominator="realised")},
            "privacy.denominator: realised reveals the number of groups",
        ),
        ({"privacy": replace(GROUPS, noise="central", view="messages")}, "privacy.view: messages"),
        (
            {"privacy": replace(GROUPS, noise="central"), "algorithm": "dp_clgecl"},
            "phases.0.algorithm: DpClgecl stores its uploads",
        ),
        (
            {"privacy": replace(GROUPS, noise="central"), "codec": Codecs(upload=Nf4())},
            "phases.0.codec.upload: a lossy codec",
        ),
        (
            {"privacy": replace(GROUPS, adaptive=AdaptiveClip(count_noise=0.5))},
            "privacy.adaptive.count_noise: 0.5 leaves",
        ),
        ({"personal_params": ("head.*",)}, "phases.0.personal_params: they would carry data of one group"),
        (
            {"keep_optimizer": True, "optimizer": "adam"},
            "phases.0.local.keep_optimizer: true would carry data of one group",
        ),
        ({"on_error": "skip"}, "on_error: skip"),
        ({"algorithm": "fedavg", "communicate": False}, "phases.0.communicate: false, so nothing is uploaded"),
        ({"algorithm": "ditto"}, "phases.0.algorithm: "),
        (
            {"algorithm": "dp_fedavg", "privacy": Privacy(unit="client", clip=1.0, noise_multiplier=1.0)},
            "privacy.noise: client",
        ),
        ({"privacy": Privacy(unit="client", clip=1.0, group_rate=0.5)}, "privacy.group_rate: 0.5 has no effect"),
    ],
)
def test_settings_that_would_break_the_guarantee_are_refused(changes: dict[str, Any], line: str) -> None:
    settings = {"algorithm": "group_dp"} | changes
    found = list(violations(private(**settings)))
    assert any(one.startswith(line) for one in found), found


def test_running_statistics_are_refused(tmp_path: Path) -> None:
    from fakes import Normalised

    with pytest.raises(ConfigError, match="privacy: running statistics"):
        run(replace(private(), model=Normalised()), tmp_path)


def test_an_unknown_unit_raises_one_line() -> None:
    mapping = config.to_mapping(private())
    mapping["privacy"]["unit"] = "provider"
    with pytest.raises(ConfigError, match="'provider' is not one of record, group, client"):
        config.parse(mapping)


def test_privacy_takes_few_lines_of_the_round() -> None:
    source = Path(simulation.__file__).read_text().splitlines()
    about = [line for line in source if any(word in line for word in ("account", "mechanism", "charge", "privacy"))]
    assert 0 < len(about) < 12
