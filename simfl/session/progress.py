"""Progress of a run: a trained round is scored, and then it counts (recorded, checkpointed and reported)."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from simfl.evaluation import headlines
from simfl.experiment import Evaluate
from simfl.plans.check import compare, tables_of
from simfl.runs.snapshot import Snapshot
from simfl.runs.waiting_rows import Rows
from simfl.session.evaluation import PendingEvaluation
from simfl.session.prepare import PreparedRun
from simfl.session.session import RunSession
from simfl.timing import Lap, timed
from simfl.virtual_time.instants import nanoseconds

UNSCORED = ("interrupted", "failed")  # a run with such a status drops a round that was trained and not yet scored


@dataclass
class TrainedRound:
    """A round that has been trained, and counts once it has been scored."""

    before: Snapshot  # the state of the run until then
    rows: Rows
    scoring: PendingEvaluation | None  # None: the round is not evaluated
    lap: Lap | None = None  # the round's time, where it ended before the round counts


@dataclass
class RunProgress:
    """The rounds that count, and the newest state, which can be one round ahead of them."""

    session: RunSession
    state: Snapshot  # the newest state: the next round starts from it
    trained: TrainedRound | None = None
    durations: list[float] = field(default_factory=list)  # seconds of each round that counts

    @property
    def counted_state(self) -> Snapshot:
        """The state after the last round that counts: the run ends with it if it ends now."""
        return self.state if self.trained is None else self.trained.before

    def score_initial(self) -> None:
        """Score the initial model, and write the first checkpoint."""
        rows = self._wait_for_scores(self._start_scoring(self.state))
        with self.session.signals.held():
            self.move(self.state, rows, checkpoint=True)
            self.session.callbacks.initial(rows)

    def add(self, after: Snapshot, rows: Rows) -> None:
        """Take a trained round. It counts once it has been scored, or at once where it is not evaluated.

        With `evaluate.overlap` the scores are awaited after the next round of the phase was trained. With
        `privacy.secure` they are not: a round that was paid for and is lost before it counts cannot be repeated.
        """
        experiment = self.session.prepared.experiment
        evaluate, rounds, privacy = experiment.evaluate, experiment.phases[after.phase].rounds, experiment.privacy
        overlap = evaluate.overlap and self.session.pool.overlaps and not (privacy is not None and privacy.secure)
        due = after.round == rounds or is_due(evaluate, self.state, after)
        scoring = self._start_scoring(after) if due else None
        self.count(newer=after)
        self.trained = TrainedRound(self.state, rows, scoring)
        self.state = after
        if scoring is not None and after.round < rounds and overlap:
            self.trained.lap = self.session.stopwatch.lap()
        else:
            self.count()

    def count(self, newer: Snapshot | None = None) -> None:
        """Wait for the scores of the trained round; record and report it, and write a checkpoint if one is due.

        `newer` is a state after it, whose client states stay on the disk.
        """
        if (trained := self.trained) is None:
            return
        rows = trained.rows if trained.scoring is None else {**trained.rows, **self._wait_for_scores(trained.scoring)}
        with self.session.signals.held():
            self.trained = None
            self.move(self.state, rows, self.session.record.checkpoint_due(self.state.step), newer)
            lap = trained.lap or self.session.stopwatch.lap()
            self.durations.append(lap.seconds)
            self.session.callbacks.round_done(rows, lap)

    def move(
        self, after: Snapshot, rows: Rows | None = None, checkpoint: bool = False, newer: Snapshot | None = None
    ) -> None:
        """Make `after` the state of the run, with these rows; `checkpoint` starts a checkpoint."""
        self.state = after
        self.session.record.add(rows or {}, after.step)
        if checkpoint:
            self.session.record.start_checkpoint(after, self.session.client_store, newer)
        else:
            self.session.record.settle(after, self.session.client_store, newer, wait=False)

    def finish(self, status: str) -> dict[str, Any]:
        """Write a checkpoint and the summary, report the end, and return the summary."""
        if status not in UNSCORED:
            self.count()
        session, state = self.session, self.counted_state
        session.signals.close()
        session.record.write_checkpoint(state, session.client_store)
        facts = self._summary(state, with_plan=status != "failed") | session.account.summary(state.charged)
        summary = session.record.finish(state, status, facts)
        session.callbacks.finished(summary)
        return summary

    def _summary(self, state: Snapshot, with_plan: bool) -> dict[str, Any]:
        """Return what the summary says besides status and privacy; `with_plan` compares the ledger with the plan."""
        prepared, record = self.session.prepared, self.session.record
        split = prepared.experiment.evaluate.splits[0]
        steps = {"initial": 0, "final": record.last_step("evaluations")}
        scores = {when: headlines.headlines(record.rows_at("evaluations", step), split) for when, step in steps.items()}
        over = {name: score.clients for name, score in scores["final"].items() if score.clients is not None}
        seconds = {
            "total": record.elapsed,
            "startup": self.session.startup_seconds,
            "per_round_median": median(self.durations) if self.durations else None,
        }
        return {
            "name": prepared.experiment.name,
            "metric": prepared.experiment.phases[-1].objective.metric,
            "clients": len(prepared.partition),
            **{when: {name: score.value for name, score in found.items()} for when, found in scores.items()},
            "scored_clients": over,
            "baselines": baselines(prepared),
            "seconds": seconds,
            "plan": self._compare_with_plan(state) if with_plan else None,
            "folder": record.location,
        }

    def _compare_with_plan(self, state: Snapshot) -> str:
        prepared, record = self.session.prepared, self.session.record
        forked = record.manifest.forked.step if record.manifest.forked is not None else 0
        tables = tables_of(record.parts, state.step, forked)
        return compare(prepared.run_context, len(prepared.partition), tables)

    def _start_scoring(self, state: Snapshot) -> PendingEvaluation:
        """Start to score a state; after the last round of the run the scores of each example are kept."""
        prepared = self.session.prepared
        phases = prepared.experiment.phases
        phase = phases[state.phase]
        last = state.phase + 1 == len(phases) and state.round == phase.rounds
        return PendingEvaluation(prepared, state, self.session.pool, phase.objective.metric, by_example=last)

    @timed("evaluate")
    def _wait_for_scores(self, scoring: PendingEvaluation) -> Rows:
        rows, scores, clocks = scoring.wait()
        self.session.callbacks.note(scoring.notes)
        self.session.stopwatch.count(clocks, training=False)
        self.session.callbacks.evaluated(scores)
        return rows


def baselines(prepared: PreparedRun) -> dict[str, float]:
    """Return the scores of the data set's blind baselines on the first evaluated split, by the headline metric."""
    experiment = prepared.experiment
    metric = experiment.phases[-1].objective.metric
    known: Any = prepared.run_context.dataset.card.get("baselines", {})
    found = known.get(experiment.evaluate.splits[0], known)
    return {name: scores[metric] for name, scores in found.items() if metric in scores}


def is_due(evaluate: Evaluate, before: Snapshot, after: Snapshot) -> bool:
    """Return whether a round that is not the last of its phase is evaluated: by its number or by virtual time."""
    if evaluate.every > 0 and after.round % evaluate.every == 0:
        return True
    if evaluate.virtual_seconds is None:
        return False
    interval = int(nanoseconds(evaluate.virtual_seconds))
    return before.clock // interval < after.clock // interval
