"""Inversion of page images: which patches of pages does the update of the patch projection contain?

A patch projection is a linear layer of the pixels of one patch, so its update is a sum of outer products with the
patches of a batch, and its rows span them as those of a layer of words span tokens (Petrov et al. 2024; Zhu and
Blaschko 2021 for images). Two attacks use the span:

    patch   Candidates are known: the pixels of each patch of the client's pages and of other pages are scored by their
            negative distance from the span.
    ink     Nothing is known but that paper is white and ink is sparse, so that the ink of each patch is a sparse vector
            of the span (Qu, Sun and Wright 2014). A patch is recovered if a vector found correlates with its ink by 0.9
            or more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from simfl.audit.view import Seen
from simfl.models.call_context import ModelCall, call_context
from simfl.protocol import Batch
from simfl.seeds import rng
from simfl.training.context import PhaseContext
from simfl.training.forward import model_inputs

RECOVERED = 0.9  # correlation of a recovered patch with the true one
STARTS, STEPS = 128, 200  # of the search for sparse vectors
THRESHOLD = 0.5  # of their values, in units of the root mean square
MAX_RANK = 128  # of spans that are searched
PLAIN = 1e-3  # spread of the pixels of a patch without ink, relative to that of all patches
TOLERANCE = 1e-5  # of singular values, relative to the largest one


@dataclass(frozen=True)
class PageScores:
    """The patches with ink of the client's pages and of other pages, by the span of an update.

    Attributes:
        present: Negative distance from the span of each patch of the client's pages, float64.
        absent: The same of the other pages.
        rank: Dimensions of the span.
        recovered: Share of the client's patches whose ink was found without candidates.
    """

    present: np.ndarray
    absent: np.ndarray
    rank: int
    recovered: float


def page_scores(context: PhaseContext, seen: Seen, pages: Batch, others: Batch) -> PageScores | None:
    """Attack the pages behind an upload; None if the upload has no patch projection that changed.

    Args:
        context: The phase.
        seen: The upload.
        pages: A batch of the examples that the client trained on.
        others: A batch of examples with other pages.
    """
    name = _projection(context, seen)
    if name is None or "pixel_values" not in pages:
        return None
    own, foreign = (torch.unique(_patches(context, seen, batch, name), dim=0) for batch in (pages, others))
    white = torch.cat([own, foreign]).max()
    own, foreign = (_with_ink(white - patches) for patches in (own, foreign))
    foreign = foreign[(torch.cdist(foreign, own) > 1e-6).all(1)] if len(own) and len(foreign) else foreign
    if not len(own) or not len(foreign):
        return None
    update = seen.parts["weights"][name].flatten(1).double()
    basis = _span(update)
    paper = torch.ones(basis.shape[0], 1, dtype=torch.float64)
    ink_basis = torch.linalg.qr(torch.cat([basis, paper], 1)).Q if basis.shape[1] else basis
    found = _sparsest(ink_basis.numpy())
    return PageScores(
        -_distance(white - own, basis), -_distance(white - foreign, basis), basis.shape[1], _share(own.numpy(), found)
    )


def _projection(context: PhaseContext, seen: Seen) -> str | None:
    """Return the weight of the first layer of the upload that reads patches of pixels without overlap."""
    update = seen.parts["weights"]
    for path, layer in context.network.module.named_modules():
        name = f"{path}.weight"
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == layer.stride and name in update:
            return name if bool((update[name] != 0).any()) else None
    return None


def _patches(context: PhaseContext, seen: Seen, batch: Batch, name: str) -> Tensor:
    """Return the pixels of all patches of a batch as the projection reads them, float64 [n, values]."""
    module = context.network.module.eval()
    layer = dict(module.named_modules())[name.removesuffix(".weight")]
    assert isinstance(layer, nn.Conv2d)
    found: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, given: found.append(given[0].detach()))
    try:
        with torch.no_grad(), call_context(ModelCall()), context.network.swapped(seen.received):
            context.phase.objective.run(module, model_inputs(context, batch))
    finally:
        handle.remove()
    cut = nn.functional.unfold(found[0].double(), layer.kernel_size, stride=layer.stride)
    return cut.transpose(1, 2).flatten(0, 1)


def _with_ink(ink: Tensor) -> Tensor:
    """Return the patches whose pixels differ."""
    spread = ink.std(1)
    return ink[spread > PLAIN * spread.max().clamp_min(1e-12)]


def _span(update: Tensor) -> Tensor:
    """Return an orthonormal basis [d, k] of the rows of an update [n, d]."""
    _, values, rows = torch.linalg.svd(update, full_matrices=False)
    count = int((values > TOLERANCE * values[0]).sum()) if values[0] > 0 else 0
    return rows[:count].T


def _distance(patches: Tensor, basis: Tensor) -> np.ndarray:
    """Return the share of the norm of each patch that is outside of a span, float64 [n]."""
    unit = patches / patches.norm(dim=1, keepdim=True).clamp_min(1e-30)
    found: np.ndarray = (unit - unit @ basis @ basis.T).norm(dim=1).numpy()
    return found


def _sparsest(basis: np.ndarray) -> np.ndarray:
    """Return sparse vectors of the span of an orthonormal basis [d, k], float64 [n, d].

    Alternating directions of Qu, Sun and Wright (2014): a vector is thresholded and projected onto the span in turn,
    from the projection of each of some pixels.
    """
    if not 0 < basis.shape[1] <= MAX_RANK:
        return np.zeros((0, len(basis)))
    _, kept, copies = np.unique(basis.round(9), axis=0, return_index=True, return_inverse=True)  # channels of grey
    basis = np.linalg.qr(basis[kept])[0]
    starts = rng(0, "sparsest").permutation(len(basis))[:STARTS]
    threshold = THRESHOLD / len(basis) ** 0.5
    found = basis[starts].T
    for _ in range(STEPS):
        vectors = basis @ (found / np.maximum(np.linalg.norm(found, axis=0), 1e-30))
        found = basis.T @ (np.sign(vectors) * np.maximum(np.abs(vectors) - threshold, 0.0))
    return (basis @ found).T[:, copies.reshape(-1)]


def _share(ink: np.ndarray, found: np.ndarray) -> float:
    """Return the share of patches [n, d] with which a vector found [m, d] correlates, up to its sign."""
    if not len(found):
        return 0.0
    one, other = (_standard(values) for values in (ink, found))
    return float((np.abs(one @ other.T).max(1) >= RECOVERED).mean())


def _standard(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean(1, keepdims=True)
    scaled: np.ndarray = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-30)
    return scaled
