"""Asynchronous updates as the server adds them up: discounted by their staleness, or turned into models.

Like `contributions`, nothing here is sent: a worker computes in place of the server. Tensors are stacked [n, …].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from simfl.experiment import Asynchronous
from simfl.protocol import Parts, Weights
from simfl.stacking import StackedParts
from simfl.training.plan import ClientPlan
from simfl.transport.upload import BUFFERS

MIXED = ("weights", BUFFERS)  # parts that are changes of what clients received


def stale_terms(
    settings: Asynchronous, sent: Parts, version: Parts, current: Parts, clients: Sequence[ClientPlan]
) -> tuple[Parts, list[float], bool]:
    """Return the terms of n clients, the factor of each, and whether the terms are other tensors than the uploads.

    Args:
        settings: Settings of the phase.
        sent: Decoded uploads, [n, …].
        version: What each client received, see `simfl.stacking.StackedParts`.
        current: The download of the round, which is the current model.
        clients: Plans of the clients.
    """
    lags = _lags(sent, version, current, len(clients)) if settings.reads_versions else {}
    factors = _factors(settings, sent, lags, clients)
    if settings.mix == "deltas" or not lags:
        return sent, factors, False
    mixed = {part: {name: t + lags[part][name] for name, t in sent[part].items()} for part in lags}
    return {**sent, **mixed}, factors, True


def _lags(sent: Parts, version: Parts, current: Parts, n: int) -> Parts:
    """Return version − current of n clients, [n, …]; no parts if all clients received the current model."""
    if version is current:
        return {}
    stacked = isinstance(version, StackedParts)

    def lag(tensor: Tensor, now: Tensor) -> Tensor:
        found = tensor.to(torch.promote_types(tensor.dtype, torch.float32)) - now
        return found if stacked else found.expand(n, *found.shape)

    return {
        part: {name: lag(t, current[part][name]) for name, t in version[part].items()} for part in MIXED if part in sent
    }


def _factors(settings: Asynchronous, sent: Parts, lags: Parts, clients: Sequence[ClientPlan]) -> list[float]:
    """Return the factor of each client's update."""
    ages = [0 if client.origin is None else client.origin.staleness for client in clients]
    if not settings.staleness.needs_norms:
        return [settings.staleness.factor(age) for age in ages]
    norms = _norms(sent["weights"])
    distances = _norms(lags["weights"]) if lags else [0.0] * len(clients)
    return [settings.staleness.factor_of_norms(*facts) for facts in zip(ages, distances, norms, strict=True)]


def _norms(tensors: Weights) -> list[float]:
    """Return the norm of each row of tensors [n, …]."""
    squares = [t.double().square().reshape(len(t), -1).sum(1) for t in tensors.values()]
    found: list[float] = torch.stack(squares).sum(0).sqrt().tolist()
    return found
