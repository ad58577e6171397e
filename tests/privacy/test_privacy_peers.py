"""Epsilon of experiments, held to releases that other libraries compose."""

from __future__ import annotations

import pytest

from benchmarks.privacy_peers import CASES, Case, dp_accounting, opacus_prv, opacus_rdp, simfl

FAST = ("one release", "50 rounds with an adaptive clip norm")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case.name in FAST else pytest.mark.slow, id=case.name) for case in CASES],
)
def test_the_charged_epsilon_is_that_of_dp_accounting_and_never_lower(case: Case) -> None:
    reference = dp_accounting(case)
    assert reference * (1 - 1e-6) <= simfl(case, "pld") <= reference * (1 + 1e-4)
    renyi, estimate = opacus_rdp(case), opacus_prv(case)
    if renyi is not None and estimate is not None:
        assert simfl(case, "rdp") == pytest.approx(renyi, rel=1e-6)
        assert simfl(case, "pld") == pytest.approx(estimate, abs=0.02)  # opacus allows for an error of 0.01
    assert simfl(case, "rdp") >= reference
