"""Audit of a privacy mechanism with canaries in one run: lower bounds on epsilon, compared with the claim.

The rounds of a run are made again with canaries (`simfl.audit.canaries`). In each view the attacker computes the inner
product of what it sees with the direction of each canary, and guesses the coins.

    one-run bound   Steinke, Nasr and Jagielski (2023): holds for every mechanism and needs no assumption, but reaches
                    only a part of epsilon.
    Gaussian bound  Each participation of a canary is one test of the noise: half a canary's contribution is the
                    threshold, and Clopper-Pearson limits of both error rates give a lower limit of mu (Nasr et al.
                    2023, Gaussian differential privacy). The epsilon of the audited rounds with so little noise is the
                    bound, by the run's accounting, which also has the sampling. Where every canary takes part in every
                    round, it is at least the exact epsilon of as many Gaussians, whatever the accounting says. The
                    noise is assumed to be Gaussian and independent over canaries and rounds.
    estimate        The same from mean and deviation of the inner products, without confidence (Andrew et al. 2024).

All bounds of an audit hold together with its confidence (by default 95 %): each has an equal part of the rest.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from simfl.aggregation.round import RoundAggregator
from simfl.audit.canaries import Canaries, CanaryMechanism, DirectionCanaries, with_canaries
from simfl.audit.documents import DocumentCanaries, WithDocuments, with_documents
from simfl.audit.scoring import context_on_device
from simfl.audit.statistics import CONFIDENCE, auc, gaussian_epsilon, gaussian_mu, one_run_epsilon
from simfl.audit.view import refuse_single_uploads
from simfl.autotune.tuner import execution_mode_of
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError
from simfl.experiment import Experiment, Privacy
from simfl.privacy.budget import Budget
from simfl.privacy.mechanism import Mechanism
from simfl.privacy.randomness import Randomness
from simfl.privacy.units import MARGIN
from simfl.protocol import Parts
from simfl.rounds import RoundPlan, apply_round, plan_round
from simfl.runs.record import Record
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.sampling import expected_clients
from simfl.session.prepare import account_of
from simfl.training.executor import Executor, Observer

MAX_CANARIES = 1000
SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of the canaries that are guessed; the bound is corrected for their number
VIEWS = ("averages", "messages", "model")
ROUNDING = 1e-6  # relative error of a claim


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit with canaries.

    Attributes:
        canaries: Number of canaries; None: one per participation of a canary, at most 1,000.
        rounds: Rounds of the first phase; None: all.
        width: Coordinates of a canary's direction; 1 is a Dirac canary.
        seed: Seed of coins and directions, and of the noise if `fixed_noise`.
        fixed_noise: Whether the noise follows from the seed, for tests.
        points: Number of rounds after which bounds are computed, at most; the last audited round is one of them.
        documents: Whether canaries are crafted documents that are trained on, instead of directions.
        confidence: Probability with which no bound of an audit is above epsilon. Bounds after fewer rounds (`points`)
            have the confidence of those after all rounds.
    """

    canaries: int | None = None
    rounds: int | None = None
    width: int = 1
    seed: int = 0
    fixed_noise: bool = False
    points: int = 1
    documents: bool = False
    confidence: float = CONFIDENCE


@dataclass(frozen=True)
class ViewAudit:
    """The audit of one view.

    Attributes:
        view: `averages`, `messages` or `model`.
        claim: Epsilon of the audited rounds, by the accounting; infinity if nothing is claimed.
        one_run: One-run bound on epsilon.
        gaussian: Gaussian bound on epsilon; None where the view shows no single participation.
        estimate: Estimate of epsilon without confidence; None likewise.
        noise: Measured noise multiplier of a participation, as a share of the one that is accounted for; None likewise.
        samples: Participations of canaries, included or not.
        auc: Area under the ROC curve of the coins, by the scores of all rounds.
        detectable: The smallest true epsilon, as a multiple of the claim, that the Gaussian bound shows half of the
            time to exceed the claim; None where none does.
    """

    view: str
    claim: float
    one_run: float
    gaussian: float | None
    estimate: float | None
    noise: float | None
    samples: int
    auc: float
    detectable: float | None

    @property
    def bound(self) -> float:
        """The larger one of both bounds."""
        return max(self.one_run, self.gaussian or 0.0)

    @property
    def holds(self) -> bool:
        """True if no bound exceeds the claim."""
        return self.bound <= self.claim * (1 + ROUNDING)


@dataclass(frozen=True)
class RoundBound:
    """The larger bound of a view after some rounds, and their claim.

    Attributes:
        round: Number of audited rounds.
        view: `averages`, `messages` or `model`.
        claim: Epsilon of these rounds, by the accounting.
        bound: The larger one of both bounds.
    """

    round: int
    view: str
    claim: float
    bound: float


@dataclass(frozen=True)
class CanaryAudit:
    """The audit of a run's mechanism.

    Attributes:
        canaries: Number of canaries.
        included: Those whose coin included them.
        rounds: Audited rounds.
        delta: The delta of claims and bounds.
        noise_multiplier: The noise multiplier of the run.
        views: The audit of each view.
        by_round: Bounds and claims after several numbers of rounds, the last of which is that of `views`.
        confidence: Probability with which no bound is above epsilon.
    """

    canaries: int
    included: int
    rounds: int
    delta: float
    noise_multiplier: float
    views: tuple[ViewAudit, ...]
    by_round: tuple[RoundBound, ...] = ()
    confidence: float = CONFIDENCE

    @property
    def holds(self) -> bool:
        """True if no bound exceeds its claim."""
        return all(view.holds for view in self.views)


def audit(
    run: Run, settings: AuditSettings | None = None, report: Callable[[str], None] = lambda _: None
) -> CanaryAudit:
    """Audit the mechanism of a run with canaries.

    Raises:
        ConfigError: The run adds no noise, its units are records, or a setting does not fit.
    """
    settings = settings or AuditSettings()
    audited = AuditedRounds(run, settings)
    with tempfile.TemporaryDirectory(prefix="simfl-audit-") as scratch:
        scores = audited.scores(Path(scratch), report)
    claimed = [view for view in VIEWS if math.isfinite(audited.claim(view, audited.rounds))]
    views = tuple(_audit_view(audited, scores[audited.rounds], view, audited.rounds) for view in claimed)
    by_round = [
        RoundBound(number, view, audited.claim(view, number), _bound(audited, own, view, number))
        for number, own in scores.items()
        for view in claimed
        if number < audited.rounds
    ] + [RoundBound(audited.rounds, view.view, view.claim, view.bound) for view in views]
    canaries = audited.canaries
    return CanaryAudit(
        len(canaries),
        int(canaries.included.sum()),
        audited.rounds,
        audited.privacy.delta,
        audited.budget.noise_multiplier,
        views,
        tuple(by_round),
        settings.confidence,
    )


@dataclass(frozen=True)
class Scores:
    """Inner products of what was seen with the directions of canaries, in units of a canary's contribution.

    Attributes:
        single: View -> inner products of single participations, and whether the coin included the canary, [n].
        total: View -> sum over the audited rounds for each canary, less the median, [m].
    """

    single: Mapping[str, tuple[np.ndarray, np.ndarray]]
    total: Mapping[str, np.ndarray]


class AuditedRounds:
    """The first phase of a run, with canaries."""

    def __init__(self, run: Run, settings: AuditSettings) -> None:
        """Read the run and draw the canaries.

        Raises:
            ConfigError: The run adds no noise, its units are records, or a setting does not fit.
        """
        experiment = run.experiment
        refuse_single_uploads(experiment, "canaries")
        self.privacy = _checked(experiment.privacy)
        if not 0 < settings.confidence < 1:
            raise ConfigError(f"--confidence: {settings.confidence:g} given; allowed: above 0 and below 1")
        self.confidence = settings.confidence
        self.context, self.seed = context_on_device(experiment), settings.seed
        phase, real = experiment.phases[0], run.partition
        self.rounds = phase.rounds if settings.rounds is None else settings.rounds
        if not 1 <= self.rounds <= phase.rounds:
            raise ConfigError(f"--rounds: {self.rounds} given; the first phase has rounds 1 to {phase.rounds}")
        self.points = {int(number) for number in np.geomspace(self.rounds, 1, settings.points).round()}
        sigma = account_of(experiment, real).noise_multiplier
        fixed = replace(self.privacy, noise_multiplier=sigma, epsilon=None)
        self.experiment = replace(experiment, privacy=fixed)
        groups = self.context.parameter_groups(0)
        own = dict(self.context.module.named_parameters())
        tensors = {name: own[name].numel() for name in groups.shared}
        number = _num_canaries(self.experiment, real, self.rounds, tensors, settings)
        self.canaries: Canaries
        if settings.documents:
            self._draw_documents(real, number)
        else:
            unit = self.privacy.unit
            self.canaries = DirectionCanaries.draw(real, unit, number, tensors, settings.width, settings.seed)
            self.partition = with_canaries(real, self.canaries, unit)
        self.budget = Budget.of(self.experiment, self.partition)
        self.randomness = _randomness(self.privacy, settings)
        self.manifest = run.manifest

    def _draw_documents(self, real: Partition, number: int) -> None:
        """Draw crafted documents, and add them to the data.

        Raises:
            ConfigError: The units are not groups, or the data have no questions about pages.
        """
        if self.privacy.unit != "group":
            raise ConfigError(f"--documents: privacy.unit is {self.privacy.unit}; allowed: group")
        self.experiment = replace(self.experiment, data=WithDocuments(self.experiment.data, number, self.seed))
        self.context = context_on_device(self.experiment)
        documents = DocumentCanaries.draw(real, number, self.context, self.seed)
        self.canaries, self.partition = documents, with_documents(real, documents)

    def claim(self, view: str, rounds: int, sigma: float | None = None) -> float:
        """Return epsilon of the first rounds in a view, by the accounting, with the run's noise or another one."""
        kind = "messages" if view == "messages" else "averages"
        budget = self.budget if sigma is None else Budget(self.budget.scheme, sigma)
        return budget.epsilon({0: rounds}, kind)

    def multiplier(self, view: str) -> float:
        """Return the noise multiplier of one participation that is accounted for; 0 without noise."""
        sigma = self.budget.noise_multiplier
        name = "message_multiplier" if view == "messages" else "average_multiplier"
        mechanism = Mechanism(self.privacy, sigma, self.randomness)
        return self.budget.scheme.multipliers(sigma)[name] * mechanism.update_multiplier / sigma

    def tests_participations(self, view: str) -> bool:
        """Return whether single participations are tests of Gaussian noise in a view."""
        return view != "model" and self.canaries.has_known_updates and self.multiplier(view) > 0

    @property
    def level(self) -> float:
        """The confidence of one bound, so that all bounds of the audit hold together."""
        claimed = [view for view in VIEWS if math.isfinite(self.claim(view, self.rounds))]
        number = sum(1 + self.tests_participations(view) for view in claimed)
        return 1 - (1 - self.confidence) / max(1, number)

    def scores(self, scratch: Path, report: Callable[[str], None]) -> dict[int, Scores]:
        """Make the rounds and return the scores of all canaries, after each number of rounds in `points`."""
        executor, worker, mechanism = self._executor(scratch)
        context, server = executor.context, _Server(self.canaries)
        worker.executors[0] = replace(executor, observer=server)
        state = first = Snapshot().enter_phase(context)
        mode = execution_mode_of(self.experiment, Record(scratch, self.experiment.checkpoint, self.manifest), 0, 0)
        collected, found = _Collected(self.canaries, self.privacy, self.partition), dict[int, Scores]()
        for number in range(self.rounds):
            plan = plan_round(context, self.partition, state)
            which, clip = mechanism.start_round(plan.client_plans), mechanism.clip_of(plan.received)
            assert clip is not None
            self.canaries.start(plan.received["weights"])
            results = RoundAggregator(context.phase.algorithm.reduce, context.num_clients)
            for cohort in plan.cohorts(context, mode):
                results.take(worker.train(cohort, plan.received))
            state, _ = apply_round(context, plan, results)
            expected = expected_clients(context.phase, self.privacy.min_clients or context.num_clients)
            collected.add(mechanism, plan, which, server.products, clip * MARGIN, expected)
            server.products = {}
            report(f"audited round {number + 1} of {self.rounds}: {len(which)} canaries were sampled")
            if number + 1 in self.points:
                collected.totals["model"] = self.canaries.final_scores(first.server.weights, state.server.weights)
                found[number + 1] = collected.result()
        return found

    def _executor(self, scratch: Path) -> tuple[Executor, Worker, CanaryMechanism]:
        config = WorkerConfig(
            self.experiment,
            self.context.cache,
            scratch,
            len(self.partition),
            self.context.device.type,
            noise_multiplier=self.budget.noise_multiplier,
            randomness=self.randomness,
        )
        worker = Worker(config, self.context, home=self.context.device)
        worker.begin(0, {})
        executor = worker.executors[0]
        assert executor.context.mechanism is not None
        mechanism = CanaryMechanism.of(executor.context.mechanism, self.canaries)
        return replace(executor, context=replace(executor.context, mechanism=mechanism)), worker, mechanism


class _Server(Observer):
    """An observer that scores the canaries of each client on its decoded upload, and keeps no upload."""

    def __init__(self, canaries: Canaries) -> None:
        self.canaries = canaries
        self.products: dict[int, np.ndarray] = {}

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        """Keep the inner products of a decoded upload with the directions of the client's canaries."""
        if len(here := self.canaries.of(client)):
            self.products[client] = self.canaries.scores(arrived["weights"], here)


class _Collected:
    """Scores of the rounds so far."""

    def __init__(self, canaries: Canaries, privacy: Privacy, partition: Partition) -> None:
        self.canaries, self.privacy, self.num_groups = canaries, privacy, partition.num_groups
        # only then does the accounting of averages rest on a secret sample of clients
        self.hides_clients = privacy.unit == "client" and privacy.noise == "central"
        self.single: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"averages": [], "messages": []}
        self.totals = {view: np.zeros(len(canaries)) for view in VIEWS}
        self.middle = np.zeros(len(canaries))  # half of each canary's contributions in rounds of its client

    def add(
        self,
        mechanism: CanaryMechanism,
        plan: RoundPlan,
        which: np.ndarray,
        messages: Mapping[int, np.ndarray],
        clip: float,
        expected: float,
    ) -> None:
        """Add a round.

        Args:
            mechanism: The mechanism, with the average that it released.
            plan: The round.
            which: The canaries that took part, included or not.
            messages: Inner products of each client's decoded upload with the directions of its canaries.
            clip: Norm of a canary's clipped update.
            expected: Expected number of clients of a round.
        """
        canaries, sizes = self.canaries, {p.client: len(p.units) for p in plan.client_plans}
        divisors = {client: mechanism.divisor(size) for client, size in sizes.items()}
        owners = canaries.owners.tolist()
        shares = np.array([clip / divisors.get(owner, 1.0) for owner in owners])
        clients = float(max(1, len(sizes))) if self.privacy.denominator == "realised" else expected
        average = canaries.scores(mechanism.record.average) / (shares / clients)
        self.totals["averages"] += np.array([owner in sizes or self.hides_clients for owner in owners]) * average
        self.single["averages"].append((average[which], canaries.included[which]))
        for client, products in messages.items():
            here, score = canaries.of(client), np.zeros(len(canaries))
            score[here] = products / shares[here]
            self.totals["messages"] += score
            taking_part = np.intersect1d(here, which)
            self.single["messages"].append((score[taking_part], canaries.included[taking_part]))
        if not self.hides_clients:
            self.middle += [self.rate(owner) / 2 if owner in sizes else 0.0 for owner in owners]

    def rate(self, client: int) -> float:
        """Return the public probability with which a canary of a sampled client takes part."""
        if self.privacy.unit == "client":
            return 1.0
        count = self.privacy.groups_per_client
        sampled = 1.0 if count is None else min(1.0, count / max(1, self.num_groups[client]))
        return sampled if self.privacy.group_rate is None else self.privacy.group_rate

    def result(self) -> Scores:
        """Return all scores."""
        empty = (np.zeros(0), np.zeros(0, bool))
        joined = {
            view: tuple(np.concatenate(columns) for columns in zip(*(parts or [empty]), strict=True))
            for view, parts in self.single.items()
        }
        single = {view: (scores, included) for view, (scores, included) in joined.items()}
        totals = {view: total - self.middle for view, total in self.totals.items()}
        return Scores(single, {view: _centred(total) for view, total in totals.items()})


def _centred(scores: np.ndarray) -> np.ndarray:
    centred: np.ndarray = scores - np.median(scores)
    return centred


def _audit_view(audited: AuditedRounds, scores: Scores, view: str, rounds: int) -> ViewAudit:
    claim, delta = audited.claim(view, rounds), audited.privacy.delta
    one_run = guess_coins(scores.total[view], audited.canaries.included, delta, audited.level)
    multiplier, sigma = audited.multiplier(view), audited.budget.noise_multiplier
    coins = audited.canaries.included
    area = auc(scores.total[view][coins], scores.total[view][~coins]) if 0 < coins.sum() < len(coins) else math.nan
    if not audited.tests_participations(view):
        return ViewAudit(view, claim, one_run, None, None, None, 0, area, None)
    products, included = scores.single[view]
    mu, middle = participation_mu(products, included, audited.level)
    noise = 1 / (middle * multiplier) if middle > 0 else math.inf
    factor = smallest_error(1 / multiplier, int(included.sum()), int((~included).sum()), audited.level)
    detectable = None if factor is None else audited.claim(view, rounds, sigma / factor) / claim
    gaussian, estimate = (_epsilon_of(audited, scores, view, rounds, one) for one in (mu, middle))
    return ViewAudit(view, claim, one_run, gaussian, estimate, noise, len(included), area, detectable)


def _bound(audited: AuditedRounds, scores: Scores, view: str, rounds: int) -> float:
    """Return the larger bound of a view after some rounds."""
    one_run = guess_coins(scores.total[view], audited.canaries.included, audited.privacy.delta, audited.level)
    if not audited.tests_participations(view):
        return one_run
    mu, _ = participation_mu(*scores.single[view], audited.level)
    return max(one_run, _epsilon_of(audited, scores, view, rounds, mu))


def _epsilon_of(audited: AuditedRounds, scores: Scores, view: str, rounds: int, mu: float) -> float:
    """Return epsilon of some rounds whose participations are mu-GDP."""
    multiplier, sigma = audited.multiplier(view), audited.budget.noise_multiplier
    by_accounting = 0.0 if mu <= 0 else audited.claim(view, rounds, sigma / (mu * multiplier))
    is_sampled = len(scores.single[view][1]) < len(audited.canaries) * rounds
    exact = 0.0 if is_sampled else gaussian_epsilon(mu * math.sqrt(rounds), audited.privacy.delta)
    return max(by_accounting, exact)


def guess_coins(scores: np.ndarray, included: np.ndarray, delta: float, confidence: float = CONFIDENCE) -> float:
    """Return the one-run bound on epsilon from scores that are centred at 0, the best over several numbers of guesses.

    Half of the guesses are the canaries with the largest scores, half those with the smallest ones.

    Args:
        scores: Score of each canary, float64 [m].
        included: Its coin, bool [m].
        delta: The delta.
        confidence: Confidence of the bound.
    """
    m, order, best = len(scores), np.argsort(scores, kind="stable"), 0.0
    level = 1 - (1 - confidence) / len(SHARES)
    for half in dict.fromkeys(max(1, round(m * share / 2)) for share in SHARES):
        half = min(half, m // 2)
        correct = int((~included[order[:half]]).sum() + included[order[m - half :]].sum())
        best = max(best, one_run_epsilon(m, 2 * half, correct, delta, level)) if half else best
    return best


def participation_mu(products: np.ndarray, included: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return a lower bound on mu of one participation, and its estimate.

    Args:
        products: Inner products in units of a canary's contribution, float64 [n].
        included: Whether the canary was included, bool [n].
        confidence: Confidence of the bound.
    """
    with_canary, without = products[included], products[~included]
    if len(with_canary) < 2 or len(without) < 2:
        return 0.0, 0.0
    false_positives, false_negatives = int((without > 0.5).sum()), int((with_canary <= 0.5).sum())
    bound = gaussian_mu(false_positives, len(without), false_negatives, len(with_canary), confidence)
    deviation = math.sqrt((with_canary.var(ddof=1) + without.var(ddof=1)) / 2)
    return bound, float(with_canary.mean() - without.mean()) / max(deviation, 1e-12)


def smallest_error(mu: float, positives: int, negatives: int, confidence: float = CONFIDENCE) -> float | None:
    """Return the smallest factor by which noise may be too low so that the bound on mu typically shows it.

    Args:
        mu: The mu that is accounted for.
        positives: Participations of included canaries.
        negatives: Participations of other canaries.
        confidence: Confidence of the bound.

    Returns:
        The factor, at most 100; None if no such error is found.
    """

    def shows(factor: float) -> bool:
        error = float(ndtr(-mu * factor / 2))
        errors = round(error * negatives), negatives, round(error * positives), positives
        return gaussian_mu(*errors, confidence) > mu

    return next((float(factor) for factor in np.geomspace(1, 100, 200) if shows(float(factor))), None)


def _checked(privacy: Privacy | None) -> Privacy:
    if privacy is None or not privacy.adds_noise:
        raise ConfigError("privacy: the run adds no noise, so it claims no epsilon to audit")
    if privacy.unit == "record":
        raise ConfigError("privacy.unit: record, which canaries do not support; allowed: group, client")
    if privacy.deployment is not None:
        raise ConfigError("privacy.deployment: its epsilon is not that of the run, so there is nothing to audit")
    if privacy.factorization is not None:
        raise ConfigError("privacy.factorization: canaries do not support correlated noise; see simfl check-privacy")
    return privacy


def _num_canaries(
    experiment: Experiment, partition: Partition, rounds: int, tensors: Mapping[str, int], settings: AuditSettings
) -> int:
    """Return the number of canaries; one more than take part would rarely be sampled."""
    privacy, phase = experiment.privacy, experiment.phases[0]
    assert privacy is not None
    values = sum(tensors.values())
    if settings.width < 1:
        raise ConfigError(f"--width: {settings.width} given; allowed: 1 or more")
    most = values // settings.width
    if settings.canaries is not None:
        if not 2 <= settings.canaries <= most:
            raise ConfigError(
                f"--canaries: {settings.canaries} given; allowed: 2 to {most}, for {values} trained values"
            )
        return settings.canaries
    clients = expected_clients(phase, len(partition))
    slots = privacy.groups_per_client if privacy.unit == "group" and privacy.group_rate is None else None
    by_sampling = MAX_CANARIES
    if slots is not None:
        by_sampling = int(clients * slots * rounds)
    elif privacy.unit == "client" and phase.clients_per_round is not None:
        by_sampling = phase.clients_per_round * rounds
    return max(2, min(MAX_CANARIES, by_sampling, most))


def _randomness(privacy: Privacy, settings: AuditSettings) -> Randomness:
    if settings.fixed_noise:
        return Randomness.from_seed(settings.seed, {"audit": True})
    return Randomness.from_system() if privacy.secure else Randomness.fresh()
