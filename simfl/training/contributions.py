"""The terms that the server adds up for each client, computed from its decoded upload where the upload arrives.

Nothing here is sent: a worker computes in place of the server, so that sums over clients can be taken where the clients
are trained. Tensors are stacked [n, …].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from simfl.aggregation.round import FACTORS, PRODUCTS
from simfl.low_rank import LowRankPair
from simfl.protocol import ClientUpdate, Parts, Weights
from simfl.stacking import map_rows
from simfl.training.context import PhaseContext


def reduction(context: PhaseContext) -> Mapping[str, str]:
    """Return the rule by which each part of the contributions is added up."""
    rules = context.phase.algorithm.reduce
    return {**rules, FACTORS: "stack", PRODUCTS: "weighting"} if context.adds_products else rules


def contributions(
    context: PhaseContext, sent: Parts, received: Parts, update: ClientUpdate, num_sampled: int
) -> tuple[Parts, bool]:
    """Return the terms of n clients, and whether they are other tensors than the uploads."""
    algorithm = context.phase.algorithm
    found, changed = sent, False
    if algorithm.has_contributions():
        one = map_rows(lambda own, facts: algorithm.contribution(own, received, facts), len(update.client))
        found, changed = one(sent, update), True
    if not context.adds_products or not context.pairs:
        return found, changed
    known = map_rows(lambda own, facts: algorithm.known_weights(own, received, facts), len(update.client))
    return {**found, **_product_terms(context, known(sent, update), num_sampled)}, changed


def _product_terms(context: PhaseContext, weights: Weights, num_sampled: int) -> Parts:
    """Return the factors of each pair, or its product where the factors of all clients together are larger."""
    factors: Weights = {}
    products: Weights = {}
    for pair in context.pairs:
        if is_summed(pair, num_sampled):
            products[pair.layer] = torch.func.vmap(pair.product)({name: weights[name] for name in (pair.down, pair.up)})
        else:
            factors |= {name: weights[name] for name in (pair.down, pair.up)}
    return {part: terms for part, terms in ((FACTORS, factors), (PRODUCTS, products)) if terms}


def is_summed(pair: LowRankPair, num_sampled: int) -> bool:
    """Return whether the sum of a pair's products takes fewer numbers than the factors of all sampled clients."""
    return num_sampled * pair.rank * pair.values_per_rank > pair.rows * pair.columns
