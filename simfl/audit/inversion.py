"""Inversion of one upload: which tokens do the questions contain that a client trained on, and which pages are theirs?

Two attacks give each token of the vocabulary a score; the larger, the more likely the token was among the questions.

    embedding   norm of the token's row in the update of the word embedding, which only tokens of a batch change
    span        negative distance of the token's input to the first layer that reads words from the space that the rows
                of this layer's update span (Petrov et al. 2024, DAGER). The update of a linear layer is a sum of outer
                products with its inputs, so with fewer tokens than dimensions it spans the true inputs alone.

The span attack needs a first layer whose input at a token depends on this token alone, as in T5, whose positions are
relative. It also works with the update of a low-rank adapter, whose rank then limits the number of tokens. The attacker
knows the model, the tokenizer and the template of the prompt, and sees one decoded upload. `simfl.audit.patches`
attacks the pages of models that train the projection of their patches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from simfl.audit.patches import page_scores
from simfl.audit.statistics import Roc, roc
from simfl.audit.view import Seen, messages_view, refuse_single_uploads
from simfl.data.partition.base import documents
from simfl.errors import ConfigError
from simfl.models.call_context import ModelCall, call_context
from simfl.protocol import Batch, Weights
from simfl.runs.results import Run
from simfl.training.context import PhaseContext
from simfl.training.forward import model_inputs

TOLERANCE = 1e-5  # of singular values, relative to the largest one
LARGEST_SHARE = 0.75  # of the dimensions that the span of an update may have
OTHER_PAGES = 16
SAME = 1e-4  # relative difference of inputs that are equal up to rounding


@dataclass(frozen=True)
class Inversion:
    """One attack on an upload.

    Attributes:
        name: `embedding`, `span` or `patch`.
        roc: How well its scores tell the tokens of the questions from all other tokens; the patches of the client's
            pages from those of others.
        recall: Share of the questions' tokens, or of the pages' patches, among as many with the largest scores.
        rank: Dimensions of the span; None for the embedding.
        recovered: Share of the pages' patches whose ink was found without candidates; None for tokens.
    """

    name: str
    roc: Roc
    recall: float
    rank: int | None = None
    recovered: float | None = None


@dataclass(frozen=True)
class InversionResult:
    """The attacks on one upload.

    Attributes:
        client: The client.
        round: The round, from 1.
        examples: Examples that the client trained on in this round.
        tokens: Distinct tokens of their questions, without those of the template.
        payload: Encoded bytes of the upload.
        attacks: The attacks; those whose layer is not part of the upload are left out.
    """

    client: int
    round: int
    examples: int
    tokens: int
    payload: int
    attacks: tuple[Inversion, ...]


@dataclass(frozen=True)
class TokenScores:
    """A score for each token, float64 [V], and the dimensions of the span that it was computed from."""

    values: np.ndarray
    rank: int | None = None


def invert(run: Run, client: int, round: int, report: Callable[[str], None] = lambda text: None) -> InversionResult:
    """Attack the upload of one client in a round of the first phase.

    Raises:
        ConfigError: The examples have no questions, or the model no tokens.
        RunError: The run cannot be repeated, or the client was not sampled.
    """
    refuse_single_uploads(run.experiment, "inversion")
    context = run.context.phase_context(0, len(run.partition))
    examples = run.context.split("train").examples
    tokenizer = run.experiment.model.tokenizer()
    if "question" not in examples.column_names or tokenizer is None:
        raise ConfigError("inversion: needs questions and a model with a tokenizer")
    (seen,) = messages_view(run, client, [round], report=report).seen
    assert seen.trained_rows is not None
    questions = [examples["question"][row].as_py() for row in seen.trained_rows.tolist()]
    template = {token for text in tokenizer.encode(["question:  context: "]) for token in text}
    present = {token for text in tokenizer.encode(questions) for token in text} - template
    vocabulary = np.array([token for token in range(len(tokenizer)) if token not in template])
    is_present = np.isin(vocabulary, sorted(present))
    attacks = []
    for name, attack in (("embedding", embedding_scores), ("span", span_scores)):
        found = attack(run, context, seen, vocabulary)
        if found is not None and is_present.any():
            attacks.append(_judged(name, found, is_present))
    if (pages := _page_attack(run, context, seen)) is not None:
        attacks.append(pages)
    if not attacks:
        raise ConfigError("inversion: the upload has neither a word embedding nor a layer that reads words or patches")
    payload = sum(seen.payload.values())
    return InversionResult(client, round, len(questions), int(is_present.sum()), payload, tuple(attacks))


def _page_attack(run: Run, context: PhaseContext, seen: Seen) -> Inversion | None:
    """Attack the pages behind an upload; None without pages, or without a trained projection of patches."""
    data, rows = run.context.split("train"), seen.trained_rows
    if data.documents is None or rows is None:
        return None
    document = documents(data)
    first = np.unique(document, return_index=True)[1]  # one question of each page
    is_own = np.isin(document[first], document[rows])
    others = first[~is_own][: max(OTHER_PAGES, int(is_own.sum()))]
    examples = run.context.examples(context.phase.objective, "train")
    own, foreign = (examples.take(torch.from_numpy(np.sort(some))) for some in (first[is_own], others))
    found = page_scores(context, seen, own, foreign) if len(others) else None
    if found is None:
        return None
    scores = TokenScores(np.concatenate([found.present, found.absent]), found.rank)
    judged = _judged("patch", scores, np.arange(len(scores.values)) < len(found.present))
    return replace(judged, recovered=found.recovered)


def _judged(name: str, found: TokenScores, is_present: np.ndarray) -> Inversion:
    scores, count = found.values, int(is_present.sum())
    best = np.argsort(-scores, kind="stable")[:count]
    return Inversion(name, roc(scores[is_present], scores[~is_present]), float(is_present[best].mean()), found.rank)


def embedding_scores(run: Run, context: PhaseContext, seen: Seen, vocabulary: np.ndarray) -> TokenScores | None:
    """Return the norm of each token's row in the update of the word embedding; None if it is not in the upload."""
    update = seen.parts["weights"]
    for path, layer in context.network.module.named_modules():
        name = f"{path}.weight"
        if isinstance(layer, nn.Embedding) and name in update and len(update[name]) > vocabulary.max():
            return TokenScores(update[name].double().norm(dim=1).numpy()[vocabulary])
    return None


def span_scores(run: Run, context: PhaseContext, seen: Seen, vocabulary: np.ndarray) -> TokenScores | None:
    """Return the negative distance of each token's layer input from the span of the update, and its dimensions.

    None if no layer of the upload reads words one by one.
    """
    batch = run.context.examples(context.phase.objective, "train").take(torch.zeros(1, dtype=torch.int64))
    if "input_ids" not in batch:
        return None
    name = _first_layer(context, seen, batch, vocabulary)
    if name is None:
        return None
    basis = span(seen.parts["weights"][name])
    inputs = torch.cat(
        [_inputs(context, seen.received, batch, part, [name])[name] for part in _parts(batch, vocabulary)]
    )
    unit = inputs.double() / inputs.double().norm(dim=1, keepdim=True).clamp_min(1e-30)
    distance = (unit - unit @ basis @ basis.T).norm(dim=1)
    return TokenScores(-distance.numpy(), basis.shape[1])


def span(update: Tensor) -> Tensor:
    """Return an orthonormal basis [d, k] of the space that the rows of an update [n, d] span."""
    _, values, rows = torch.linalg.svd(update.double(), full_matrices=False)
    count = int((values > TOLERANCE * values[0]).sum()) if len(values) and values[0] > 0 else 0
    return rows[: min(count, int(LARGEST_SHARE * update.shape[1]))].T


def _parts(batch: Batch, vocabulary: np.ndarray) -> list[np.ndarray]:
    """Cut the vocabulary into pieces of the length of a sequence."""
    size = batch["input_ids"].shape[1]
    return [vocabulary[first : first + size] for first in range(0, len(vocabulary), size)]


def _first_layer(context: PhaseContext, seen: Seen, batch: Batch, vocabulary: np.ndarray) -> str | None:
    """Return the first layer in the upload whose input at a token depends on the token, and on nothing else."""
    update = seen.parts["weights"]
    names = [
        f"{path}.weight"
        for path, layer in context.network.module.named_modules()
        if not isinstance(layer, nn.Embedding) and f"{path}.weight" in update and update[f"{path}.weight"].dim() == 2
    ]
    part = _parts(batch, vocabulary)[0]
    order = np.random.default_rng(0).permutation(len(part))
    straight = _inputs(context, seen.received, batch, part, names)
    mixed = _inputs(context, seen.received, batch, part[order], names)
    for name, inputs in straight.items():  # in the order of execution
        scale = float(inputs.norm(dim=1).mean())
        spread = float((inputs - inputs[:1]).norm(dim=1).mean())
        moved = float((inputs[order] - mixed[name]).norm(dim=1).mean())
        if spread > SAME * scale and moved < SAME * scale and bool((update[name] != 0).any()):
            return name
    return None


def _inputs(
    context: PhaseContext, received: Weights, batch: Batch, tokens: np.ndarray, names: list[str]
) -> dict[str, Tensor]:
    """Run the model on these tokens at the prompt's position; return the input of each layer at each token, [n, d]."""
    length = batch["input_ids"].shape[1]
    row = torch.zeros(1, length, dtype=batch["input_ids"].dtype)
    row[0, : len(tokens)] = torch.from_numpy(tokens)
    changed = {
        key: value[:, :1].expand(-1, length, *value.shape[2:]).clone()
        if value.dim() >= 2 and value.shape[1] == length and key not in ("input_ids", "labels")
        else value
        for key, value in batch.items()
    } | {"input_ids": row}
    found: dict[str, Tensor] = {}
    module = context.network.module.eval()
    modules = dict(module.named_modules())

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            if name not in found and given[0].dim() == 3 and given[0].shape[1] >= length:
                found[name] = given[0][0, : len(tokens)].detach()

        return hook

    handles = [modules[name.removesuffix(".weight")].register_forward_pre_hook(keep(name)) for name in names]
    try:
        with torch.no_grad(), call_context(ModelCall()), context.network.swapped(received):
            context.phase.objective.run(module, model_inputs(context, changed))
    finally:
        for handle in handles:
            handle.remove()
    return found
