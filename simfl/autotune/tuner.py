"""How the visits of a phase are trained, where the experiment leaves it open: by what a worker found when it tried.

It is chosen once a phase, before its first round, kept in the manifest, and the same for every worker and sitting.
Without a GPU, and under `deterministic: true`, rules choose (`preflight.identity_of`): a clock would not choose twice the
same, and bits follow from the choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from simfl.autotune.cache import TuningCache
from simfl.autotune.choices import FAILED, RULES, Facts, kept, trial_of
from simfl.autotune.probe import ProbeRequest
from simfl.autotune.trial import Trial
from simfl.errors import SimflError
from simfl.experiment import Experiment
from simfl.protocol import Parts
from simfl.runs.record import Record
from simfl.runs.snapshot import Snapshot
from simfl.runtime.inline import WorkerPool
from simfl.sampling import auto_clients_per_batch, expected_clients
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlan, ExecutionMode
from simfl.training.tensor_optimizer import steppable
from simfl.transport.broadcast import BroadcastResult

FIRM = 0.9  # of the time in the execution_mode of the rules: another has to take less, so that noise moves nothing
EXACT, ROUNDED = (
    0.02,
    0.2,
)  # how far from `sequential` a client may end, in float32, and where products are rounded further

Outgoing = Callable[
    [PhaseContext, Snapshot], tuple[Sequence[ClientPlan], BroadcastResult]
]  # the next round's visits, and what they get


def execution_mode_of(experiment: Experiment, record: Record, phase: int, step: int) -> ExecutionMode:
    """How visits of a phase are trained in the round after so many, as the run's folder says."""
    found = {
        "mode": record.manifest["identity"]["mode"],
        "program": experiment.execution.program,
        **record.choice(phase),
    }
    return ExecutionMode(found["mode"], record.clients_per_batch(step), found["program"])


@dataclass(frozen=True)
class Tuner:
    """What is to be chosen for a phase, as it begins."""

    experiment: Experiment
    record: Record
    stage: PhaseContext
    before: Snapshot
    pool: WorkerPool

    def made(self, outgoing: Outgoing, cache: Path, say: Callable[[str], None]) -> Facts:
        """The execution_mode, why it was chosen, and every trial, from now on in the record; empty where it all stands there.

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
            execution_mode, why = self.best([trial_of(facts) for facts in tried["trials"]])
        else:
            execution_mode, why = self.rule, f"{RULES}{why}"
        found = {**asdict(execution_mode), "why": why, **tried}
        self.record.choose(self.stage.index, self.before.step, found)
        return found

    @property
    def _tries(self) -> bool:
        """Whether execution_modes are tried in this run."""
        asked, gpu = self.experiment.execution.autotune, self.identity["device"] == "cuda"
        return asked == "always" or (asked == "auto" and gpu and self.experiment.deterministic is False)

    @property
    def identity(self) -> Facts:
        """Of the run, which holds what the rules say."""
        found: Facts = self.record.manifest["identity"]
        return found

    def _tried(
        self, visits: Sequence[ClientPlan], received: Parts, cache: Path, say: Callable[[str], None]
    ) -> tuple[str, Facts]:
        """What was found, now or by an earlier run; or why nothing was."""
        local = self.stage.phase.local
        ordered = sorted(visits, key=lambda visit: (visit.num_steps(local), visit.client))
        if not any(visit.num_steps(local) for visit in ordered):
            return "nobody trains in the first round", {}
        known = TuningCache.of(
            self.experiment,
            self.stage.index,
            self.record.manifest["data_sha256"],
            self.pool.num_workers,
            self.pool.kind,
            cache,
        )
        with known.turn(lambda: say("how clients are best trained is being tried by another run, which is waited for")):
            found = known.read() if self.experiment.execution.autotune == "auto" else None
            if found is not None:
                return "", {**found, "recalled": True}
            return self._found(ordered, received, known)

    def _found(self, ordered: Sequence[ClientPlan], received: Parts, known: TuningCache) -> tuple[str, Facts]:
        """What a worker finds now, kept for later runs; or why it finds nothing."""
        try:
            answer = self.pool.probe(self._question(ordered), received)
        except SimflError as error:  # of the worker, not of a execution_mode: the run does without, and says why
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
        execution, stage = self.experiment.execution, self.stage
        privacy = self.experiment.privacy
        if execution.mode == "sequential":
            return "execution.mode is given"
        if execution.mode == "vectorized" and execution.clients_per_batch != "auto":
            return "execution.mode and execution.clients_per_batch are given"
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
        if execution.program == "compiled" and execution.autotune == "auto":
            return "compiling takes longer than trying may"
        return ""

    @property
    def rule(self) -> ExecutionMode:
        """What the rules say for this phase."""
        if self.identity["mode"] == "sequential" or self.stage.roles.buffers:
            return self._loop
        return ExecutionMode("vectorized", self._width, self.programs[0])

    @property
    def programs(self) -> tuple[str, ...]:
        """How local steps of `vectorized` may be run, the likeliest first."""
        asked = self.experiment.execution.program
        if self.identity["device"] == "cpu":
            return ("compiled",) if asked == "compiled" else ("eager",)
        if not steppable(self.stage.phase.local):
            return ("eager",)
        return ("graph", "eager") if asked == "auto" else (asked,)

    @property
    def _width(self) -> int:
        """Of `vectorized`, as the rules have it."""
        if self.identity["mode"] == "vectorized":
            return int(self.identity["clients_per_batch"])
        return self._auto("vectorized")

    @property
    def _loop(self) -> ExecutionMode:
        clients_per_batch = (
            int(self.identity["clients_per_batch"])
            if self.identity["mode"] == "sequential"
            else self._auto("sequential")
        )
        return ExecutionMode("sequential", clients_per_batch, self.programs[0])

    def _auto(self, mode: str) -> int:
        given, expected = (
            self.experiment.execution.clients_per_batch,
            expected_clients(self.stage.phase, self.stage.num_clients),
        )
        return given if isinstance(given, int) else auto_clients_per_batch(mode, expected, self.identity["device"])

    def _question(self, visits: Sequence[ClientPlan]) -> ProbeRequest:
        hidden, execution = self.stage.mechanism is not None, self.experiment.execution
        rounded = self.identity.get("products") == "tf32" or getattr(self.experiment.model, "precision", "") == "bf16"
        return ProbeRequest(
            tuple(visits),
            self.before.round,
            self.programs,
            self._width,
            # units of one client fill the program, and each width would be compiled for itself
            fixed=execution.clients_per_batch != "auto" or hidden or execution.program == "compiled",
            workers=self.pool.num_workers,
            rounds=self.stage.phase.rounds - self.before.round,
            tolerance=ROUNDED if rounded else EXACT,
        )

    def best(self, trials: Sequence[Trial]) -> tuple[ExecutionMode, str]:
        """The execution_mode with the shortest round, and why it is; that of the rules unless another is clearly faster."""
        modes = ("vectorized",) if self.experiment.execution.mode == "vectorized" else ("sequential", "vectorized")
        fit = [trial for trial in trials if not trial.why and trial.round and trial.execution_mode.mode in modes]
        if not fit:
            return self.rule, f"by rules, as of {len(trials) - 1} others none could be taken"
        fastest, rule = min(fit, key=lambda trial: trial.round or 0.0), self.rule
        own = [
            trial.round or 0.0
            for trial in fit
            if trial.execution_mode == rule or trial.execution_mode.mode == rule.mode == "sequential"
        ]
        if own and (fastest.round or 0.0) > FIRM * own[0]:
            return rule, "that of the rules, which no other beat by a tenth"
        return (
            self._loop if fastest.execution_mode.mode == "sequential" else fastest.execution_mode,
            "the fastest that was tried",
        )
