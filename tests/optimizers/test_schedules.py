"""Schedules against their closed forms, in every unit, of client and server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import experiment, run

from simfl import config
from simfl.errors import ConfigError
from simfl.optimizers import SCHEDULES
from simfl.optimizers.schedules import Constant, Cosine, Decay, Polynomial, Steps
from simfl.optimizers.server import Sgd
from simfl.runs.results import Run


def over_rounds(schedule, rounds: int) -> list[float]:
    """The factor in each round of a phase."""
    return [float(schedule.factors(rounds, r, 1)[0]) for r in range(rounds)]


def test_the_constant_schedule_is_one():
    assert over_rounds(Constant(), 3) == [1.0, 1.0, 1.0]


def test_warmup_is_linear_up_to_the_full_rate():
    assert over_rounds(Constant(warmup=4.0), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_falls_to_its_floor_at_the_horizon():
    # halfway cos is 0; a horizon of 4 ends before the phase's 6 rounds
    assert over_rounds(Cosine(horizon=4.0, floor=0.1), 6) == pytest.approx(
        [1.0, 0.8682, 0.55, 0.2318, 0.1, 0.1], abs=1e-4
    )


def test_the_default_horizon_is_the_phase():
    assert over_rounds(Cosine(), 4) == over_rounds(Cosine(horizon=4.0), 4)


def test_polynomial_of_power_one_is_linear_after_the_warmup():
    # warm-up 2, then from round 2 on (6 − t)/4
    assert over_rounds(Polynomial(warmup=2.0), 6) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])


def test_polynomial_with_a_higher_power():
    assert over_rounds(Polynomial(power=2.0), 4) == pytest.approx([1.0, 0.5625, 0.25, 0.0625])


def test_steps_multiply_by_gamma_at_each_time():
    assert over_rounds(Steps(at=(1.0, 3.0), gamma=0.1), 5) == pytest.approx([1.0, 0.1, 0.1, 0.01, 0.01])


def test_the_steps_of_fedocr_drop_to_a_tenth_at_round_five():
    assert over_rounds(Steps(), 7) == pytest.approx([1.0] * 5 + [0.1, 0.1])


def test_decay_per_round_is_the_protocol_of_feddyn():
    assert over_rounds(Decay(), 3) == pytest.approx([1.0, 0.998, 0.998**2])


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("round", [0.8, 0.8, 0.8, 0.8]),  # round 2 of 10 in all
        ("progress", [0.8, 0.775, 0.75, 0.725]),  # with the fraction of the client update
        ("step", [1.0, 0.75, 0.5, 0.25]),  # restarts at each client update
        ("client_update", [1.0, 0.75, 0.5, 0.25]),
    ],
)
def test_polynomial_in_every_unit(unit, expected):
    assert Polynomial(unit=unit).factors(rounds=10, round=2, steps=4).tolist() == pytest.approx(expected)


def test_the_schedule_of_feddats_code_never_reaches_its_peak():
    # a horizon of 15 epochs with a warm-up of 1.5, rebuilt at each client update of one epoch: it ends at two thirds
    factors = Polynomial(unit="client_update", warmup=1.5, horizon=15.0).factors(rounds=20, round=7, steps=10)
    assert factors[0] == pytest.approx(0.1 / 1.5)
    assert factors[-1] == pytest.approx(1.0 / 1.5)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_every_schedule_has_one_finite_factor_per_step(name, steps):
    factors = SCHEDULES[name](unit="progress", warmup=1.5).factors(rounds=3, round=2, steps=steps)
    assert factors.shape == (steps,)
    assert np.isfinite(factors).all()
    assert (factors >= 0).all()


def test_steps_refuse_times_out_of_order():
    with pytest.raises(ConfigError, match=r"schedule\.at: \[3\.0, 1\.0\] given; allowed: at least one time"):
        Steps(at=(3.0, 1.0))


def test_the_server_learning_rate_follows_its_schedule():
    server = Sgd(learning_rate=2.0, schedule=Steps(at=(1.0,), gamma=0.25))
    assert server.at(0, 3) is server
    assert server.at(1, 3).learning_rate == 0.5
    assert server.at(1, 3).at(1, 3).learning_rate == 0.5  # it is not applied twice


def test_a_server_rate_of_zero_keeps_the_model_of_the_round_before(tmp_path: Path):
    stop = Sgd(schedule=Steps(at=(1.0,), gamma=1e-30))
    run(experiment(server=stop, rounds=3), tmp_path / "stopped")
    run(experiment(rounds=1), tmp_path / "one")
    weights = [Run(tmp_path / name).summary["weights_sha256"] for name in ("stopped", "one")]
    assert weights[0] == weights[1]


def test_a_client_rate_of_zero_after_half_the_update_takes_half_the_steps(tmp_path: Path):
    half: dict[str, Any] = {
        "schedule": Steps(unit="client_update", at=(0.5,), gamma=1e-30),
        "epochs": 2,
        "shuffle": False,
    }
    run(experiment(rounds=1, **half), tmp_path / "half")
    run(experiment(rounds=1, shuffle=False), tmp_path / "one")
    weights = [Run(tmp_path / name).summary["weights_sha256"] for name in ("half", "one")]
    assert weights[0] == weights[1]


def test_yaml_names_schedules_of_client_and_server(tmp_path: Path):
    given = experiment(schedule=Cosine(warmup=1.0), server=Sgd(schedule=Decay(rate=0.9)))
    plain = config.to_mapping(given)["phases"][0]
    assert plain["local"]["schedule"]["name"] == "cosine"
    assert plain["server"]["schedule"] == {"name": "decay", "unit": "round", "warmup": 0.0, "rate": 0.9}
