"""Runs that are prefixes of others: a grid over the number of rounds costs only its longest run."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simfl.reports.results import RunResult
from simfl.runs.folder import JsonObject
from simfl.runs.manifest import binding_settings

if TYPE_CHECKING:
    from simfl.experiment import Experiment, Phase

HORIZON_STEPS = 4  # local steps at which two schedules are compared


def runs_that_are_prefixes(results: Sequence[RunResult]) -> set[str]:
    """Return the labels of the runs that are prefixes of others; experiments are built only where two are similar."""
    keys = {result.label: prefix_key(result.run.settings) for result in results}
    counts = Counter(keys.values())
    similar = {one.label: one.whole_run.experiment for one in results if counts[keys[one.label]] > 1}
    return set(longest_prefixes(similar).values()) if similar else set()


def longest_prefixes(experiments: Mapping[str, Experiment]) -> dict[str, str]:
    """Map experiments, by name, to the longest other experiment that is a prefix; those without one are left out.

    One experiment is a prefix of another if they differ only in the number of rounds of the last phase, and the first
    has fewer. A schedule that depends on the number of rounds makes them differ from the first round on, and so does a
    privacy budget.
    """
    from simfl import config

    groups: dict[str, list[str]] = {}
    for name, experiment in experiments.items():
        groups.setdefault(prefix_key(config.to_mapping(experiment)), []).append(name)
    found = {}
    for names in groups.values():
        ordered = sorted(names, key=lambda name: experiments[name].phases[-1].rounds)
        for i, name in enumerate(ordered):
            shorter = [other for other in ordered[:i] if _is_prefix(experiments[other], experiments[name])]
            if shorter:
                found[name] = shorter[-1]
    return found


def prefix_key(settings: JsonObject) -> str:
    """Return a hash of all settings that determine the rounds of a run, except how many the last phase has."""
    content = {k: v for k, v in binding_settings(settings).items() if k != "name"}
    *earlier, last = content["phases"]
    content["phases"] = [*earlier, {k: v for k, v in last.items() if k != "rounds"}]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_prefix(shorter: Experiment, longer: Experiment) -> bool:
    a, b = shorter.phases[-1], longer.phases[-1]
    return shorter.privacy is None and a.rounds < b.rounds and _has_same_rates(a, b)


def _has_same_rates(a: Phase, b: Phase) -> bool:
    """Return whether two phases have the same learning rates in the rounds of the first one."""
    for number in range(a.rounds):
        rates = [p.local.schedule.factors(p.rounds, number, HORIZON_STEPS).tolist() for p in (a, b)]
        if rates[0] != rates[1] or a.server.at(number, a.rounds) != b.server.at(number, b.rounds):
            return False
    return True
