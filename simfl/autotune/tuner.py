"""Choice of the execution mode of a phase, where the experiment leaves it open.

The mode is chosen once, before the first round of the phase, and kept in the manifest: every worker and every resumed
run uses it. On a GPU a worker tries the candidates. Without a GPU, and with `deterministic: true`, rules choose
(`prepare.identity_of`), since a measurement does not choose the same mode twice and the results depend on the mode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from simfl.autotune.cache import TuningCache
from simfl.autotune.probe import ProbeRequest, ProbeResult
from simfl.autotune.trial import Trial
from simfl.errors import SimflError
from simfl.experiment import Experiment
from simfl.models.grouped_layers import why_sequential
from simfl.protocol import Parts
from simfl.rounds import RoundPlan
from simfl.runs.manifest import RunIdentity
from simfl.runs.record import Record
from simfl.runs.snapshot import Snapshot
from simfl.sampling import auto_clients_per_batch, expected_clients
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlan, ExecutionMode
from simfl.training.tensor_optimizer import has_tensor_form

MARGIN = 0.9  # a mode replaces that of the rules only if it takes less than this share of its time (noise is below)
TOLERANCE = 0.02  # distance of a client's weights from those of `sequential`, over how far it moved, in float32
LOW_PRECISION_TOLERANCE = 0.2  # the same where products are rounded to TF32 or bf16
BUSY = 0.1  # share of a second in which other processes used the GPU, from which a message warns
BY_RULES, FAILED = "by rules: ", "autotuning failed"

Choice = dict[str, Any]  # a chosen mode with its reason and its trials, as the manifest holds it


class Prober(Protocol):
    """The part of a worker pool that tries execution modes."""

    @property
    def num_workers(self) -> int:
        """Return the number of workers that share a round."""

    @property
    def kind(self) -> str:
        """Return the processor models of the workers."""

    def probe(self, request: ProbeRequest, received: Parts) -> ProbeResult:
        """Try execution modes on one worker."""


def execution_mode_of(experiment: Experiment, record: Record, phase: int, step: int) -> ExecutionMode:
    """Return the execution mode of a phase after `step` finished rounds of the run, from the run's manifest."""
    choice = {"mode": record.manifest.identity.mode, "program": experiment.execution.program, **record.choice(phase)}
    return ExecutionMode(choice["mode"], record.clients_per_batch(step), choice["program"])


@dataclass(frozen=True)
class Tuner:
    """The choice to be made at the start of a phase."""

    experiment: Experiment
    record: Record
    context: PhaseContext
    state: Snapshot  # at the start of the phase
    pool: Prober

    def choose(self, plan_next: Callable[[], RoundPlan], cache: Path, report: Callable[[str], None]) -> Choice:
        """Choose the execution mode and write it into the manifest.

        A result of an equal earlier run is taken from the cache; if another process is measuring one, it is awaited.

        Args:
            plan_next: Plans the phase's first round, whose client updates are used as a workload.
            cache: The cache folder.
            report: Receives messages.

        Returns:
            The choice; empty where nothing was left to choose.
        """
        begun = self.state.round > 0 and not self._forked_here
        if not self._measures or begun or self.record.choice(self.context.index):
            return {}
        reason, found = self.reason_for_rules(), Choice()
        if not reason:
            plan = plan_next()
            reason, found = self._measure(plan.client_plans, plan.received, cache, report)
        if found:
            mode, reason = self.best([load_trial(facts) for facts in found["trials"]])
        else:
            mode, reason = self.rule, f"{BY_RULES}{reason}"
        choice = {**asdict(mode), "why": reason, **found}
        self.record.set_choice(self.context.index, self.state.step, choice)
        return choice

    @property
    def _measures(self) -> bool:
        """Return whether this run measures execution modes at all."""
        autotune, gpu = self.experiment.execution.autotune, self.identity.device == "cuda"
        return autotune == "always" or (autotune == "auto" and gpu and not self.experiment.deterministic)

    @property
    def identity(self) -> RunIdentity:
        """Return the run's identity, which holds the choice of the rules."""
        return self.record.manifest.identity

    @property
    def _forked_here(self) -> bool:
        """Return whether the run was forked from another one after its current round."""
        forked = self.record.manifest.forked
        return forked is not None and forked.step == self.state.step

    def _measure(
        self, plans: Sequence[ClientPlan], received: Parts, cache: Path, report: Callable[[str], None]
    ) -> tuple[str, Choice]:
        """Return the measured trials, or the reason why there are none."""
        local = self.context.phase.local
        ordered = sorted(plans, key=lambda plan: (plan.num_steps(local), plan.client))
        if not any(plan.num_steps(local) for plan in ordered):
            return "no client trains in the first round", {}
        data = self.record.manifest.data_sha256
        workers, kind = self.pool.num_workers, self.pool.kind
        cached = TuningCache.of(self.experiment, self.context.index, data, workers, kind, cache)
        with cached.lock(lambda: report("waiting for another run that is autotuning an equal experiment")):
            found = cached.read() if self.experiment.execution.autotune == "auto" else None
            if found is not None:
                return "", {**found, "recalled": True}
            return self._probe(ordered, received, cached)

    def _probe(self, ordered: Sequence[ClientPlan], received: Parts, cached: TuningCache) -> tuple[str, Choice]:
        """Measure on one worker and cache the result."""
        try:
            result = self.pool.probe(self._request(ordered), received)
        except SimflError as error:  # of the worker and not of a mode: the run continues by rules
            return f"{FAILED} ({str(error).splitlines()[0].partition('; ')[0]})", {}
        if result.trials[0].why:
            return f"a single client could not be trained ({result.trials[0].why})", {}
        found = {
            "steps": result.steps,
            "seconds": round(result.seconds, 3),
            "loading": round(result.loading, 3),
            "when": time.time(),
            "kind": result.kind,
            "kinds": self.pool.kind,
            "others": result.others,
            "trials": [dump_trial(trial) for trial in result.trials],
        }
        cached.write(found)
        return "", {**found, "recalled": False}

    def reason_for_rules(self) -> str:
        """Return why the rules choose without a measurement; empty where a measurement is made."""
        execution, context, privacy = self.experiment.execution, self.context, self.experiment.privacy
        sequential_only = why_sequential(context.network.module, context.network.trained)
        reasons = {
            "execution.mode is given": execution.mode == "sequential",
            "execution.mode and execution.clients_per_batch are given": execution.mode == "vectorized"
            and execution.clients_per_batch != "auto",
            "with privacy.secure no random draw of a round can be repeated": context.has_secure_randomness,
            "passes change what the model keeps": bool(context.parameter_groups.changed_in_passes),
            "results of an example depend on its batch": context.parameter_groups.mixes_examples,
            "sequential alone keys random draws": bool(context.draws),
            sequential_only: bool(sequential_only),
            "with privacy.unit: record clients train one at a time": privacy is not None and privacy.unit == "record",
            "micro-batches belong to a single client": context.data_parallel > 1,
            "compiling takes longer than autotuning may": execution.program == "compiled"
            and execution.autotune == "auto",
        }
        return next((reason for reason, applies in reasons.items() if applies), "")

    @property
    def rule(self) -> ExecutionMode:
        """Return the mode that the rules choose for this phase."""
        if self.identity.mode == "sequential" or _trains_one_by_one(self.context):
            return self._sequential
        return ExecutionMode("vectorized", self._clients_per_batch, self.programs[0])

    @property
    def programs(self) -> tuple[str, ...]:
        """Return the candidate programs of a vectorized step, the most promising first."""
        given = self.experiment.execution.program
        if self.identity.device == "cpu":
            return ("compiled",) if given == "compiled" else ("eager",)
        if not has_tensor_form(self.context.phase.local):
            return ("eager",)
        return ("graph", "eager") if given == "auto" else (given,)

    @property
    def _clients_per_batch(self) -> int:
        if self.identity.mode == "vectorized":
            return self.identity.clients_per_batch
        return self._auto("vectorized")

    @property
    def _sequential(self) -> ExecutionMode:
        own = self.identity.mode == "sequential"
        size = self.identity.clients_per_batch if own else self._auto("sequential")
        return ExecutionMode("sequential", size, self.programs[0])

    def _auto(self, mode: str) -> int:
        given = self.experiment.execution.clients_per_batch
        expected = expected_clients(self.context.phase, self.context.num_clients)
        return given if isinstance(given, int) else auto_clients_per_batch(mode, expected, self.identity.device)

    def _request(self, plans: Sequence[ClientPlan]) -> ProbeRequest:
        has_units, execution = self.context.mechanism is not None, self.experiment.execution
        bf16 = getattr(self.experiment.model, "precision", "") == "bf16"
        low_precision = self.identity.products == "tf32" or bf16
        return ProbeRequest(
            tuple(plans),
            self.state.round,
            self.programs,
            self._clients_per_batch,
            # privacy units of one client fill the batch, and each size would be compiled separately
            fixed=execution.clients_per_batch != "auto" or has_units or execution.program == "compiled",
            workers=self.pool.num_workers,
            rounds=self.context.phase.rounds - self.state.round,
            tolerance=LOW_PRECISION_TOLERANCE if low_precision else TOLERANCE,
        )

    def best(self, trials: Sequence[Trial]) -> tuple[ExecutionMode, str]:
        """Return the mode with the shortest round and the reason; the rules decide unless it is clearly faster."""
        modes = ("vectorized",) if self.experiment.execution.mode == "vectorized" else ("sequential", "vectorized")
        valid = [trial for trial in trials if not trial.why and trial.round and trial.execution_mode.mode in modes]
        if not valid:
            return self.rule, f"by rules: none of {len(trials) - 1} other modes is usable"
        fastest, rule = min(valid, key=lambda trial: trial.round or 0.0), self.rule
        own = [trial.round or 0.0 for trial in valid if _same_mode(trial.execution_mode, rule)]
        if own and (fastest.round or 0.0) > MARGIN * own[0]:
            return rule, "chosen by rules; no other mode is faster by a tenth"
        mode = fastest.execution_mode
        return self._sequential if mode.mode == "sequential" else mode, "the fastest of the modes tried"


def describe_choice(choice: Choice) -> str:
    """Summarise a choice in one line; empty where nothing was to be measured."""
    mode = ExecutionMode(choice["mode"], choice["clients_per_batch"], choice["program"])
    if "trials" not in choice:
        failed = str(choice["why"]).startswith(BY_RULES + FAILED)
        return f"execution mode: {mode} ({choice['why']})" if failed else ""
    trials = [load_trial(facts) for facts in choice["trials"]]
    excluded = sum(bool(trial.why) for trial in trials)
    own = [trial.step for trial in trials if trial.step and _same_mode(trial.execution_mode, mode)]
    pace = f"{_milliseconds(own[0])} per client step, {_milliseconds(trials[0].step)} if sequential; " if own else ""
    if choice["recalled"]:
        how = f"tried by an earlier run on {time.strftime('%Y-%m-%d', time.gmtime(choice['when']))}"
    else:
        how = f"tried in {choice['seconds'] - choice['loading']:.1f} s without loading"
    left = f", {excluded} excluded (reasons in manifest.json)" if excluded else ""
    text = f"execution mode: {mode} ({choice['why']}): {pace}{len(trials)} modes {how}{left}"
    return "; ".join([text, *_warnings(choice)])


def _warnings(choice: Choice) -> Iterator[str]:
    """Yield the reasons why another mode may be the best for other workers, or at another time."""
    if choice["kind"] != choice["kinds"]:
        yield f"measured on one worker ({choice['kind']}) for all ({choice['kinds']})"
    if (choice["others"] or 0.0) >= BUSY:
        yield (
            f"other processes used the GPU for {choice['others']:.0%} of the second before;"
            " execution.autotune: always measures again"
        )


def _same_mode(tried: ExecutionMode, mode: ExecutionMode) -> bool:
    return tried == mode or tried.mode == mode.mode == "sequential"


def _milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{1000 * seconds:.3g} ms"


def dump_trial(trial: Trial) -> dict[str, Any]:
    """Convert a trial to JSON."""
    facts = {**asdict(trial.execution_mode), **asdict(trial)}
    return {name: value for name, value in facts.items() if name not in ("execution_mode", "starving")}


def load_trial(facts: dict[str, Any]) -> Trial:
    """Restore a trial from JSON."""
    mode = ExecutionMode(facts["mode"], facts["clients_per_batch"], facts["program"])
    return Trial(mode, **{name: facts[name] for name in ("step", "round", "gap", "memory", "why")})


def _trains_one_by_one(context: PhaseContext) -> bool:
    """Return whether the model's passes depend on each other, its examples on their batch, or results on draws."""
    groups = context.parameter_groups
    return bool(groups.changed_in_passes or groups.mixes_examples or context.draws)
