"""Membership inference from the final model: were the documents of a provider, or was a document, trained on?

The attacker has the final model and documents, and scores each unit (provider, document or example) by

    feature         mean of a feature over the unit's examples: negative loss, the task's metric, or confidence
    less initial    the same minus that of the model before the first round, which every client knows (Watson et al.
                    2022); this removes how hard a unit is
    less shadows    the same minus the mean over shadow runs that have not trained on the unit (Carlini et al. 2022,
                    offline); a unit that all of them have trained on is compared with the initial model

For documents, features are averaged over several wordings of each question (Nguyen et al. 2025, DocMIA). The main score
is the loss less shadows or, without shadow runs, less initial. The model before the first round is attacked too: its
success is a difference between the two sets of units and no membership.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from simfl.audit.scoring import REPHRASINGS, Features, Target
from simfl.audit.statistics import Roc, roc
from simfl.data.base import TRAIN, Split
from simfl.data.partition.base import column, columns_of, documents
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError, nearest
from simfl.runs.results import Run
from simfl.seeds import rng

UNITS = ("provider", "document")
PREFERRED = ("unseen", "test", "valid")  # splits of units that were not trained on, the first that exists
FEW = 2  # units, the least that can be ranked
MAX_EXAMPLES = 16  # of a unit


@dataclass(frozen=True)
class MembershipSettings:
    """Settings of a membership attack.

    Attributes:
        unit: `provider` (a group of the partition) or `document` (an example, where the data have no documents).
        members: Split whose units are members, if they were trained on; for providers it may be another one than
            `train`, with other documents of the same providers.
        others: Split of units that were not trained on; None: `train`, if the partition leaves units of it out, else
            the first of `unseen`, `test` and `valid`.
        shadows: Shadow runs.
        examples: Examples of a unit that are used, at most.
        limit: Units of each kind that are used, at most; None: all.
        seed: Seed of these choices.
        loss_only: Whether to leave out scores by metric and confidence, whose predictions take most of the time.
    """

    unit: str = "provider"
    members: str = TRAIN
    others: str | None = None
    shadows: Sequence[Run] = ()
    examples: int = MAX_EXAMPLES
    limit: int | None = None
    seed: int = 0
    loss_only: bool = False


@dataclass(frozen=True)
class Attack:
    """One way of scoring units, and its success."""

    name: str
    roc: Roc


@dataclass(frozen=True)
class MembershipResult:
    """The success of attacks on a run.

    Attributes:
        unit: `provider` or `document`.
        members: Split of members.
        others: Split of other units.
        attacks: Attacks on the final model.
        control: Attacks on the model before the first round, without membership.
        epsilon: Claimed epsilon for an observer of the final model; None if nothing is claimed for this unit.
        delta: Its delta.
    """

    unit: str
    members: str
    others: str
    attacks: tuple[Attack, ...]
    control: tuple[Attack, ...]
    epsilon: float | None = None
    delta: float | None = None

    @property
    def main(self) -> Attack:
        """The attack that decides, chosen before the data were seen."""
        name = next((one.name for one in self.attacks if one.name == "loss less shadows"), "loss less initial")
        return next(one for one in self.attacks if one.name == name)

    def allowed(self, false_positive_rate: float) -> float | None:
        """Return the largest rate of true positives that the claim allows; None if nothing is claimed."""
        if self.epsilon is None or self.delta is None:
            return None
        return min(1.0, math.exp(min(self.epsilon, 500.0)) * false_positive_rate + self.delta)


@dataclass(frozen=True)
class Units:
    """Units of one split.

    Attributes:
        split: Name of the split.
        names: Name of each unit.
        rows: Rows of the split of each unit, int64.
    """

    split: str
    names: list[str]
    rows: list[np.ndarray] = field(repr=False)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class UnitScores:
    """Scores of the units of an attack; a larger one speaks for membership.

    Attributes:
        members: The members.
        others: The other units.
        final: Scores by the final model, by their name: those of the members and of the others, float64.
        control: Scores by the model before the first round, likewise.
    """

    members: Units
    others: Units
    final: dict[str, tuple[np.ndarray, np.ndarray]]
    control: dict[str, tuple[np.ndarray, np.ndarray]]


def attack(
    run: Run, settings: MembershipSettings, report: Callable[[str], None] = lambda text: None
) -> MembershipResult:
    """Attack the final model of a run.

    Raises:
        ConfigError: The data have no such units or splits, or too few units.
        RunError: A run has no checkpoint, or a shadow run trains another model.
    """
    found = unit_scores(run, settings, report)
    attacks, control = (
        tuple(Attack(name, roc(*pair)) for name, pair in scores.items()) for scores in (found.final, found.control)
    )
    epsilon, delta = _claim(run, settings.unit)
    return MembershipResult(settings.unit, found.members.split, found.others.split, attacks, control, epsilon, delta)


def unit_scores(
    run: Run, settings: MembershipSettings, report: Callable[[str], None] = lambda text: None
) -> UnitScores:
    """Score members and other units by the final model of a run.

    Raises:
        ConfigError: The data have no such units or splits, or too few units.
        RunError: A run has no checkpoint, or a shadow run trains another model.
    """
    target = Target.of(run)
    members, others = units_of(target, settings)
    count = len(REPHRASINGS) if settings.unit == "document" and "question" in _columns(target, members) else 1
    report(f"scoring {len(members)} members and {len(others)} other units, {count} wording{'s' if count > 1 else ''}")
    kinds = (members, others)
    final = [unit_features(target, units, count, loss_only=settings.loss_only) for units in kinds]
    start = [unit_features(target, units, count, True, settings.loss_only) for units in kinds]
    scores = {name: (final[0][name], final[1][name]) for name in final[0]}
    scores |= {f"{name} less initial": _less(final, start, name) for name in final[0]}
    if settings.shadows:
        report(f"scoring {len(settings.shadows)} shadow runs")
        base = [
            _shadow_features(target, units, count, settings, first) for units, first in zip(kinds, start, strict=True)
        ]
        scores |= {f"{name} less shadows": _less(final, base, name) for name in final[0]}
    return UnitScores(members, others, scores, {name: (start[0][name], start[1][name]) for name in start[0]})


def unit_features(
    target: Target, units: Units, wordings: int, initial: bool = False, loss_only: bool = False
) -> Features:
    """Return the mean of each feature over the examples of each unit and over wordings, float64 [units]."""
    rows, owner = np.concatenate(units.rows), np.repeat(np.arange(len(units)), [len(one) for one in units.rows])
    found = [target.features(units.split, rows, initial, wording, loss_only) for wording in range(wordings)]
    counts = np.bincount(owner, minlength=len(units))
    return {
        name: np.bincount(owner, np.mean([one[name] for one in found], 0), len(units)) / counts for name in found[0]
    }


def units_of(target: Target, settings: MembershipSettings) -> tuple[Units, Units]:
    """Return the members and the other units.

    Raises:
        ConfigError: The data have no such units or splits, or too few units.
    """
    if settings.unit not in UNITS:
        raise ConfigError(f"--unit: unknown {settings.unit!r}; {nearest(settings.unit, UNITS)}")
    splits = target.run.context.dataset.splits
    others = settings.others or default_others(target.run, settings.unit)
    for option, name in (("--members", settings.members), ("--others", others)):
        if name not in splits:
            raise ConfigError(f"{option}: the data have no split {name!r}; {nearest(name, splits)}")
    if settings.unit == "provider":
        found = _providers(target, settings.members, others)
    else:
        if settings.members != TRAIN:
            raise ConfigError("--unit: document needs --members train")
        found = (_trained_documents(target.run), _other_documents(target.run, others))
    for units, what in zip(
        found, (f"members in {settings.members}", f"other {settings.unit}s in {others}"), strict=True
    ):
        if len(units) < FEW:
            raise ConfigError(f"--unit: {settings.unit}, but there are {len(units)} {what}; at least {FEW} are needed")
    chosen = (_chosen(units, settings) for units in found)
    return next(chosen), next(chosen)


def default_others(run: Run, unit: str) -> str:
    """Return the split of units that were not trained on.

    Units of the training split that the partition leaves out are the best ones: they are drawn like the members.
    """
    splits, partition = run.context.dataset.splits, run.partition
    if unit == "provider" and len(partition.group_names):
        codes, _ = column(splits[TRAIN], _group_column(run))
        left_out = len(np.unique(codes)) - len(np.unique(codes[partition.order]))
    else:
        left_out = len(_other_documents(run, TRAIN))
    if left_out >= FEW:
        return TRAIN
    return next((name for name in PREFERRED if name in splits), "")


def _providers(target: Target, members: str, others: str) -> tuple[Units, Units]:
    trained = set(target.run.partition.group_names.to_pylist())
    if not trained:
        raise ConfigError("--unit: provider, but the partition has no groups; allowed: document")
    inside, outside = (_by_column(target, split) for split in (members, others))
    kept = _kept(inside, [name in trained for name in inside.names])
    return (
        _trained_rows(target.run.partition) if members == TRAIN else kept,
        _kept(outside, [name not in trained for name in outside.names]),
    )


def _kept(units: Units, keep: Sequence[bool]) -> Units:
    return Units(units.split, list(compress(units.names, keep)), list(compress(units.rows, keep)))


def _trained_rows(partition: Partition) -> Units:
    rows: dict[str, list[np.ndarray]] = {}
    for client in range(len(partition)):
        for name, own in partition.groups(client):
            rows.setdefault(name, []).append(own)
    return Units(TRAIN, list(rows), [np.concatenate(parts) for parts in rows.values()])


def _by_column(target: Target, split: str) -> Units:
    """Return the units of a split by the column that names the groups of the partition."""
    data = target.split(split)
    codes, values = column(data, _group_column(target.run))
    return _grouped(split, np.arange(len(data)), codes, values.to_pylist())


def _group_column(run: Run) -> str:
    """Return the column that names the groups of the partition."""
    names = set(run.partition.group_names.to_pylist())
    for name in reversed(columns_of(run.experiment.partition)):
        if names <= set(column(run.context.split(TRAIN), name)[1].to_pylist()):
            return name
    raise ConfigError("--unit: provider, but no column of the data names the groups of the partition")


def _trained_documents(run: Run) -> Units:
    return _documents(run.context.split(TRAIN), TRAIN, run.partition.order)


def _other_documents(run: Run, split: str) -> Units:
    return _documents(run.context.split(split), split, other_rows(run, split))


def other_rows(run: Run, split: str) -> np.ndarray:
    """Return the rows of a split whose documents were not trained on, int64."""
    data = run.context.split(split)
    rows = np.arange(len(data))
    if split != TRAIN:
        return rows
    document = rows if data.documents is None else documents(data)
    return rows[~np.isin(document, document[run.partition.order])]


def _documents(data: Split, split: str, rows: np.ndarray) -> Units:
    """Return the documents of some rows of a split; each row as one, where the data have no documents."""
    if data.documents is None:
        return Units(split, [f"{split} {row}" for row in rows.tolist()], [np.array([row]) for row in rows.tolist()])
    codes, names = data.examples["document"].to_pylist(), data.documents["id"].to_pylist()
    return _grouped(split, rows, np.array(codes, np.int64)[rows], [str(name) for name in names])


def _grouped(split: str, rows: np.ndarray, codes: np.ndarray, names: list[str]) -> Units:
    present = np.unique(codes).tolist()
    return Units(split, [names[code] for code in present], [rows[codes == code] for code in present])


def _chosen(units: Units, settings: MembershipSettings) -> Units:
    """Return at most as many units, and examples of each, as are asked for."""
    generator = rng(settings.seed, "membership", units.split)
    limit = len(units) if settings.limit is None else min(settings.limit, len(units))
    which = np.sort(generator.choice(len(units), limit, replace=False)).tolist()
    rows = [units.rows[k] for k in which]
    few = [np.sort(generator.choice(own, min(len(own), settings.examples), replace=False)) for own in rows]
    return Units(units.split, [units.names[k] for k in which], few)


def _columns(target: Target, units: Units) -> list[str]:
    return target.split(units.split).examples.column_names


def _less(values: Sequence[Features], base: Sequence[Features], name: str) -> tuple[np.ndarray, np.ndarray]:
    return values[0][name] - base[0][name], values[1][name] - base[1][name]


def _shadow_features(
    target: Target, units: Units, wordings: int, settings: MembershipSettings, initial: Features
) -> Features:
    """Return the mean of each feature over the shadow runs that have not trained on a unit."""
    sums = {name: np.zeros(len(units)) for name in initial}
    counts = np.zeros(len(units))
    for shadow in settings.shadows:
        outside = np.array([name not in trained_names(shadow, settings.unit) for name in units.names])
        values = unit_features(target.with_weights_of(shadow), units, wordings, loss_only=settings.loss_only)
        counts += outside
        for name, own in values.items():
            sums[name] += np.where(outside, own, 0.0)
    return {name: np.where(counts > 0, sums[name] / np.maximum(counts, 1), initial[name]) for name in initial}


def trained_names(run: Run, unit: str) -> set[str]:
    """Return the names of the units that a run has trained on."""
    partition = run.partition
    if unit == "provider":
        return set(partition.group_names.to_pylist())
    return set(_trained_documents(run).names)


def _claim(run: Run, unit: str) -> tuple[float | None, float | None]:
    """Return epsilon and delta that the run claims of this unit for an observer of the models."""
    privacy = run.experiment.privacy
    covered = {"provider": "group", "document": "record"}
    if privacy is None or not privacy.adds_noise or privacy.unit != covered[unit]:
        return None, None
    spent = [row["epsilon_averages"] for row in run.rounds().to_pylist()]
    return (max(spent), privacy.delta) if spent else (None, None)
