"""Check of the local batches before a run: clients too small for one batch, and batches of one example.

A model with batch normalization refuses a batch of one example in training, some drop the axis of the examples. Whether
a model does is tried: it runs two examples and then one, without memory on the device `meta` or, where it cannot, on
the module, which is then restored.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from simfl.data.base import TRAIN, Split
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError
from simfl.experiment import Experiment
from simfl.generators.process import global_states_kept
from simfl.models.meta_device import build_on_meta, without_compiler
from simfl.models.module_state import ModuleSnapshot
from simfl.models.own import WrappedModel
from simfl.protocol import Examples, Outputs
from simfl.run_context import RunContext
from simfl.training.plan import batches_per_epoch, last_batch

TWO = 2


def check_batches(experiment: Experiment, context: RunContext, partition: Partition, index: int) -> None:
    """Check that every client of a phase can train, and that the model takes batches of one example if there are any.

    Raises:
        ConfigError: `drop_last` leaves a client without a batch, or the model refuses a batch that a client has.
    """
    phase, privacy = experiment.phases[index], experiment.privacy
    local, where = phase.local, f"phases.{index}.local"
    if privacy is not None and privacy.unit == "record":
        return  # batches are Poisson samples, and gradients those of single examples
    by_group = privacy is not None and privacy.unit == "group"
    sizes = [(0, len(partition.order))] if phase.centralized else list(_units(partition, by_group))
    for client, size in sizes if local.drop_last else ():
        if 0 < size < local.batch_size:
            raise ConfigError(
                f"{where}.drop_last: {_described(client, size, by_group)}, fewer than batch_size {local.batch_size},"
                " and would have no batch; use a smaller batch_size, or a partition without such clients"
            )
    single = next(((client, size) for client, size in sizes if last_batch(size, local) == 1), None)
    if single is None or not (isinstance(experiment.model, WrappedModel) or context.parameter_groups(index).buffers):
        return
    if reason := _refusal_of_one(experiment, context, index):
        batches = "batches have" if batches_per_epoch(1, local) and local.batch_size == 1 else "last batch has"
        allowed = "at least 2" if local.batch_size == 1 else f"{where}.drop_last: true, or another size"
        raise ConfigError(
            f"{where}.batch_size: {_described(*single, by_group)}, whose {batches} one example, which the model refuses"
            f" in training ({reason}); allowed: {allowed}"
        )


def _units(partition: Partition, by_group: bool) -> Iterator[tuple[int, int]]:
    """Yield the client and the number of examples of everything that is trained alone: clients, or their groups."""
    if not by_group:
        yield from enumerate(partition.sizes.tolist())
        return
    clients = np.repeat(np.arange(len(partition)), partition.num_groups)
    yield from zip(clients.tolist(), np.diff(partition.group_starts).tolist(), strict=True)


def _described(client: int, size: int, by_group: bool) -> str:
    return f"{'a group of ' if by_group else ''}client {client} has {size} example{'s' if size > 1 else ''}"


def _refusal_of_one(experiment: Experiment, context: RunContext, index: int) -> str:
    """Return why the model cannot be trained on one example, though on two; empty if it can, or if that is unknown."""
    objective, train = experiment.phases[index].objective, context.split(TRAIN)
    few = objective.encode(Split(train.examples.slice(0, TWO), train.documents), experiment.model.tokenizer())
    if len(few) < TWO:
        return ""
    with without_compiler():
        module, examples = build_on_meta(experiment.model, context.task), few.to(torch.device("meta"))
        if not _failure(experiment, index, module, examples, TWO):
            return _failure(experiment, index, module, examples, 1)
        module, examples = context.module, few.to(context.device)
        start, training = ModuleSnapshot(module), module.training  # hooks of a module cannot always be copied
        try:
            return (
                ""
                if _failure(experiment, index, module, examples, TWO)
                else _failure(experiment, index, module, examples, 1)
            )
        finally:
            start.restore()
            module.train(training)


def _failure(experiment: Experiment, index: int, module: nn.Module, examples: Examples, count: int) -> str:
    """Return in one line why the model fails on the first examples in training mode; empty if it does not."""
    objective = experiment.phases[index].objective
    device = next(iter(examples.rows.values())).device
    module.train()
    try:
        with torch.no_grad(), global_states_kept():
            batch = examples.take(torch.arange(count, device=device))
            found = objective.run(module, {name: batch[name] for name in objective.inputs if name in batch})
            outputs = found if isinstance(found, Outputs) else Outputs(getattr(found, "logits", found))
            if len(outputs.logits) != count:
                return f"it returns logits of shape {tuple(outputs.logits.shape)}"
    except Exception as error:  # of the user's code
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ""
