"""Check of a data set before a run: every row, and what the objectives of the phases read."""

from __future__ import annotations

import numpy as np
import torch

from simfl.data.base import Dataset, Split
from simfl.data.classes import gaps, require_classes
from simfl.data.soundness import IMAGES, require_sound
from simfl.errors import ConfigError, DataError
from simfl.experiment import Experiment
from simfl.models.meta_device import build_on_meta, without_compiler
from simfl.models.own import WrappedModel
from simfl.objectives.base import Objective
from simfl.protocol import Outputs
from simfl.run_context import RunContext

TRAIN = "train"
ROUNDING = 1e-6
NUM_SCORED = 500  # perfect predictions of each data set that are scored


def check_data(experiment: Experiment, context: RunContext) -> tuple[str, ...]:
    """Check the rows of the data set, and that the objectives can encode the splits that are trained on or scored.

    Return notes for the user.

    Raises:
        ConfigError: A split does not exist.
        DataError: A row is at fault; the message names split, row and column.
    """
    dataset, objectives = context.dataset, [phase.objective for phase in experiment.phases]
    notes: list[str] = []
    if not isinstance(dataset, Dataset):
        raise DataError(f"data: load() returned {type(dataset).__name__}, expected simfl.data.base.Dataset")
    if TRAIN not in dataset.splits:
        raise DataError(f"data: there is no split 'train'; the data has {', '.join(dataset.splits) or 'none'}")
    used = dict.fromkeys(map(context.stored_split, [TRAIN, *experiment.evaluate.splits]))
    require_sound(dataset, decode=IMAGES if dataset.folder is None else ())
    for name in used:
        split = context.split(name)
        if not len(split):
            raise DataError(f"data, split {name}: there are no examples")
        for objective in objectives:
            try:
                objective.check(split)
                notes += [f"data, split {name}: {note}" for note in check_best_score(objective, split)]
            except DataError as error:
                raise DataError(f"data, split {name}: {error}") from error
    if not any(objective.reads_classes for objective in objectives):
        return tuple(dict.fromkeys(notes))
    require_classes(dataset, used)
    _check_outputs(experiment, context)
    return (*dict.fromkeys(notes), *gaps(dataset))


def check_best_score(objective: Objective, split: Split) -> list[str]:
    """Score perfect predictions on each data set of a split; return a note where their mean is below 1.

    At most `NUM_SCORED` examples of a data set are scored, evenly spaced.

    Raises:
        DataError: The rule of the metric gives no prediction the best score, so every score would be too low.
    """
    notes, examples = [], split.examples
    names = np.asarray(examples["dataset"].to_pylist() if "dataset" in examples.column_names else [""] * len(split))
    for name in sorted(set(names.tolist())):
        rows = np.flatnonzero(names == name)
        rows = rows[:: -(-len(rows) // NUM_SCORED)]
        predictions = objective.perfect(split, rows)
        if predictions is None:
            return []
        scores, on = objective.score(predictions, split, rows)[objective.metric], f" on {name}" if name else ""
        best, mean = float(scores.max()), float(scores.mean())
        if 0 < best < 1 - ROUNDING:
            raise DataError(
                f"perfect predictions have {objective.metric} {best:.2f}{on}, expected 1: the rule of the objective"
                " does not fit these data"
            )
        if mean < 1 - ROUNDING:
            notes.append(f"perfect predictions have {objective.metric} {mean:.3f}{on}, not 1")
    return notes


def _check_outputs(experiment: Experiment, context: RunContext) -> None:
    """Raise ConfigError if a model of the user has fewer outputs than the data has classes.

    The model runs without memory, on the device `meta`; one that cannot is left to the run.
    """
    model, task, classes = experiment.model, context.task, context.task.num_classes
    objective = next(phase.objective for phase in experiment.phases if phase.objective.reads_classes)
    if not isinstance(model, WrappedModel) or classes is None:
        return
    train = context.split(TRAIN)
    first = objective.encode(Split(train.examples.slice(0, 1)), model.tokenizer()).to(torch.device("meta"))
    try:
        with without_compiler():
            batch = first.take(torch.zeros(1, dtype=torch.int64, device="meta"))
            inputs = {name: batch[name] for name in objective.inputs if name in batch}
            outputs = objective.run(build_on_meta(model, task), inputs)
        logits = outputs.logits if isinstance(outputs, Outputs) else outputs
        found = int(logits.shape[-1])
    except Exception:
        return
    if found < classes:
        raise ConfigError(f"model: it has {found} outputs, but the data has {classes} classes")
