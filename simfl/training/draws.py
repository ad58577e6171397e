"""Draws of the user's code in training: keyed by client and local step where they can be, refused where they cannot.

`sequential` trains one client at a time, so each pass of a model can seed the generators by the key of its local step:
the passes of one step have equal draws, as they have equal dropout. Seeding costs more than watching, so a phase starts
to seed once an update has drawn, and repeats this update. An update without draws is the same in both cases, and an
update with draws is always seeded; so it does not matter which update of a worker is the first to draw.

Clients that train as one program, micro-batches on several workers, and the gradients of single examples cannot seed
generators one by one. There a draw ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from simfl.errors import ConfigError
from simfl.generators.watched import SYSTEM_DRAWS
from simfl.models.recomputation import recomputes
from simfl.training.context import PhaseContext

Result = TypeVar("Result")
REMEDY = ", or nn.Dropout for dropout of nn.functional"


def keyed_draws(context: PhaseContext, mode: str, observed: bool, key: int, train: Callable[[], Result]) -> Result:
    """Call `train`, and once more if it drew from a generator that was not keyed.

    Args:
        context: The phase.
        mode: The execution mode, `sequential` or `vectorized`.
        observed: Whether an observer follows the update, so that it must not be repeated.
        key: Key of the client update, for draws outside of passes, as of an algorithm's state.
        train: Computes a client update from new inputs.

    Raises:
        ConfigError: It drew where draws cannot be keyed, or from the operating system's randomness.
    """
    refusal = why_not_keyed(mode, context.data_parallel, context.has_record_privacy)
    keyed = context.generators.keyed = not refusal and (observed or context.generators.keyed)
    with _watched(context, refusal, key if keyed else 0):
        result = train()
    if keyed or not context.generators.drawn():
        return result
    context.generators.keyed = True
    with _watched(context, "", key):
        return train()


@contextmanager
def refuse_draws(context: PhaseContext) -> Iterator[None]:
    """Raise ConfigError if the block, the gradient of a micro-batch, draws from a generator."""
    with _watched(context, why_not_keyed("sequential", context.data_parallel, context.has_record_privacy)):
        yield


@contextmanager
def refuse_recomputed_draws(context: PhaseContext) -> Iterator[None]:
    """Raise ConfigError if recomputed layers draw inside the block, a backward pass, with other results than before.

    torch restores its own generators for a layer that gradient checkpointing repeats, and no others.
    """
    if not (context.generators.keyed and recomputes(context.network.module)):
        yield
        return
    before = context.generators.positions()
    yield
    after = context.generators.positions()
    if names := [name for name, position in before.items() if after[name] != position]:
        raise ConfigError(
            f"model.of: layers under gradient checkpointing draw from {' and '.join(names)}, which torch does not"
            " restore when it repeats them; allowed: draws of torch, or no gradient checkpointing"
        )


def why_not_keyed(mode: str, data_parallel: int, has_record_privacy: bool) -> str:
    """Return the setting by which draws cannot be keyed, with what is allowed; empty if they can be."""
    if mode == "vectorized":
        return f"execution.mode: vectorized trains several clients as one program; allowed: sequential{REMEDY}"
    if data_parallel > 1:
        return f"execution.data_parallel: {data_parallel} cuts batches; allowed: 1{REMEDY}"
    if has_record_privacy:
        return f"privacy.unit: record takes the gradient of each example; allowed: group or client{REMEDY}"
    return ""


@contextmanager
def _watched(context: PhaseContext, refusal: str, key: int = 0) -> Iterator[None]:
    """Seed all generators by `key` and watch them inside the block; raise ConfigError after a draw that is refused."""
    generators = context.generators
    try:
        with generators.watched(key):
            yield
    except RuntimeError as error:
        if "randomness" not in str(error) or not refusal:
            raise
        raise ConfigError(draws_refused(context.index, ["torch's global generator"], refusal)) from None
    if generators.has_system_draws and not context.has_secure_randomness:
        raise ConfigError(f"phases.{context.index}: {SYSTEM_DRAWS}")
    if refusal and (names := generators.drawn()):
        raise ConfigError(draws_refused(context.index, names, refusal))


def draws_refused(phase: int, names: Sequence[str], refusal: str) -> str:
    """Return the message of an error for draws from the named generators."""
    return f"phases.{phase}: training draws from {' and '.join(names)}, but {refusal}"
