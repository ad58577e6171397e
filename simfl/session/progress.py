"""How far a run has come: rounds that were trained are scored, and then they count: recorded, committed, told."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from simfl.runs.record import Rows
from simfl.runs.snapshot import Snapshot
from simfl.session.scoring import PendingEvaluation
from simfl.session.session import RunSession
from simfl.timing import Lap, timed


@dataclass
class TrainedRound:
    """A round that has been trained, and counts when it has been scored."""

    before: Snapshot  # where the run stands until then
    rows: Rows
    scoring: PendingEvaluation | None  # none: it is not to be scored
    lap: Lap | None = None  # its time, where that ended before it counts


@dataclass
class RunProgress:
    """What counts, and the newest state, which may be ahead of it by the one round that is being scored."""

    sitting: RunSession
    snapshot: Snapshot  # the newest state: the next round goes out from it
    trained: TrainedRound | None = None
    durations: list[float] = field(default_factory=list)  # seconds of each round that counts

    @property
    def stands(self) -> Snapshot:
        """The state after all that counts: what the run ends with if it ends now."""
        return self.snapshot if self.trained is None else self.trained.before

    @property
    def pace(self) -> float | None:
        """Seconds of a round, in the median."""
        return median(self.durations) if self.durations else None

    def begin(self) -> None:
        """Score what the run starts from."""
        rows = self._scores(self._scoring(self.snapshot))
        with self.sitting.signals.held():
            self.move(self.snapshot, rows, commit=True)
            self.sitting.audience.initial(rows)

    def add(self, after: Snapshot, rows: Rows) -> None:
        """A round has been trained. It counts when it has been scored, if it is time for that, and at once if not.

        With `evaluate.overlap` its scores are waited for when the next round has been trained, if the phase has one;
        not where chance is secret: a round that was paid for and is lost before it counts cannot be made again.
        """
        experiment = self.sitting.settled.experiment
        asked, rounds, privacy = experiment.evaluate, experiment.phases[after.phase].rounds, experiment.privacy
        overlap = asked.overlap and self.sitting.pool.overlaps and not (privacy is not None and privacy.secure)
        due = after.round == rounds or (asked.every > 0 and after.round % asked.every == 0)
        scoring = self._scoring(after) if due else None
        self.count(newer=after)
        self.trained = TrainedRound(self.snapshot, rows, scoring)
        self.snapshot = after
        if scoring is not None and after.round < rounds and overlap:
            self.trained.lap = self.sitting.stopwatch.lap()
        else:
            self.count()

    def count(self, newer: Snapshot | None = None) -> None:
        """Wait for the scores of what was trained, which counts from now on.

        A commit is made if one is due; `newer`: a state after it, whose client memory is to stay on the disk.
        """
        if (one := self.trained) is None:
            return
        rows = one.rows if one.scoring is None else {**one.rows, **self._scores(one.scoring)}
        with self.sitting.signals.held():
            self.trained = None
            self.move(self.snapshot, rows, self.sitting.record.due(self.snapshot.step), newer)
            lap = one.lap or self.sitting.stopwatch.lap()
            self.durations.append(lap.seconds)
            self.sitting.audience.round_done(rows, lap)

    def move(
        self, after: Snapshot, rows: Rows | None = None, commit: bool = False, newer: Snapshot | None = None
    ) -> None:
        """The run stands here, with these rows."""
        self.snapshot = after
        self.sitting.record.add(rows or {})
        if commit:
            self.sitting.record.commit(after, self.sitting.store, newer)

    def _scoring(self, snapshot: Snapshot) -> PendingEvaluation:
        """Begin to score a state; at the very end each example's scores are kept."""
        phases, phase = self.sitting.settled.experiment.phases, self.sitting.settled.experiment.phases[snapshot.phase]
        last = snapshot.phase + 1 == len(phases) and snapshot.round == phase.rounds
        return PendingEvaluation(
            self.sitting.settled, snapshot, self.sitting.pool, phase.objective.metric, by_example=last
        )

    @timed("evaluate")
    def _scores(self, scoring: PendingEvaluation) -> Rows:
        """Wait for scores, and tell them."""
        rows, headlines, clocks = scoring.wait()
        self.sitting.stopwatch.count(clocks, training=False)
        self.sitting.audience.evaluated(headlines)
        return rows
