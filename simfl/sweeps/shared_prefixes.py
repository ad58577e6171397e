"""Which run is the beginning of another: a grid over the number of rounds costs its longest run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from simfl import config
from simfl.experiment import Experiment, Phase
from simfl.runs.manifest import bound

HORIZON_STEPS = 4  # local steps at which two schedules are held against each other


def beginnings(experiments: Mapping[str, Experiment]) -> dict[str, str]:
    """For each experiment, by name, the longest of the others that it begins with; of some there is none.

    One is the beginning of another if they are equal but for fewer rounds of the last phase. A schedule that knows the
    horizon makes them differ from the first round on, and so does a privacy budget.
    """
    alike: dict[str, list[str]] = {}
    for name, experiment in experiments.items():
        alike.setdefault(address(experiment), []).append(name)
    found = {}
    for names in alike.values():
        ordered = sorted(names, key=lambda name: experiments[name].phases[-1].rounds)
        for i, name in enumerate(ordered):
            shorter = [other for other in ordered[:i] if _begins(experiments[other], experiments[name])]
            if shorter:
                found[name] = shorter[-1]
    return found


def address(experiment: Experiment) -> str:
    """A hash of all that determines a run's rounds, but for how many the last phase has."""
    content = {k: v for k, v in bound(config.to_mapping(experiment)).items() if k != "name"}
    content["phases"][-1].pop("rounds")
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _begins(shorter: Experiment, longer: Experiment) -> bool:
    a, b = shorter.phases[-1], longer.phases[-1]
    return shorter.privacy is None and a.rounds < b.rounds and _same_rates(a, b)


def _same_rates(a: Phase, b: Phase) -> bool:
    """Whether both have the same learning rates in the rounds that both have."""
    for number in range(a.rounds):
        rates = [p.local.schedule.factors(p.rounds, number, HORIZON_STEPS).tolist() for p in (a, b)]
        if rates[0] != rates[1] or a.server.at(number, a.rounds) != b.server.at(number, b.rounds):
            return False
    return True
