"""A run that goes on from another run's state after a number of rounds, with settings of its own.

Up to there it is the other run: its tables hold the other's rows and its ledger the bytes that were sent. A run forked
with no other change than more rounds is bit-equal to that longer run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from simfl import cache, config, files
from simfl.autotune.cache import basis
from simfl.client_state import EMPTY, FileClientStore
from simfl.data.partition.manifest import Partition, manifest_sha256
from simfl.debug.rerun import Rerun
from simfl.errors import ConfigError, RunError
from simfl.experiment import Experiment, Phase
from simfl.parameter_groups import pick
from simfl.run_context import RunContext
from simfl.runs import checkpoint, tables
from simfl.runs.manifest import manifest
from simfl.runs.record import Record
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.session.prepare import check, identity_of, partition_of
from simfl.tracking.run_folder import refuse_taken
from simfl.training.context import PhaseContext

Say = Callable[[str], None]
SCORED = ("evaluations", "samples")
ANEW = ("algorithm", "server", "train", "frozen", "personal_params", "communicate", "buffers")  # settings of a phase


def fork(
    source: Run,
    target: Path,
    experiment: Experiment,
    step: int,
    shared: dict[str, Any] | None = None,
    say: Say = lambda text: None,
    home: str = "",
) -> None:
    """Make `target` a run of `experiment` that stands after `step` rounds of `source`; `simfl run --resume` goes on.

    `home`: where the source is to be found, if not in its folder. ConfigError for an experiment that cannot have come
    there, RunError for a source that cannot be gone on from.
    """
    refuse_taken(target)
    _check(source, experiment, step)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    setting = RunContext(experiment, cache.folder(), torch.device(device), shared)
    partition, text = partition_of(setting)
    check(experiment, setting, partition)
    with tempfile.TemporaryDirectory(prefix="simfl-fork-") as scratch:
        snapshot, memory = _state(source, step, Path(scratch), say)
        identity = identity_of(experiment, setting, len(partition), device)
        stage = setting.stage(snapshot.phase, len(partition))
        _check_weights(source, snapshot, stage)
        snapshot = _adapted(source, snapshot, stage, partition, manifest_sha256(text), say)
        facts = manifest(identity, setting.dataset.sha256, manifest_sha256(text))
        origin = {"folder": home or str(source.folder), "step": step, "weights_sha256": snapshot.weights_sha256}
        facts |= {"forked": origin, **_manners(source, experiment, snapshot, device, say)}
        _write(source, target, experiment, facts, text, snapshot, memory)


def _manners(source: Run, experiment: Experiment, snapshot: Snapshot, device: str, say: Say) -> dict[str, Any]:
    """How the source trained its visits, as far as the fork is to train so too: what the manifest keeps of it.

    All of it, if what it follows from is the same: then the fork's bits are those of the longer run. Else the fork is
    trained as its own experiment says from its first round on: under `strict`, say, by rules and not by a clock's word.
    """
    made, phase = source.manifest, snapshot.phase
    choices, widths = made.get("choices", {}), made.get("widths", [])
    a, b = basis(source.experiment, phase), basis(experiment, phase)
    changed = [name for name in a if a[name] != b[name]] + ["device"] * (made["identity"]["device"] != device)
    if choices and changed:
        say(f"{', '.join(changed)} changed: how clients are trained is chosen anew")
    if set(changed) - {"phase", "scored"}:
        return {}
    over = phase - 1 if changed else phase
    until = snapshot.step - (str(phase + 1) in choices)  # what was chosen at this very step is of the phase after
    return {
        "choices": {k: choice for k, choice in choices.items() if int(k) <= over},
        "widths": [[since, width] for since, width in widths if since <= until],
    }


def _check(source: Run, experiment: Experiment, step: int) -> None:
    """What is over cannot be changed, and a fork must have rounds to come."""
    phases, before = experiment.phases, source.experiment.phases
    if experiment.privacy is not None or source.experiment.privacy is not None:
        raise RunError(f"{source.folder}: rounds under privacy are charged to the run that made them; it cannot fork")
    done = len(source.rounds())
    if not 0 < step <= done:
        raise ConfigError(f"--at: {step} given; {source.folder} has finished 1 to {done} rounds")
    phase = _phase_at(before, step)
    if phases[:phase] != before[:phase]:
        raise ConfigError(f"--at: phase {phase - 1} is over after round {step}; its settings must stay")
    whole = sum(p.rounds for p in phases)
    if len(phases) <= phase or step >= whole:
        raise ConfigError(f"--at: {step} given; the forked run has {whole} rounds, and must have some to come")


def _check_weights(source: Run, found: Snapshot, stage: PhaseContext) -> None:
    """What the source has trained must have its place in the fork's model; what this has besides begins as it is."""
    own = {**dict(stage.module.named_parameters()), **dict(stage.module.named_buffers())}
    for name, tensor in found.model.items():
        shape, here = list(tensor.shape), list(own[name].shape) if name in own else None
        if here != shape:
            has = f"has {name} with {here}" if here else f"has no {name}"
            raise ConfigError(f"model: the fork's, on its data, {has}; {source.folder} has trained one with {shape}")


def _phase_at(phases: tuple[Phase, ...], step: int) -> int:
    """The phase in which a run stands after so many rounds, at the end of one still in it."""
    for index in range(len(phases)):
        if step <= sum(p.rounds for p in phases[: index + 1]):
            return index
    raise AssertionError("a run has no more rounds than its phases")


def _state(source: Run, step: int, scratch: Path, say: Say) -> tuple[Snapshot, Path]:
    """The state after so many rounds, and the folder of what clients remember; rounds are run again if need be."""
    phases, phase = source.experiment.phases, _phase_at(source.experiment.phases, step)
    round_of = step - sum(p.rounds for p in phases[:phase])
    if step in source.steps:
        with suppress(RunError):  # a damaged commit is made anew
            found = source.snapshot(step)
            if found.phase == phase:
                return found, source.folder / "memory"
            if found.phase == phase + 1 == len(phases):  # the run's end: nothing but the number is another
                return replace(found, phase=phase), source.folder / "memory"
    again = Rerun(source, scratch, say)
    again.go_to(phase, round_of)
    again.rerun_round()
    if again.unlike:
        raise RunError(f"{source.folder}: run again, it differs from its record: {again.unlike[0]}")
    return again.snapshot, scratch / "memory"


def _adapted(
    source: Run, found: Snapshot, stage: PhaseContext, partition: Partition, sha256: str, say: Say
) -> Snapshot:
    """The state as the forked run's phase takes it."""
    before = source.experiment.phases[found.phase]
    changed = [name for name in ANEW if getattr(before, name) != getattr(stage.phase, name)]
    moved = manifest_sha256(source.partition_manifest) != sha256
    names = set(stage.roles.shared) != set(found.server.weights)
    if changed == ["server"] and type(before.server) is type(stage.phase.server):
        changed = []
    if changed or names:
        why = f"{', '.join(changed) or 'the model'} changed"
        say(f"{why}: the server's state begins anew from the weights, and clients have nothing to remember")
        begun = replace(found, base=found.model, memory={}).begin(stage)
        kept = pick(found.model, [name for name in stage.roles.shared if name in found.model])
        server = replace(begun.server, weights={**begun.server.weights, **kept})
        return replace(begun, server=server)
    if moved and set(found.memory.values()) - {EMPTY}:
        say("the partition changed: clients have nothing to remember")
        found = replace(found, memory={})
    if before.codec != stage.phase.codec:
        return replace(found, broadcast=Snapshot().broadcast)
    return found


def _write(
    source: Run,
    target: Path,
    experiment: Experiment,
    facts: dict[str, Any],
    partition: bytes,
    snapshot: Snapshot,
    memory: Path,
) -> None:
    """The run's folder; the commit comes last, so that one without it begins at the beginning."""
    Record.open(target, config.dump(experiment), facts, partition, experiment.checkpoint, resume=False)
    store = FileClientStore(target / "memory")
    for digest in sorted(set(snapshot.memory.values()) - {EMPTY}):
        _link(memory / f"{digest}.safetensors", store.folder / f"{digest}.safetensors")
    for name in ("rounds", "ledger", "clients", *SCORED):
        rows = [row for row in source.table(name).to_pylist() if _belongs(name, row, snapshot, experiment)]
        if rows:
            tables.write_part(target / "tables", name, snapshot.step, rows)
    notes = {"seconds": _seconds(source, snapshot.step)}
    checkpoint.commit(target / "checkpoints", snapshot.step, snapshot.tensors(), snapshot.facts(), notes)


def _belongs(name: str, row: dict[str, Any], snapshot: Snapshot, experiment: Experiment) -> bool:
    """Whether the forked run would have this row: of the fork's own round, scores only if they were due."""
    here, there = (snapshot.phase, snapshot.round), (row["phase"], row["round"])
    if name not in SCORED or there != here:
        return there <= here
    every, last = experiment.evaluate.every, snapshot.round == experiment.phases[snapshot.phase].rounds
    return last or bool(every and snapshot.round % every == 0)


def _link(there: Path, here: Path) -> None:
    """A file that is never changed, under a second name."""
    try:
        os.link(there, here)
    except FileExistsError:
        pass
    except OSError:  # another disk
        data = there.read_bytes()
        files.write(here, lambda file: file.write(data))


def _seconds(source: Run, step: int) -> float:
    """Seconds that the source took for these rounds, as far as it is known: its own share of them by number."""
    done = len(source.rounds())
    with suppress(RunError):
        return float(source.summary["seconds"]["total"]) * step / max(done, 1)
    return 0.0
