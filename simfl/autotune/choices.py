"""How the visits of a phase are trained, as the manifest keeps it and as a person is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from simfl.autotune.trial import Trial
from simfl.training.plan import ExecutionMode

BUSY = 0.1  # share of a second that a GPU worked for others: from here on it is said
RULES, FAILED = "by rules, as ", "trying failed"

Facts = dict[str, Any]


def said(facts: Facts) -> str:
    """A choice in one line; empty where nothing was to be tried."""
    execution_mode = ExecutionMode(facts["mode"], facts["clients_per_batch"], facts["program"])
    if "trials" not in facts:
        failed = str(facts["why"]).startswith(RULES + FAILED)
        return f"clients are trained so: {execution_mode} ({facts['why']})" if failed else ""
    trials = [trial_of(trial) for trial in facts["trials"]]
    out = [trial for trial in trials if trial.why]
    own = [
        t.step
        for t in trials
        if t.step
        and (t.execution_mode == execution_mode or t.execution_mode.mode == execution_mode.mode == "sequential")
    ]
    pace = f"{_milliseconds(own[0])} a client's step, {_milliseconds(trials[0].step)} one by one; " if own else ""
    spent = facts["seconds"] - facts["loading"]
    how = f"tried {_ago(facts)} by an earlier run" if facts["recalled"] else f"tried in {spent:.1f} s, loading aside"
    left = f", {len(out)} left out (manifest.json says why)" if out else ""
    text = f"clients are trained so: {execution_mode} ({facts['why']}): {pace}{len(trials)} execution_modes {how}{left}"
    return "; ".join([text, *_doubts(facts)])


def _doubts(facts: Facts) -> Iterator[str]:
    """What may make another execution_mode the best by now, or for others."""
    if facts["kind"] != facts["kinds"]:
        yield f"they were tried on one worker ({facts['kind']}) for all ({facts['kinds']})"
    if (facts["others"] or 0.0) >= BUSY:
        yield (
            f"the GPU worked for others {facts['others']:.0%} of the second before: once it does not,"
            " execution.autotune: always tries anew"
        )


def _ago(facts: Facts) -> str:
    """When it was tried, by the day in Greenwich."""
    return time.strftime("on %Y-%m-%d", time.gmtime(facts["when"]))


def _milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{1000 * seconds:.3g} ms"


def kept(trial: Trial) -> Facts:
    """A trial as it is kept."""
    facts = {**asdict(trial.execution_mode), **asdict(trial)}
    return {name: value for name, value in facts.items() if name not in ("manner", "starving")}


def trial_of(facts: Facts) -> Trial:
    names = ("step", "round", "gap", "memory", "why")
    return Trial(
        ExecutionMode(facts["mode"], facts["clients_per_batch"], facts["program"]),
        **{name: facts[name] for name in names},
    )
