"""The section `search` of a sweep file: the space, the budget, the score to optimize, and what proposes and prunes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from simfl.config.fields import shown
from simfl.config.inheritance import Settings
from simfl.constraints import PositiveInt, Seed
from simfl.data.base import HELD_OUT
from simfl.errors import ConfigError, nearest
from simfl.evaluation.headlines import LOSS, score_name
from simfl.experiment import Experiment
from simfl.reports.results import SPREAD, TRIAL
from simfl.sweeps.axes import cell, short_names
from simfl.sweeps.point import Point
from simfl.sweeps.pruners import Pruner
from simfl.sweeps.samplers import Sampler, Tpe
from simfl.sweeps.space import Domain, space_of

TEST = "test"  # first word of the names of splits that a search must not see unless the metric names them
LOWER_IS_BETTER = (LOSS, "deviation")  # ends of the names of scores that are minimized unless `direction` is given


@dataclass(frozen=True)
class Fork:
    """Start of every trial: the state of a run, instead of initial weights."""

    run: str  # folder of the run, relative to the sweep file
    at: PositiveInt  # rounds of it that are kept


@dataclass(frozen=True)
class Search:
    """A search for good settings, by Optuna."""

    space: Mapping[str, object]  # dotted path -> {KIND: values}; kinds: uniform, log_uniform, int, log_int, choice
    trials: PositiveInt  # runs, those that fail or are pruned included
    metric: str | None = None  # score to optimize; null: the main one of the first split that is not for testing
    direction: Literal["maximize", "minimize"] | None = None  # null: minimize losses and deviations
    sampler: Sampler = field(default_factory=Tpe)  # proposes settings
    pruner: Pruner | None = None  # ends trials with low scores between rounds; null: all trials complete
    seed: Seed = 0  # of the sampler's draws; the seed of the experiment is the same in all trials
    first: tuple[Mapping[str, object], ...] = ()  # settings of the first trials; what they omit is proposed
    fork: Fork | None = None  # state that every trial starts from; null: initial weights


@dataclass(frozen=True)
class Objective:
    """The score that a search optimizes."""

    name: str  # in summaries
    split: str = ""
    model: str = ""
    metric: str = ""  # empty: scores between rounds are unknown
    maximize: bool = True


@dataclass(frozen=True)
class SearchPlan:
    """A checked search, and the experiment that its trials change."""

    search: Search
    space: Mapping[str, Domain]
    objective: Objective
    given: Mapping[str, object]  # the experiment, with the settings of all trials
    examples: tuple[Experiment, ...]  # trials at the bounds of each setting
    name: str  # of the sweep

    @property
    def rounds(self) -> int:
        """The largest number of rounds of a trial."""
        return max(sum(phase.rounds for phase in one.phases) for one in self.examples)

    def point(self, label: str, settings: Settings) -> Point:
        """Return the trial with these settings.

        Raises:
            ConfigError: The experiment is invalid.
        """
        names = short_names(list(self.space))
        varied = {TRIAL: label, **{names[path]: _cell(settings[path]) for path in self.space}}
        return Point.of(label, varied, self.given, [settings], self.name)


def _cell(value: object) -> object:
    """Return a proposed value as a cell of a table; numbers that were drawn are rounded."""
    return float(f"{value:.4g}") if isinstance(value, float) else cell(value)


def trial_label(number: int) -> str:
    """Return the name of a trial."""
    return f"trial-{number:04d}"


def plan_of(path: Path, name: str, search: Search, given: Mapping[str, object]) -> SearchPlan:
    """Check a search against its experiment.

    Args:
        path: The sweep file.
        name: The name of the sweep.
        search: The section `search`.
        given: The experiment, with the settings of all trials.

    Raises:
        ConfigError: A setting of the space does not exist or a bound is refused, the score does not exist or is one of
            the test split by default, or the pruner has no scores between rounds.
    """
    space = space_of(search.space, "search.space")
    examples = tuple(_corners(path, name, space, given))
    objective = objective_of(search, examples[0])
    _check_pruner(search, objective, examples[0])
    _check_first(search, space)
    return SearchPlan(search, space, objective, given, examples, name)


def _corners(path: Path, name: str, space: Mapping[str, Domain], given: Mapping[str, object]) -> Iterator[Experiment]:
    """Yield experiments with the bounds and choices of each setting in turn, the others at their first value."""
    lowest = {key: domain.corners[0] for key, domain in space.items()}
    for key, domain in space.items():
        for value in domain.corners:
            try:
                yield Point.of("trial", {}, given, [{**lowest, key: value}], name).experiment
            except ConfigError as error:
                reason = str(error).removeprefix("--set ").splitlines()[0]
                raise ConfigError(f"{path}: search.space.{key}: with {shown(value)}: {reason}") from None


def objective_of(search: Search, experiment: Experiment) -> Objective:
    """Return the score to optimize.

    Raises:
        ConfigError: No run has it, or it is a score of the test split that `metric` does not name.
    """
    known = _scores(experiment)
    name = search.metric
    if name is None:
        chosen = _default_score(known, experiment)
    else:
        base, _, kind = name.partition(":")
        if kind and kind not in SPREAD:
            raise ConfigError(f"search.metric: unknown {kind!r} in {name!r}; {nearest(kind, SPREAD)}")
        if base not in known and experiment.phases[-1].objective.metrics:
            raise ConfigError(f"search.metric: no run will have a score {name!r}; {nearest(base, known)}")
        found = known.get(base, Objective(base))
        if _is_test(found.split) and not base.startswith(f"{found.split}."):
            full = f"{found.split}.{base}"
            raise ConfigError(
                f"search.metric: {name!r} is scored on {found.split}; name a validation score, or write {full!r}"
            )
        chosen = Objective(f"{found.name}:{kind}") if kind else found
    lower = chosen.name.rpartition(":")[2].rpartition(".")[2] in LOWER_IS_BETTER
    maximize = not lower if search.direction is None else search.direction == "maximize"
    return Objective(chosen.name, chosen.split, chosen.model, chosen.metric, maximize)


def _scores(experiment: Experiment) -> dict[str, Objective]:
    """Return the scores of a run, by their names in summaries and by full names such as `valid.anls`."""
    evaluate, held_out = experiment.evaluate, experiment.partition.holdout is not None
    objective = experiment.phases[-1].objective
    metrics = dict.fromkeys([objective.metric, *objective.metrics, *([LOSS] if evaluate.loss else [])])
    found: dict[str, Objective] = {}
    for split in dict.fromkeys([*evaluate.splits, *([HELD_OUT] if held_out else [])]):
        for model in evaluate.models:
            for metric in metrics:
                short = score_name(split, model, metric, evaluate.splits[0], held_out)
                score = Objective(short, split, model, metric)
                found.setdefault(short, score)
                found.setdefault(score_name(split, model, metric, ""), score)
    return found


def _default_score(known: Mapping[str, Objective], experiment: Experiment) -> Objective:
    metric, model = experiment.phases[-1].objective.metric, experiment.evaluate.models[0]
    for score in known.values():
        if not _is_test(score.split) and score.metric == metric and score.model == model:
            return score
    splits = ", ".join(experiment.evaluate.splits)
    raise ConfigError(
        f"search.metric: the experiment is scored on {splits} alone; add a validation split to evaluate.splits, or"
        f" write metric: {experiment.evaluate.splits[0]}.{metric}, which then is no test any more"
    )


def _is_test(split: str) -> bool:
    return split.startswith(TEST)


def _check_pruner(search: Search, objective: Objective, experiment: Experiment) -> None:
    if search.pruner is None:
        return
    headline, every = experiment.phases[-1].objective.metric, experiment.evaluate.every
    if objective.metric != headline:
        raise ConfigError(
            f"search.pruner: {objective.name} is known at the end of a run alone; allowed: metric: {headline} of a"
            " split, or pruner: null"
        )
    rounds = sum(phase.rounds for phase in experiment.phases)
    if not every or every >= rounds:
        raise ConfigError(
            f"search.pruner: no trial is scored between its rounds (evaluate.every: {every}, {rounds} rounds);"
            " set evaluate.every: 1, or pruner: null"
        )


def _check_first(search: Search, space: Mapping[str, Domain]) -> None:
    for i, settings in enumerate(search.first):
        for key, value in settings.items():
            if key not in space:
                raise ConfigError(f"search.first.{i}: {key!r} is not in the space; {nearest(key, space)}")
            if space[key].key_of(value) is None:
                raise ConfigError(f"search.first.{i}.{key}: {shown(value)} is not in the space")
    if len(search.first) > search.trials:
        raise ConfigError(f"search.first: {len(search.first)} trials given, but search.trials is {search.trials}")
