"""The contract of matrix factorizations for correlated noise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simfl.factorizations.base import Factor, Factorization, Participation, Workload

ROUNDS, REPEATS = 9, 3
TOLERANCE = 1e-9


def check_factorization(factorization: Factorization) -> Iterator[str]:
    """Yield one line for each rule that a factorization breaks, against dense matrices in float64."""
    separation = max(2, factorization.least_separation)
    participation = Participation(ROUNDS, separation, min(REPEATS, -(-ROUNDS // separation)))
    workload = Workload((1.0,) * ROUNDS)
    factor = factorization.factor(participation, workload)
    dense = factor.matrix()
    if dense.shape != (ROUNDS, ROUNDS) or np.triu(dense, 1).any() or not (np.diag(dense) > 0).all():
        yield f"`matrix` is not lower triangular [{ROUNDS}, {ROUNDS}] with a positive diagonal"
        return
    if not np.array_equal(factorization.factor(participation, workload).matrix(), dense):
        yield "two factors for equal arguments differ"
    norms = np.linalg.norm(dense, axis=0)
    if abs(norms.max() - factor.column_norm) > TOLERANCE:
        yield f"`column_norm` is {factor.column_norm:.6g}, but the largest norm of a column is {norms.max():.6g}"
    if factor.sensitivity(1) < dense[0, 0] - TOLERANCE or factor.sensitivity(ROUNDS) < norms.max() - TOLERANCE:
        yield "`sensitivity` is smaller than the norm of a column"
    errors = ((workload.matrix() @ np.linalg.inv(dense)) ** 2).sum(1)
    if np.abs(errors - factor.squared_errors(workload)).max() > TOLERANCE * errors.max():
        yield "`squared_errors` are not the squared norms of the rows of A·C⁻¹"
    yield from _check_rows(factor, dense)


def _check_rows(factor: Factor, dense: np.ndarray) -> Iterator[str]:
    values = np.random.default_rng(0).standard_normal((len(dense), 5))
    rows, states = values.copy(), np.zeros((factor.num_states, 5))
    for number in range(len(dense)):
        factor.advance(number, rows[number], states)
    if np.abs(dense @ rows - values).max() > TOLERANCE:
        yield "`advance` does not solve C·W = Z"
