"""How the visits of a phase are trained, where the experiment leaves it open: by what a worker found when it tried.

It is chosen once a phase, before its first round, kept in the manifest, and the same for every worker and sitting.
Without a GPU, and under `exactness: strict`, rules choose (`preflight.identity_of`): a clock would not choose twice the
same, and bits follow from the choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from simfl.cohort.broadcast import Sent
from simfl.cohort.plan import Manner, VisitPlan
from simfl.cohort.probe import Question
from simfl.cohort.stage import Stage
from simfl.cohort.tensor_stepper import steppable
from simfl.cohort.trial import Trial
from simfl.engine.chosen import FAILED, RULES, Facts, kept, trial_of
from simfl.engine.inline import Pool
from simfl.engine.recalled import Recalled
from simfl.errors import SimflError
from simfl.experiment import Experiment
from simfl.protocol import Parts
from simfl.runs.record import Record
from simfl.runs.snapshot import Snapshot
from simfl.sampling import auto_width, expected_clients

FIRM = 0.9  # of the time in the manner of the rules: another has to take less, so that noise moves nothing
EXACT, ROUNDED = 0.02, 0.2  # how far from `loop` a client may end, in float32, and where products are rounded further

Outgoing = Callable[[Stage, Snapshot], tuple[Sequence[VisitPlan], Sent]]  # the next round's visits, and what they get


def manner_of(experiment: Experiment, record: Record, phase: int, step: int) -> Manner:
    """How visits of a phase are trained in the round after so many, as the run's folder says."""
    found = {"way": record.manifest["identity"]["way"], "program": experiment.cohort.program, **record.choice(phase)}
    return Manner(found["way"], record.width(step), found["program"])


@dataclass(frozen=True)
class Choice:
    """What is to be chosen for a phase, as it begins."""

    experiment: Experiment
    record: Record
    stage: Stage
    before: Snapshot
    pool: Pool

    def made(self, outgoing: Outgoing, cache: Path, say: Callable[[str], None]) -> Facts:
        """The manner, why it was chosen, and every trial, from now on in the record; empty where it all stands there.

        What an earlier run like this one found is taken from the cache; if one is about to find it, it is waited for.
        """
        begun = self.before.round > 0 and self.record.manifest.get("forked", {}).get("step") != self.before.step
        if not self._tries or begun or self.record.choice(self.stage.index):
            return {}
        why, tried = self.by_rules(), Facts()
        if not why:
            visits, (received, _, _) = outgoing(self.stage, self.before)
            why, tried = self._tried(visits, received, cache, say)
        if tried:
            manner, why = self.best([trial_of(facts) for facts in tried["trials"]])
        else:
            manner, why = self.rule, f"{RULES}{why}"
        found = {**asdict(manner), "why": why, **tried}
        self.record.choose(self.stage.index, self.before.step, found)
        return found

    @property
    def _tries(self) -> bool:
        """Whether manners are tried in this run."""
        asked, gpu = self.experiment.cohort.probe, self.identity["device"] == "cuda"
        return asked == "always" or (asked == "auto" and gpu and self.experiment.exactness == "fast")

    @property
    def identity(self) -> Facts:
        """Of the run, which holds what the rules say."""
        found: Facts = self.record.manifest["identity"]
        return found

    def _tried(
        self, visits: Sequence[VisitPlan], received: Parts, cache: Path, say: Callable[[str], None]
    ) -> tuple[str, Facts]:
        """What was found, now or by an earlier run; or why nothing was."""
        local = self.stage.phase.local
        ordered = sorted(visits, key=lambda visit: (visit.num_steps(local), visit.client))
        if not any(visit.num_steps(local) for visit in ordered):
            return "nobody trains in the first round", {}
        known = Recalled.of(
            self.experiment,
            self.stage.index,
            self.record.manifest["data_sha256"],
            self.pool.num_workers,
            self.pool.kind,
            cache,
        )
        with known.turn(lambda: say("how clients are best trained is being tried by another run, which is waited for")):
            found = known.read() if self.experiment.cohort.probe == "auto" else None
            if found is not None:
                return "", {**found, "recalled": True}
            return self._found(ordered, received, known)

    def _found(self, ordered: Sequence[VisitPlan], received: Parts, known: Recalled) -> tuple[str, Facts]:
        """What a worker finds now, kept for later runs; or why it finds nothing."""
        try:
            answer = self.pool.probe(self._question(ordered), received)
        except SimflError as error:  # of the worker, not of a manner: the run does without, and says why
            return f"{FAILED} ({str(error).splitlines()[0].partition('; ')[0]})", {}
        if answer.trials[0].why:
            return f"one client alone could not be tried ({answer.trials[0].why})", {}
        trials = [kept(trial) for trial in answer.trials]
        seconds = {"seconds": round(answer.seconds, 3), "loading": round(answer.loading, 3)}
        where = {"when": time.time(), "kind": answer.kind, "kinds": self.pool.kind, "others": answer.others}
        found = {"steps": answer.steps, **seconds, **where, "trials": trials}
        known.write(found)
        return "", {**found, "recalled": False}

    def by_rules(self) -> str:
        """Why nothing is tried; empty where something is."""
        cohort, stage = self.experiment.cohort, self.stage
        privacy = self.experiment.privacy
        if cohort.way == "loop":
            return "cohort.way is given"
        if cohort.way == "batch" and cohort.width != "auto":
            return "cohort.way and cohort.width are given"
        if stage.secure:
            return "privacy.secure lets no round's chance be drawn twice"
        if stage.roles.buffers:
            return f"running statistics ({stage.roles.buffers[0]}) are of one client's batches"
        if single := getattr(stage.module, "one_by_one", ""):
            return str(single)
        if privacy is not None and privacy.unit == "record":
            return "examples are hidden one client at a time"
        if stage.pieces > 1:
            return "pieces of a batch are of one client"
        if cohort.program == "compiled" and cohort.probe == "auto":
            return "compiling takes longer than trying may"
        return ""

    @property
    def rule(self) -> Manner:
        """What the rules say for this phase."""
        if self.identity["way"] == "loop" or self.stage.roles.buffers:
            return self._loop
        return Manner("batch", self._width, self.programs[0])

    @property
    def programs(self) -> tuple[str, ...]:
        """How local steps of `batch` may be run, the likeliest first."""
        asked = self.experiment.cohort.program
        if self.identity["device"] == "cpu":
            return ("compiled",) if asked == "compiled" else ("eager",)
        if not steppable(self.stage.phase.local):
            return ("eager",)
        return ("graph", "eager") if asked == "auto" else (asked,)

    @property
    def _width(self) -> int:
        """Of `batch`, as the rules have it."""
        if self.identity["way"] == "batch":
            return int(self.identity["width"])
        return self._auto("batch")

    @property
    def _loop(self) -> Manner:
        width = int(self.identity["width"]) if self.identity["way"] == "loop" else self._auto("loop")
        return Manner("loop", width, self.programs[0])

    def _auto(self, way: str) -> int:
        given, expected = self.experiment.cohort.width, expected_clients(self.stage.phase, self.stage.num_clients)
        return given if isinstance(given, int) else auto_width(way, expected, self.identity["device"])

    def _question(self, visits: Sequence[VisitPlan]) -> Question:
        hidden, cohort = self.stage.mechanism is not None, self.experiment.cohort
        rounded = self.identity.get("products") == "tf32" or getattr(self.experiment.model, "precision", "") == "bf16"
        return Question(
            tuple(visits),
            self.before.round,
            self.programs,
            self._width,
            # units of one client fill the program, and each width would be compiled for itself
            fixed=cohort.width != "auto" or hidden or cohort.program == "compiled",
            workers=self.pool.num_workers,
            rounds=self.stage.phase.rounds - self.before.round,
            tolerance=ROUNDED if rounded else EXACT,
        )

    def best(self, trials: Sequence[Trial]) -> tuple[Manner, str]:
        """The manner with the shortest round, and why it is; that of the rules unless another is clearly faster."""
        ways = ("batch",) if self.experiment.cohort.way == "batch" else ("loop", "batch")
        fit = [trial for trial in trials if not trial.why and trial.round and trial.manner.way in ways]
        if not fit:
            return self.rule, f"by rules, as of {len(trials) - 1} others none could be taken"
        fastest, rule = min(fit, key=lambda trial: trial.round or 0.0), self.rule
        own = [trial.round or 0.0 for trial in fit if trial.manner == rule or trial.manner.way == rule.way == "loop"]
        if own and (fastest.round or 0.0) > FIRM * own[0]:
            return rule, "that of the rules, which no other beat by a tenth"
        return self._loop if fastest.manner.way == "loop" else fastest.manner, "the fastest that was tried"
