"""Compare epsilon with dp-accounting, opacus and pfl: `python -m benchmarks.privacy_peers [--pfl PYTHON] [--write]`.

Each of twelve events is an experiment of simfl on one side, and on the other side what a reader of its documentation
would compose by hand with the other library. Where clients are sampled and an observer may see which, dp-accounting
has no event: the reference is then the mixture over the number of participations, of deltas that dp-accounting
computes. `--pfl` names the Python of an environment with pfl-research (`benchmarks/peers/setup.sh`). `--write` updates
the table in `docs/explanation/privacy.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, stats

from simfl import config, files
from simfl.privacy.accounting import ORDERS
from simfl.privacy.budget import Budget

DELTA = 1e-6
GRID = 1e-4  # discretization of dp-accounting and pfl, their default
DOCUMENT = Path(__file__).parent.parent / "docs/explanation/privacy.md"
MARKED = re.compile(r"(?<=<!-- peers -->\n).*(?=<!-- /peers -->)", re.DOTALL)
NONE = "–"

Releases = Sequence[tuple[float, float, int]]  # noise multiplier, rate of a Poisson sample, times


@dataclass(frozen=True)
class Case:
    """An event, as an experiment of simfl and as releases that are composed without simfl.

    Attributes:
        name: Description for the table.
        overrides: Differences from `BASE`, as on the command line.
        releases: The releases of one participation.
        client_rate: Probability of a participation in a round, which an observer may see.
        rounds: Number of rounds, where `client_rate` is below 1.
        phases: Number of phases.
    """

    name: str
    overrides: tuple[str, ...]
    releases: Releases
    client_rate: float = 1.0
    rounds: int = 1
    phases: int = 1


BASE: dict[str, Any] = {
    "name": "peers",
    "data": {"name": "digits"},
    "partition": {"by": "iid", "clients": 200},
    "model": {"name": "mlp", "hidden_sizes": [4]},
    "phases": [
        {
            "objective": "classification",
            "algorithm": "dp_fedavg",
            "rounds": 1,
            "weighting": "uniform",
            "participation": 1.0,
            "local": {"steps": 1, "batch_size": 4, "optimizer": "sgd", "learning_rate": 0.1},
        }
    ],
    "privacy": {
        "unit": "client",
        "noise": "central",
        "adjacency": "zero_out",
        "noise_multiplier": 1.0,
        "clip": 1.0,
        "delta": DELTA,
        "accountant": "pld",
    },
    "evaluate": {"every": 0},
}

SOME = ("phases.0.participation=null", "phases.0.clients_per_round=20")  # 20 of 200 clients
POISSON = ("phases.0.participation=null", "phases.0.poisson=0.1", "privacy.min_clients=200")
GROUPS = (
    "phases.0.algorithm=group_dp",
    "privacy.unit=group",
    "privacy.noise=client",
    "privacy.adjacency=add_remove",
    "privacy.groups_per_client=50",
    "privacy.min_groups=400",
)
BANDED = "privacy.factorization={name: banded, bands: 4}"
SECOND_PHASE = ("phases.1.participation=null", "phases.1.poisson=0.05", "phases.1.rounds=40")


def _rounds(count: int) -> str:
    return f"phases.0.rounds={count}"


def _sigma(value: float) -> str:
    return f"privacy.noise_multiplier={value}"


CASES = (
    Case("one release", (_sigma(2.0),), [(2.0, 1.0, 1)]),
    Case("100 releases of all clients", (_sigma(10.0), _rounds(100)), [(10.0, 1.0, 100)]),
    Case(
        "1,000 rounds, clients sampled independently",
        (*POISSON, "phases.0.poisson=0.01", "privacy.adjacency=add_remove", _rounds(1000)),
        [(1.0, 0.01, 1000)],
    ),
    Case(
        "30 rounds, a fixed number of clients (zero-out)",
        (*SOME, _sigma(3.0), _rounds(30)),
        [(3.0, 1.0, 1)],
        client_rate=0.1,
        rounds=30,
    ),
    Case(
        "30 rounds, a fixed number of clients (add or remove)",
        (*SOME, _sigma(6.0), _rounds(30), "privacy.adjacency=add_remove", "privacy.min_clients=200"),
        [(3.0, 0.1, 30)],
    ),
    Case(
        "20 rounds, groups of sampled clients, a fixed number",
        (*SOME, *GROUPS, _sigma(0.5), _rounds(20)),
        [(0.5 * math.sqrt(20) / 2, 50 / 400, 1)],
        client_rate=0.1,
        rounds=20,
    ),
    Case(
        "20 rounds, groups of sampled clients, independently",
        (*SOME, *GROUPS, _sigma(0.25), _rounds(20), "privacy.groups_per_client=50", "privacy.group_rate=0.125"),
        [(0.25 * math.sqrt(20), 0.125, 1)],
        client_rate=0.1,
        rounds=20,
    ),
    Case(
        "10 rounds of 15 local steps on records",
        (
            *SOME,
            "phases.0.algorithm=dp_sgd",
            "phases.0.local.steps=15",
            "phases.0.local.batch_size=32",
            "privacy.unit=record",
            "privacy.noise=client",
            "privacy.adjacency=add_remove",
            "privacy.min_examples=1600",
            _rounds(10),
        ),
        [(1.0, 0.02, 15)],
        client_rate=0.1,
        rounds=10,
    ),
    Case(
        "50 rounds with an adaptive clip norm",
        (_sigma(8.0), _rounds(50), "privacy.adaptive={count_noise: 1.25}"),
        [(8.0 / math.sqrt(1 - 1 / 2.5**2), 1.0, 50), (2 * 1.25 * 8.0, 1.0, 50)],  # of updates, of counts
    ),
    Case(
        "two phases with different rates",
        (*POISSON, "privacy.adjacency=add_remove", _sigma(2.0), _rounds(60), *SECOND_PHASE),
        [(2.0, 0.1, 60), (2.0, 0.05, 40)],
        phases=2,
    ),
    Case(
        "40 rounds of BandMF, clients in turns",
        (*SOME, _sigma(4.0), _rounds(40), BANDED),
        [(4.0, 1.0, 4)],  # columns of norm 1, 4 participations
    ),
    Case(
        "40 rounds of BandMF, amplified by sampling",
        (
            "phases.0.participation=null",
            "phases.0.poisson=0.02",
            "privacy.adjacency=add_remove",
            "privacy.min_clients=200",
            _sigma(1.0),
            _rounds(40),
            BANDED,
        ),
        [(1.0, 0.08, 10)],  # 4 bands: a rate of 4·0.02 within a bin, every fourth round
    ),
)


def simfl(case: Case, accountant: str) -> float:
    """Return the epsilon that simfl charges for all rounds, in the view of an observer of the models."""
    base = {**BASE, "phases": BASE["phases"] * case.phases}
    overrides = [*case.overrides, f"privacy.accountant={accountant}"]
    budget = Budget.of(config.parse(config.overridden(base, overrides)))
    return budget.epsilon(budget.everything, "averages")


def dp_accounting(case: Case) -> float:
    """Return the epsilon by loss distributions of dp-accounting."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    distributions = [
        pld.from_gaussian_mechanism(sigma, value_discretization_interval=GRID, sampling_prob=rate).self_compose(times)
        for sigma, rate, times in case.releases
    ]
    one = distributions[0]
    for other in distributions[1:]:
        one = one.compose(other)
    if case.client_rate == 1.0:
        return float(one.get_epsilon_for_delta(DELTA))
    participations = {k: one.self_compose(k) for k in range(1, case.rounds + 1)}
    weights = {k: float(stats.binom.pmf(k, case.rounds, case.client_rate)) for k in participations}

    def excess(value: float) -> float:
        return sum(weights[k] * found.get_delta_for_epsilon(value) for k, found in participations.items()) - DELTA

    return float(optimize.brentq(excess, 1e-3, 200.0, xtol=1e-7))


def opacus_prv(case: Case) -> float | None:
    """Return the estimate of opacus' PRV accountant; None where it has no such event."""
    return _opacus(case, "prv")


def opacus_rdp(case: Case) -> float | None:
    """Return the epsilon of opacus' Rényi accountant at the orders of simfl's `rdp`."""
    return _opacus(case, "rdp")


def _opacus(case: Case, accountant: str) -> float | None:
    from opacus import accountants

    if case.client_rate < 1.0:
        return None
    history = list(case.releases)
    if accountant == "rdp":
        warnings.filterwarnings("ignore", "Optimal order is the")  # still an upper bound
        renyi = accountants.RDPAccountant()
        renyi.history = history
        return float(renyi.get_epsilon(DELTA, alphas=list(ORDERS["rdp"])))
    prv = accountants.PRVAccountant()
    prv.history = history
    with np.errstate(divide="ignore"):
        return float(prv.get_epsilon(DELTA))


PFL = """
import json, sys
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant as Accountant
cases, delta = json.load(sys.stdin)
settings = [dict(noise_parameter=s, sampling_probability=q, num_compositions=t) for s, q, t in cases]
print(json.dumps([Accountant(mechanism="gaussian", delta=delta, **one).epsilon for one in settings]))
"""


def pfl(cases: Sequence[Case], python: str) -> dict[str, float]:
    """Return epsilon by pfl's accountant, for cases of a single kind of release; it composes no others."""
    single = [case for case in cases if case.client_rate == 1.0 and len(case.releases) == 1]
    given = json.dumps([[case.releases[0] for case in single], DELTA])
    done = subprocess.run([python, "-c", PFL], input=given, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {case.name: value for case, value in zip(single, found, strict=True)}


MECHANISMS = (
    ("Gaussian, central or at clients", "yes", "account", "central, records", "yes"),
    ("Poisson sampling", "clients, groups, records", "account", "records", "account; cohorts have a fixed size"),
    ("fixed sample, counted as such", "yes", "yes, replace-one (RDP)", "no", "no"),
    ("sampled clients with sampled groups", "yes", "no", "no", "no"),
    ("adaptive clip", "with its cost", "no", "with its cost", "with its cost"),
    ("banded matrix factorization", "yes, planned and checked", "no", "no", "yes, without an account of its own"),
    ("BLT", "yes", "no", "no", "no"),
    ("tree aggregation", "no", "account", "no", "no"),
    ("Laplace", "no", "account", "no", "yes"),
    ("several statistics in one release", "yes (`parts`, update and count)", "account", "no", "yes (`JointMechanism`)"),
    ("noise of a larger cohort", "yes, named as such everywhere", "no", "no", "yes (`noise_cohort_size`)"),
    ("sampling verified while it runs", "yes (`check-privacy`)", "no", "no", "no"),
)
SOURCES = "dp-accounting 0.6.0: `dp_event.py`; opacus 1.6.0: `accountants/`, `optimizers/`; pfl 0.6.0: `pfl/privacy/`"


def table(pfl_found: Mapping[str, float]) -> str:
    """Return both tables as Markdown."""
    lines = [
        f"Epsilon at δ = {DELTA:g}. `pld` and `rdp` are accountants of simfl. {NONE}: no such event in the library.",
        "",
        "| event | `pld` | dp-accounting | difference | pfl | opacus PRV | `rdp` | opacus RDP |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for case in CASES:
        own, reference = simfl(case, "pld"), dp_accounting(case)
        values = [pfl_found.get(case.name), opacus_prv(case), simfl(case, "rdp"), opacus_rdp(case)]
        shown = " | ".join(NONE if value is None else f"{value:.4f}" for value in values)
        difference = f"{100 * (own / reference - 1):+.3f} %"
        lines.append(f"| {case.name} | {own:.4f} | {reference:.4f} | {difference} | {shown} |")
    lines += ["", f'Mechanisms by their sources ({SOURCES}); "account": composed, but no mechanism that trains.', ""]
    lines += ["| mechanism | simfl | dp-accounting | opacus | pfl |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in MECHANISMS]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pfl", help="Python of an environment with pfl-research")
    parser.add_argument("--write", action="store_true", help="update docs/explanation/privacy.md")
    given = parser.parse_args()
    text = table({} if given.pfl is None else pfl(CASES, given.pfl))
    if not given.write:
        print(text)
        return
    updated = MARKED.sub(lambda _: text, DOCUMENT.read_text())
    files.write(DOCUMENT, lambda file: file.write(updated.encode()))


if __name__ == "__main__":
    main()
