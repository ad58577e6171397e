"""Verification of a run or a card by computing again: messages, epsilon, scores, client updates, the last aggregation.

A hash shows that a file is the one that was stored, not that it is true: whoever forges a run can compute every hash
again. So each claim is derived once more from the experiment and the data. Random client updates are trained again,
and so is everything between the last two checkpoints; its result must be the last checkpoint, bit by bit. Which
updates are drawn is decided here, and not by whoever made the run.

Not verified, unless the whole run is repeated: rounds before the last checkpoint but one, apart from the first, and
their scores. Never verified: clock times.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from simfl.cards.card import claims_of
from simfl.data.partition.manifest import manifest_sha256
from simfl.debug.replay import replay
from simfl.debug.rerun import Rerun, equal_values
from simfl.errors import DamagedFile, RunError, SimflError
from simfl.evaluation.headlines import headlines
from simfl.experiment import Experiment
from simfl.plans.check import MATCHES, NOT_COMPARED, RunTables, compare
from simfl.plans.client_times import set_times
from simfl.run_context import RunContext
from simfl.runs.environment import Environment
from simfl.runs.folder import JsonObject
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.runs.summary import COMPLETED
from simfl.runs.tables import TableRow, where
from simfl.runtime.inline import InlinePool
from simfl.session.evaluation import PendingEvaluation
from simfl.session.prepare import PreparedRun, account_of, partition_of
from simfl.session.progress import baselines
from simfl.weights import sha256

Verdict = Literal["holds", "differs", "cannot tell"]
NUM_UPDATES = 3  # client updates that are repeated
SHOWN = 3  # differences that are named
WIDTH = len("initial scores")  # of the longest name of a check


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: What was checked.
        verdict: Whether it holds.
        observed: What was compared, or the first differences, or why nothing can be said.
    """

    name: str
    verdict: Verdict
    observed: str


class Verification:
    """The checks of one run, in order of their cost."""

    def __init__(
        self,
        run: Run,
        claims: JsonObject | None = None,
        num_updates: int = NUM_UPDATES,
        whole: bool = False,
        seed: int | None = None,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Prepare the verification of a run.

        Args:
            run: The run.
            claims: What a card claims about it; None: only what the folder itself says.
            num_updates: Number of client updates to repeat.
            whole: Repeat every round, from the first one.
            seed: Seed of the choice of client updates; None: drawn from the system.
            on_message: Receives messages about the progress.

        Raises:
            DamagedFile: A file of the run was altered.
            RunError: The run has not ended.
        """
        self.run, self.claims, self.num_updates, self.whole = run, claims, num_updates, whole
        self.on_message = on_message
        self.random = random.Random(seed) if seed is not None else random.SystemRandom()
        self.summary = run.summary
        self.environment = tuple(run.manifest.environment.differences(Environment.current(), self.device))

    @property
    def device(self) -> str:
        """The kind of processor that the run was made on: cpu or cuda."""
        return self.run.manifest.identity.device

    @property
    def experiment(self) -> Experiment:
        """The experiment of the run."""
        return self.run.experiment

    @cached_property
    def context(self) -> RunContext:
        """Data and model, read and built again."""
        return self.run.context

    @cached_property
    def last_step(self) -> int:
        """The number of rounds that the experiment has."""
        return sum(phase.rounds for phase in self.experiment.phases)

    @cached_property
    def base_step(self) -> int:
        """The step of the checkpoint from which the last rounds are repeated; 0 without an earlier one."""
        earlier = [] if self.whole else [step for step in self.run.steps if step < self.last_step]
        return max(earlier, default=0)

    def checks(self) -> Iterator[Check]:
        """Yield each check once it is done. What depends on a check that failed is not tried."""
        if self.claims is not None:
            yield self._check("claims", self._claims)
        for name, check in (("length", self._length), ("data", self._data)):
            found = self._check(name, check)
            yield found
            if found.verdict != "holds":
                return
        yield self._check("partition", self._partition)
        yield self._check("bytes", self._bytes)
        if self.experiment.privacy is not None:
            yield self._check("epsilon", self._epsilon)
        if self.experiment.secure_aggregation is None:
            yield self._check("client updates", self._updates, computes=True)
        yield self._check("baselines", self._baselines)
        yield self._check("initial scores", self._initial_scores, computes=True)
        yield self._check("last rounds", self._last_rounds, computes=True)
        yield self._check("final scores", self._final_scores, computes=True)

    def _check(self, name: str, check: Callable[[], tuple[list[str], str]], computes: bool = False) -> Check:
        """Carry out a check, which returns differences and what was compared; `computes`: hardware matters."""
        try:
            differences, compared = check()
        except DamagedFile as error:
            return Check(name, "differs", str(error))
        except SimflError as error:  # no key of the noise, data or libraries that are not here
            return Check(name, "cannot tell", str(error))
        if not differences:
            return Check(name, "holds", compared)
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        text = "; ".join(differences[:SHOWN]) + more
        if computes and self.environment:
            return Check(name, "cannot tell", f"{text}; this machine differs: {'; '.join(self.environment)}")
        return Check(name, "differs", text)

    def _claims(self) -> tuple[list[str], str]:
        assert self.claims is not None
        return _mapping_differences(
            self.claims, claims_of(self.run), "the card", "the run"
        ), "the card says what the run says"

    def _length(self) -> tuple[list[str], str]:
        if self.summary["status"] != COMPLETED:
            raise RunError(f"the run is {self.summary['status']}; only a completed one can be verified")
        if (origin := self.run.manifest.forked) is not None:
            raise RunError(f"the run was forked after round {origin.step} of {origin.folder}, which is not at hand")
        counts = {"the summary was written": self.summary["rounds"], "the newest checkpoint is": max(self.run.steps)}
        lines = [
            f"{what} after {count} rounds, the experiment has {self.last_step}"
            for what, count in counts.items()
            if count != self.last_step
        ]
        return lines, f"{self.last_step} of {self.last_step} rounds, completed"

    def _data(self) -> tuple[list[str], str]:
        stored, read = self.run.manifest.data_sha256, self.context.dataset.sha256
        return [] if stored == read else [f"{stored} in the run, {read} read here"], f"sha256 {read[:16]}"

    def _partition(self) -> tuple[list[str], str]:
        _, made = partition_of(self.context)
        stored = self.run.partition_manifest
        lines = [] if stored == made else ["the experiment divides these data otherwise"]
        return lines, f"divided again, sha256 {manifest_sha256(made)[:16]}"

    def _bytes(self) -> tuple[list[str], str]:
        rounds, ledger = self.run.rounds().to_pylist(), self.run.ledger().to_pylist()
        set_times(self.context, self.run.partition)
        tables = RunTables(ledger, self.run.clients().to_pylist(), self.last_step)
        result = compare(self.context, len(self.run.partition), tables)
        if result.startswith(NOT_COMPARED):
            raise RunError(f"the ledger against the plan: {result}")
        lines = [] if result.startswith(MATCHES) else [f"the ledger against the plan: {result}"]
        for prefix, column, claimed in (("", "payload_bytes", "bytes"), ("charged_", "charged_bytes", "charged")):
            for direction in ("download", "upload", "total"):
                sent = sum(row[column] for row in ledger if direction in (row["direction"], "total"))
                by_round = sum(row[f"{prefix}{direction}_bytes"] for row in rounds)
                said = self.summary[claimed][direction]
                if not sent == by_round == said:
                    lines.append(f"{claimed} {direction}: {said:,} claimed, {by_round:,} in rounds, {sent:,} in ledger")
        planned = f"{len(ledger):,} messages as planned{result.removeprefix(MATCHES)}"
        return lines, f"{planned}; {self.summary['bytes']['total']:,} bytes"

    def _epsilon(self) -> tuple[list[str], str]:
        account = account_of(self.experiment, self.run.partition, self.context.num_values)
        charged = {index: phase.rounds for index, phase in enumerate(self.experiment.phases)}
        now, said = account.summary(charged)["privacy"], self.summary.get("privacy") or {}
        assert isinstance(now, dict)
        skipped = {"clip"} if self.experiment.privacy is not None and self.experiment.privacy.adaptive else set()
        numbers = {k: v for k, v in now.items() if k not in skipped}
        lines = _mapping_differences(
            {k: v for k, v in said.items() if k not in skipped}, numbers, "claimed", "computed"
        )
        return lines, f"computed again for {sum(charged.values())} rounds"

    def _updates(self) -> tuple[list[str], str]:
        lines, chosen = [], self._choose_updates()
        for phase, number, client in chosen:
            done = replay(self.run, number, client, phase)
            lines += [f"client {client}, round {number} of phase {phase}: {line}" for line in done.differences]
        shown = ", ".join(f"client {client} of round {number}" for _, number, client in chosen)
        return lines, f"bit-identical: {shown}" if len(self.experiment.phases) == 1 else f"bit-identical: {len(chosen)}"

    def _choose_updates(self) -> list[tuple[int, int, int]]:
        """Draw client updates of the first round, and of the rounds after the checkpoint that is repeated from."""
        rows = self.run.rounds().to_pylist()
        steps = {(row["phase"], row["round"]): row["step"] for row in rows}
        candidates = [
            (row["phase"], row["round"], row["client"])
            for row in self.run.clients().to_pylist()
            if steps[row["phase"], row["round"]] in (1, self.base_step + 1)
        ]
        return sorted(self.random.sample(candidates, min(self.num_updates, len(candidates))))

    @cached_property
    def _rerun(self) -> Rerun:
        """The run before its first round, with data and model of its own."""
        self._scratch = tempfile.TemporaryDirectory(prefix="simfl-verify-")  # deleted with this object
        return Rerun(self.run, Path(self._scratch.name), self.on_message, use_checkpoints=not self.whole)

    @cached_property
    def _last_state(self) -> Snapshot:
        """The state after the last rounds were repeated."""
        phases = self.experiment.phases
        self._rerun.go_to(len(phases) - 1, phases[-1].rounds)
        self._rerun.rerun_round()
        return self._rerun.snapshot

    def _last_rounds(self) -> tuple[list[str], str]:
        stored, now, count = self.run.snapshot(), self._last_state, self.last_step - self.base_step
        lines = [*self._rerun.differences, *_state_differences(stored, now)]
        if stored.weights_sha256 != self.summary["weights_sha256"]:
            lines.append(f"weights: {self.summary['weights_sha256'][:16]} claimed, {stored.weights_sha256[:16]} stored")
        since = f"the checkpoint after round {self.base_step}" if self.base_step else "the first one"
        rounds = f"{count} round{'s' if count > 1 else ''} repeated from {since}"
        return lines, f"{rounds}, bit-identical: weights {stored.weights_sha256[:16]}"

    def _baselines(self) -> tuple[list[str], str]:
        now = baselines(self._prepared(self.context))
        lines = _mapping_differences(self.summary["baselines"], now, "claimed", "computed")
        return lines, ", ".join(f"{name} {value:.4f}" for name, value in now.items()) or "none"

    def _initial_scores(self) -> tuple[list[str], str]:
        stage = self._rerun.run_context.phase_context(0, len(self.run.partition))
        return self._score(Snapshot().enter_phase(stage), "initial")

    def _final_scores(self) -> tuple[list[str], str]:
        return self._score(self._last_state, "final")

    def _prepared(self, context: RunContext) -> PreparedRun:
        content = self.run.partition_manifest
        return PreparedRun(self.experiment, context, self.run.partition, content, self.run.manifest.identity)

    def _score(self, state: Snapshot, when: str) -> tuple[list[str], str]:
        """Score a state again, and compare every row of its scores and the headline scores."""
        rerun, metric = self._rerun, self.experiment.phases[state.phase].objective.metric
        pool = InlinePool(rerun.config, rerun.run_context)
        pool.begin(state.phase, state.base_weights)
        pending = PendingEvaluation(self._prepared(rerun.run_context), state, pool, metric, by_example=False)
        rows, _, _ = pending.wait()
        stored = where(self.run.evaluations(), step=state.step).to_pylist()
        lines = _row_differences(stored, rows["evaluations"])
        found = headlines(rows["evaluations"], self.experiment.evaluate.splits[0])
        now = {name: score.value for name, score in found.items()}
        lines += _mapping_differences(self.summary[when], now, "claimed", "computed")
        return lines, ", ".join(f"{name} {value:.4f}" for name, value in now.items()) + f"; {len(stored)} rows equal"


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Return the verdict on a run: `differs` if a check does, else `cannot tell` if one cannot, else `holds`."""
    found = {check.verdict for check in checks}
    return "differs" if "differs" in found else "cannot tell" if "cannot tell" in found else "holds"


def check_line(check: Check) -> str:
    """Format a check."""
    return f"  {check.name:<{WIDTH}}  {check.verdict:<11}  {check.observed}"


def _state_differences(stored: Snapshot, now: Snapshot) -> list[str]:
    """Return lines about what differs between the last checkpoint and the repeated state."""
    pairs = {"weights": (stored.weights_sha256, now.weights_sha256)}
    pairs |= {"server state": (sha256(stored.tensors()), sha256(now.tensors()))}
    lines = [f"{name}: sha256 {a[:16]} stored, {b[:16]} computed" for name, (a, b) in pairs.items() if a != b]
    ignored = ("phase",)  # the last checkpoint is written after the phase was left
    before, after = ({k: v for k, v in one.values().items() if k not in ignored} for one in (stored, now))
    return lines + _mapping_differences(before, after, "stored", "computed")


def _mapping_differences(a: Mapping[str, Any], b: Mapping[str, Any], left: str, right: str) -> list[str]:
    lines = []
    for key in sorted(a.keys() | b.keys()):
        if isinstance(a.get(key), Mapping) and isinstance(b.get(key), Mapping):
            lines += [f"{key}.{line}" for line in _mapping_differences(a[key], b[key], left, right)]
        elif not equal_values(a.get(key), b.get(key)):
            lines.append(f"{key}: {_short(a.get(key))} ({left}), {_short(b.get(key))} ({right})")
    return lines


def _row_differences(stored: Sequence[TableRow], now: Sequence[TableRow]) -> list[str]:
    if len(stored) != len(now):
        return [f"{len(stored)} rows stored, {len(now)} computed"]
    return [
        f"row {i}: {line}"
        for i, (a, b) in enumerate(zip(stored, now, strict=True))
        for line in _mapping_differences(
            {k: v for k, v in a.items() if v is not None or k in b}, b, "stored", "computed"
        )
    ]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
