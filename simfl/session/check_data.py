"""Check of a data set before a run: every row, and what the objectives of the phases read."""

from __future__ import annotations

from simfl.data.classes import gaps, require_classes
from simfl.data.soundness import IMAGES, require_sound
from simfl.errors import DataError
from simfl.experiment import Experiment
from simfl.run_context import RunContext

TRAIN = "train"


def check_data(experiment: Experiment, context: RunContext) -> tuple[str, ...]:
    """Check the rows of the data set, and that the objectives can encode the splits that are trained on or scored.

    Return notes for the user.

    Raises:
        ConfigError: A split does not exist.
        DataError: A row is at fault; the message names split, row and column.
    """
    dataset, objectives = context.dataset, [phase.objective for phase in experiment.phases]
    used = dict.fromkeys([TRAIN, *experiment.evaluate.splits])
    require_sound(dataset, decode=IMAGES if dataset.folder is None else ())
    for name in used:
        split = context.split(name)
        if not len(split):
            raise DataError(f"data, split {name}: there are no examples")
        for objective in objectives:
            try:
                objective.check(split)
            except DataError as error:
                raise DataError(f"data, split {name}: {error}") from error
    if not any(objective.reads_classes for objective in objectives):
        return ()
    require_classes(dataset, used)
    return tuple(gaps(dataset))
