"""`simfl check-privacy`: white-box tests of a privacy mechanism, on an experiment's own units, samples and rounds.

Units must be disjoint, and sampled as often as the account assumes. An update along any tensor, however small, is
clipped. The noise must be Gaussian, with the scale that the account assumes, in every tensor, slice and scalar, and
independent over tensors, clients, local steps, rounds, phases and runs. What clients store must carry noise. Limits
are 6 to 8 standard errors wide, and lines say which error they would have found.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from simfl.debug.noise_statistics import Measurement
from simfl.debug.privacy_chain import check_chain
from simfl.debug.privacy_correlation import check_correlation
from simfl.debug.privacy_noise import check_noise
from simfl.debug.privacy_rounds import PrivacyTestRounds
from simfl.debug.privacy_samples import check_samples, check_units
from simfl.debug.privacy_sensitivity import check_account, check_cohorts, check_sensitivity, check_states
from simfl.errors import ConfigError, SimflError
from simfl.experiment import Experiment

CHECKS: tuple[Callable[[PrivacyTestRounds], Iterator[Measurement]], ...] = (
    check_units,
    check_samples,
    check_sensitivity,
    check_account,
    check_cohorts,
    check_states,
    check_noise,
    check_chain,
)

CORRELATED = (check_units, check_sensitivity, check_states, check_correlation)  # noise over all rounds together


def check(experiment: Experiment, cache: Path, seed: int | None = None) -> list[Measurement]:
    """Test the privacy mechanism of an experiment.

    Args:
        experiment: The experiment.
        cache: The cache folder.
        seed: A seed to use in place of the experiment's.

    Raises:
        ConfigError: The experiment adds no noise.
    """
    if experiment.privacy is None or not experiment.privacy.adds_noise:
        raise ConfigError("privacy: there is no noise to check; give privacy.epsilon or privacy.noise_multiplier")
    if experiment.secure_aggregation is not None:
        raise ConfigError(
            "secure_aggregation: check-privacy measures real noise in single uploads; integer noise and masks are"
            " covered by tests/secure_aggregation"
        )
    with tempfile.TemporaryDirectory(prefix="simfl-check-") as scratch:
        rounds = PrivacyTestRounds(experiment if seed is None else replace(experiment, seed=seed), cache, Path(scratch))
        try:
            chosen = (
                CHECKS if rounds.given.privacy is None or rounds.given.privacy.factorization is None else CORRELATED
            )
            return [one for checks in chosen for one in checks(rounds)]
        except SimflError as error:
            return [Measurement(f"a round fails: {str(error).splitlines()[0]}", math.nan, "no failure", False)]


def check_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Format the measurements; the last line is the verdict."""
    lines = [f"{'ok' if m.holds else 'FAILED':<7} {m.what}: {m.value:.4g} (allowed: {m.allowed})" for m in measurements]
    failed = sum(not m.holds for m in measurements)
    verdict = f"{failed} of {len(measurements)} checks failed" if failed else "the mechanism matches its accounting"
    return [*lines, verdict]
