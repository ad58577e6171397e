"""The contracts of samplers and pruners of searches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simfl.sweeps.optuna_import import load_optuna
from simfl.sweeps.pruners import Pruner
from simfl.sweeps.samplers import Sampler

TRIALS, ROUNDS = 12, 9


def check_sampler(sampler: Sampler) -> Iterator[str]:
    """Yield one line for each rule that a sampler breaks."""
    first, again = _draws(sampler, 0), _draws(sampler, 0)
    if first != again:
        yield "two samplers with the same seed propose different settings; use the `seed` of `build` alone"
    if len(set(first)) < 2:
        yield "it proposes the same settings again and again"


def check_pruner(pruner: Pruner) -> Iterator[str]:
    """Yield one line for each rule that a pruner breaks."""
    study = load_optuna().create_study(direction="maximize", pruner=pruner.build(ROUNDS))
    pruned = [_is_pruned(study, float(score)) for score in range(TRIALS, -1, -1)]  # each trial is worse than the others
    if pruned[0]:
        yield "it ends the first trial, which has no others to be compared with"
    if not any(pruned):
        yield "it ends no trial, however low its scores"


def _draws(sampler: Sampler, seed: int) -> list[tuple[object, ...]]:
    """Return settings that samplers with consecutive seeds propose."""
    optuna = load_optuna()
    study, found = optuna.create_study(direction="maximize"), []
    space = {
        "rate": optuna.distributions.FloatDistribution(1e-3, 1.0, log=True),
        "kind": optuna.distributions.CategoricalDistribution(["a", "b"]),
    }
    for number in range(TRIALS):
        study.sampler = sampler.build(seed + number)
        trial = study.ask(space)
        study.tell(trial, trial.params["rate"])
        found.append(tuple(trial.params.values()))
    return found


def _is_pruned(study: Any, score: float) -> bool:
    """Return whether a trial with the same score after each round is ended."""
    states, trial = load_optuna().trial.TrialState, study.ask()
    for step in range(1, ROUNDS + 1):
        trial.report(score, step)
        if trial.should_prune():
            study.tell(trial, state=states.PRUNED)
            return True
    study.tell(trial, score)
    return False
