"""Forks: a new run that continues from the state of another run with settings of its own.

Up to the fork it is the other run: its tables contain the other's rows, and its ledger the bytes that were sent. A run
forked with more rounds and no other change is bit-identical to that longer run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from simfl import config, files
from simfl.autotune.cache import basis
from simfl.client_state import EMPTY, FileClientStore
from simfl.data.partition.manifest import manifest_sha256
from simfl.debug.rerun import Rerun
from simfl.errors import ConfigError, DamagedFile, RunError
from simfl.experiment import Experiment, Phase
from simfl.parameter_groups import pick
from simfl.plans.client_times import set_times
from simfl.run_context import RunContext
from simfl.runs import checkpoint
from simfl.runs.folder import CHECKPOINTS, CLIENT_STATES, refuse_taken
from simfl.runs.manifest import ForkOrigin, RunManifest
from simfl.runs.record import Record
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.runs.tables import TIMES, TableRow
from simfl.session import prepare
from simfl.training.context import PhaseContext

Log = Callable[[str], None]
SCORE_TABLES = ("evaluations", "samples")
RESETTING = (  # settings of a phase whose change resets the state of server and clients
    "algorithm", "server", "train", "frozen", "personal_params", "communicate", "buffers",
)  # fmt: skip
SCHEDULING = ("seed", "data", "partition", "model", "clients", "mentor")  # what the schedule of clients depends on


@dataclass(frozen=True)
class ForkState:
    """The state that a fork continues from, and the folder of its client states."""

    snapshot: Snapshot
    client_states: Path


def fork(
    source: Run,
    target: Path,
    experiment: Experiment,
    step: int,
    shared: dict[str, Any] | None = None,
    log: Log = lambda text: None,
    source_name: str = "",
) -> None:
    """Create `target`, a run of `experiment` after `step` rounds of `source`; `simfl run --resume` continues it.

    Args:
        source: The run to fork.
        target: Folder of the new run.
        experiment: Experiment of the new run.
        step: Number of finished rounds to keep, over all phases.
        shared: Objects shared by runs of this process.
        log: Called with messages.
        source_name: Folder or URL of the source as recorded in the manifest; the default is its folder.

    Raises:
        ConfigError: The experiment changes what the kept rounds depend on, or has no rounds left.
        RunError: The source cannot be forked.
    """
    refuse_taken(target)
    check_fork(source, experiment, step)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    context = RunContext(experiment, files.cache_folder(), torch.device(device), shared)
    partition, manifest_text = prepare.partition_of(context)
    prepare.check(experiment, context, partition)
    set_times(context, partition)  # raises if the profile does not fit
    with tempfile.TemporaryDirectory(prefix="simfl-fork-") as scratch:
        state = _state(source, step, Path(scratch), log)
        identity = prepare.identity_of(experiment, context, len(partition), device)
        phase = context.phase_context(state.snapshot.phase, len(partition))
        _check_weights(source, state.snapshot, phase)
        moved = manifest_sha256(source.partition_manifest) != manifest_sha256(manifest_text)
        state = replace(state, snapshot=_adapted(source, state.snapshot, phase, moved, log))
        manifest = RunManifest.create(identity, context.dataset.sha256, manifest_sha256(manifest_text))
        origin = ForkOrigin(source_name or str(source.folder), step, state.snapshot.weights_sha256)
        manifest = _with_execution(replace(manifest, forked=origin), source, experiment, state.snapshot, log)
        record = Record.open(
            target, config.dump(experiment), manifest, manifest_text, experiment.checkpoint, resume=False
        )
        _write(source, record, experiment, state)


def _with_execution(
    manifest: RunManifest, source: Run, experiment: Experiment, snapshot: Snapshot, log: Log
) -> RunManifest:
    """Copy the source's choices of execution modes and clients per batch to the manifest, as far as they still apply.

    All of them apply if nothing that they depend on has changed, and the fork is then bit-identical to a longer run.
    Otherwise the fork chooses again in its first round, as its own experiment specifies.
    """
    made, phase = source.manifest, snapshot.phase
    before, now = basis(source.experiment, phase), basis(experiment, phase)
    changed = [name for name in before if before[name] != now[name]]
    changed += ["device"] * (made.identity.device != manifest.identity.device)
    if made.choices and changed:
        log(f"{', '.join(changed)} changed: the execution mode is chosen again")
    if set(changed) - {"phase", "scored"}:
        return manifest
    last_phase = phase - 1 if changed else phase
    last_step = snapshot.step - (phase + 1 in made.choices)  # a choice at this step belongs to the next phase
    return replace(
        manifest,
        choices={k: choice for k, choice in made.choices.items() if k <= last_phase},
        batch_sizes=tuple((since, size) for since, size in made.batch_sizes if since <= last_step),
    )


def check_fork(source: Run, experiment: Experiment, step: int) -> None:
    """Check that finished phases are unchanged and that the fork has rounds left.

    Raises:
        ConfigError: They have changed, or it has none.
        RunError: One of the runs has privacy.
    """
    phases, before = experiment.phases, source.experiment.phases
    if experiment.privacy is not None or source.experiment.privacy is not None:
        raise RunError(f"{source.folder}: a run with privacy cannot be forked; its budget is charged to one run")
    done = len(source.rounds())
    if not 0 < step <= done:
        raise ConfigError(f"--at: {step} given; {source.folder} has finished rounds 1 to {done}")
    phase = _phase_at(before, step)
    if phases[:phase] != before[:phase]:
        raise ConfigError(f"--at: phase {phase - 1} has ended before round {step}; its settings must not change")
    total = sum(p.rounds for p in phases)
    if len(phases) <= phase or step >= total:
        raise ConfigError(f"--at: {step} given, but the new run has only {total} rounds; allowed: fewer than that")
    _check_in_flight(source, experiment, phase)


def _check_in_flight(source: Run, experiment: Experiment, phase: int) -> None:
    """Check that the clients in flight in an asynchronous phase are those of the source.

    Raises:
        ConfigError: A setting that their schedule depends on has changed.
    """
    before, now = source.experiment, experiment
    if before.phases[phase].asynchronous is None and now.phases[phase].asynchronous is None:
        return
    changed = [name for name in SCHEDULING if getattr(before, name) != getattr(now, name)]
    changed += ["phases"] * (replace(before.phases[phase], rounds=now.phases[phase].rounds) != now.phases[phase])
    if changed:
        raise ConfigError(
            f"{changed[0]}: changed, but phase {phase} is asynchronous and has clients in flight; allowed: other rounds"
        )


def _check_weights(source: Run, found: Snapshot, phase: PhaseContext) -> None:
    """Check that the new model has all tensors that the source has trained; others keep their initial values."""
    own = {**dict(phase.network.module.named_parameters()), **dict(phase.network.module.named_buffers())}
    for name, tensor in found.model.items():
        shape, own_shape = list(tensor.shape), list(own[name].shape) if name in own else None
        if own_shape != shape:
            has = f"has {name} with shape {own_shape}" if own_shape else f"has no {name}"
            raise ConfigError(f"model: the model of the fork {has}; {source.folder} has trained one with shape {shape}")


def _phase_at(phases: tuple[Phase, ...], step: int) -> int:
    """Return the phase of a round; after the last round of a phase, that phase."""
    for index in range(len(phases)):
        if step <= sum(p.rounds for p in phases[: index + 1]):
            return index
    raise AssertionError("a run has no more rounds than its phases")


def _state(source: Run, step: int, scratch: Path, log: Log) -> ForkState:
    """Return the state after a number of rounds, from a checkpoint or by repeating rounds in the folder `scratch`."""
    phases, phase = source.experiment.phases, _phase_at(source.experiment.phases, step)
    number = step - sum(p.rounds for p in phases[:phase])
    if step in source.steps:
        try:
            found = source.snapshot(step)
            if found.phase == phase:
                return ForkState(found, source.folder / CLIENT_STATES)
            if found.phase == phase + 1 == len(phases):  # the end of the run differs only in the number of the phase
                return ForkState(replace(found, phase=phase), source.folder / CLIENT_STATES)
        except DamagedFile as error:
            log(f"{error}; the rounds before it are repeated")
    rerun = Rerun(source, scratch, log)
    rerun.go_to(phase, number)
    rerun.rerun_round()
    if rerun.differences:
        raise RunError(f"{source.folder}: repeated rounds differ from the record: {rerun.differences[0]}")
    return ForkState(rerun.snapshot, scratch / CLIENT_STATES)


def _adapted(source: Run, found: Snapshot, phase: PhaseContext, moved: bool, log: Log) -> Snapshot:
    """Return the state for the phase of the fork; `moved` means that the partition has changed."""
    before = source.experiment.phases[found.phase]
    changed = [name for name in RESETTING if getattr(before, name) != getattr(phase.phase, name)]
    if changed == ["server"] and type(before.server) is type(phase.phase.server):
        changed = []
    if changed or set(phase.parameter_groups.shared) != set(found.server.weights):
        log(f"{', '.join(changed) or 'the model'} changed: the server starts from the weights, clients without state")
        entered = replace(found, base_weights=found.model, client_states={}).enter_phase(phase)
        kept = pick(found.model, [name for name in phase.parameter_groups.shared if name in found.model])
        return replace(entered, server=replace(entered.server, weights={**entered.server.weights, **kept}))
    if moved and set(found.client_states.values()) - {EMPTY}:
        log("the partition changed: clients start without state")
        found = replace(found, client_states={})
    if before.codec != phase.phase.codec:
        return replace(found, broadcast=Snapshot().broadcast)
    return found


def _write(source: Run, record: Record, experiment: Experiment, state: ForkState) -> None:
    """Write client states, tables and, last, the checkpoint; a folder without it would start from the first round."""
    target, snapshot = record.folder, state.snapshot
    store = FileClientStore(target / CLIENT_STATES)
    store.adopt(state.client_states, snapshot.stored_digests)
    found = {name: source.table(name).to_pylist() for name in ("rounds", "ledger", "clients", TIMES, *SCORE_TABLES)}
    kept = {name: [row for row in rows if _belongs(name, row, snapshot, experiment)] for name, rows in found.items()}
    record.parts.write(snapshot.step, kept)
    notes, coverage = {"seconds": _seconds(source, snapshot.step)}, record.parts.coverage
    checkpoint.write(target / CHECKPOINTS, snapshot.step, snapshot.tensors(), snapshot.values(), notes, coverage)


def _belongs(name: str, row: TableRow, snapshot: Snapshot, experiment: Experiment) -> bool:
    """Return whether the fork has this row; scores of its last kept round only if it evaluates that round."""
    last, position = (snapshot.phase, snapshot.round), (row["phase"], row["round"])
    if name not in SCORE_TABLES or position != last:
        return position <= last
    if experiment.evaluate.virtual_seconds is not None:
        return True
    every, ends = experiment.evaluate.every, snapshot.round == experiment.phases[snapshot.phase].rounds
    return ends or bool(every and snapshot.round % every == 0)


def _seconds(source: Run, step: int) -> float:
    """Estimate the seconds that the source took for these rounds: a share of its total by number of rounds."""
    done = len(source.rounds())
    with suppress(RunError):
        return float(source.summary["seconds"]["total"]) * step / max(done, 1)
    return 0.0
