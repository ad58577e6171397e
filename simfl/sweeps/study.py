"""A search in progress: proposes trials, decides which ones end early, and knows the best. Optuna does the reasoning.

Nothing of it is stored: the folders of the runs and the proposed settings in `sweep.json` are the whole state. A study
that is built from them proposes what the study that was killed would have proposed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simfl.config.inheritance import Settings
from simfl.runs.folder import JsonObject
from simfl.seeds import seed_for
from simfl.sweeps.axes import short_names
from simfl.sweeps.optuna_import import load_optuna
from simfl.sweeps.point import Point
from simfl.sweeps.search import SearchPlan, trial_label
from simfl.tracking.watch import score_key

SEEDS = 1 << 32  # number of seeds that Optuna's samplers accept
MAX_DRAWS = 50  # proposals in a row that repeat known settings, after which the space is exhausted
MIN_IMPORTANCE = 8  # completed trials from which importances are estimated


@dataclass
class Trial:
    """A trial of the study."""

    point: Point
    draw: int  # number of the proposal; some proposals repeat known settings and become no trial
    value: float | None = None  # final score; None until it has completed
    reported: set[int] = field(default_factory=set)  # rounds whose scores were reported
    pruned: bool = False  # the pruner has ended it


class Study:
    """The trials of a search."""

    def __init__(self, plan: SearchPlan) -> None:
        optuna = load_optuna()
        search, maximize = plan.search, plan.objective.maximize
        pruner = search.pruner.build(plan.rounds) if search.pruner is not None else optuna.pruners.NopPruner()
        self.plan, self.trials, self.exhausted = plan, dict[str, Trial](), False
        self.states = optuna.trial.TrialState
        self.study = optuna.create_study(
            study_name="search", direction="maximize" if maximize else "minimize", pruner=pruner
        )
        self.distributions = {path: domain.distribution() for path, domain in plan.space.items()}

    @property
    def left(self) -> int:
        """Number of trials that may still be proposed."""
        return 0 if self.exhausted else max(0, self.plan.search.trials - len(self.trials))

    def restore(self, label: str, settings: Settings, draw: int) -> Point:
        """Add a trial of an earlier session, in the order in which they were proposed."""
        create, optuna = load_optuna().trial.create_trial, self.study
        while len(optuna.get_trials(deepcopy=False)) < draw:  # proposals that repeated known settings
            optuna.add_trial(create(state=self.states.FAIL))
        keys = self._keys(settings)
        optuna.add_trial(create(state=self.states.RUNNING, params=keys, distributions=self.distributions))
        return self._added(label, settings, draw)

    def propose(self) -> Point | None:
        """Return a new trial; None if the space has no more settings that were not tried."""
        number, known = len(self.trials), [self._keys(trial.point.settings) for trial in self.trials.values()]
        first = self.plan.search.first
        for _ in range(MAX_DRAWS):
            draw = len(self.study.get_trials(deepcopy=False))
            self.study.sampler = self.plan.search.sampler.build(seed_for("search", self.plan.search.seed, draw) % SEEDS)
            if number < len(first):
                self.study.enqueue_trial(self._keys(first[number]))
            keys = self.study.ask(self.distributions).params
            if keys not in known or number < len(first):
                settings = {path: domain.value_of(keys[path]) for path, domain in self.plan.space.items()}
                return self._added(trial_label(number), settings, draw)
            self.study.tell(draw, state=self.states.FAIL)
        self.exhausted = True
        return None

    def report(self, label: str, scores: Mapping[int, float]) -> bool:
        """Report the scores of a trial by round; return whether it has to end."""
        trial = self.trials[label]
        for step in sorted(set(scores) - trial.reported):
            trial.reported.add(step)
            if step > 0 and not trial.pruned and self.plan.search.pruner is not None:
                running = self._running(trial)
                running.report(scores[step], step)
                trial.pruned = bool(running.should_prune())
        return trial.pruned

    def end(self, label: str, status: str, value: float | None) -> None:
        """Record the end of a trial: `completed`, `stopped` by the pruner, or anything else for a failure."""
        trial = self.trials[label]
        if status == "completed" and value is not None and math.isfinite(value):
            trial.value = value
            self.study.tell(trial.draw, value)
        else:
            self.study.tell(trial.draw, state=self.states.PRUNED if status == "stopped" else self.states.FAIL)

    @property
    def best(self) -> Trial | None:
        """The completed trial with the best score, the first of equal ones; None if none has completed."""
        done = [trial for trial in self.trials.values() if trial.value is not None]
        sign = 1 if self.plan.objective.maximize else -1
        return max(done, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def importances(self) -> dict[str, float]:
        """Return the share of each setting in the variation of good scores, by PED-ANOVA (Watanabe et al. 2023).

        Empty with fewer than `MIN_IMPORTANCE` completed trials, with equal scores, or for a single setting.
        """
        values = {trial.value for trial in self.trials.values() if trial.value is not None}
        done = sum(trial.value is not None for trial in self.trials.values())
        if done < MIN_IMPORTANCE or len(values) < 2 or len(self.distributions) < 2:
            return {}
        importance = load_optuna().importance
        found = importance.get_param_importances(self.study, evaluator=importance.PedAnovaImportanceEvaluator())
        return {path: float(share) for path, share in found.items()}

    def to_json(self) -> JsonObject:
        """Return the description of the search that `sweep.json` stores."""
        objective = self.plan.objective
        return {
            "space": {path: domain.to_json() for path, domain in self.plan.space.items()},
            "trials": self.plan.search.trials,
            "metric": objective.name,
            "score": score_key(objective.split, objective.model, objective.metric),
            "direction": "maximize" if objective.maximize else "minimize",
        }

    def results(self) -> JsonObject:
        """Return the best trial and the importance of each setting, by their names in tables."""
        names, best = short_names(list(self.plan.space)), self.best
        importance = {names[path]: share for path, share in self.importances().items()}
        return {"best": None if best is None else best.point.label, "importance": importance}

    def _added(self, label: str, settings: Settings, draw: int) -> Point:
        point = self.plan.point(label, settings)
        self.trials[label] = Trial(point, draw)
        return point

    def _keys(self, settings: Mapping[str, object]) -> dict[str, object]:
        """Return settings as Optuna knows them."""
        return {path: self.plan.space[path].key_of(value) for path, value in settings.items()}

    def _running(self, trial: Trial) -> Any:
        """Return the trial of Optuna, which accepts scores."""
        stored = self.study.get_trials(deepcopy=False)[trial.draw]
        return load_optuna().trial.Trial(self.study, stored._trial_id)
