"""Measures of clipping and noise in the rounds of private runs, for the choice of a clip norm.

Norms of single units touch the data and have no noise. Columns that hold them begin with `not_for_release:`, in tables,
at trackers and in reports: epsilon does not cover them. The ratio of signal to noise is computed from the released
average alone, so that it may be published with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simfl.protocol import Weights
from simfl.weights import squared_norm

NOT_FOR_RELEASE = "not_for_release"  # prefix of columns that epsilon does not cover


def clipping_metrics(norms: Sequence[float], clip: float) -> dict[str, float]:
    """Return the share of units that were clipped, and the median and 90 % quantile of their norms before clipping.

    Units that count as zero, because a value is not finite, are left out. Empty if there are none.
    """
    finite = np.array([norm for norm in norms if math.isfinite(norm)])
    if not len(finite):
        return {}
    found = {
        "share_clipped": float((finite > clip).mean()),
        "norm_median": float(np.quantile(finite, 0.5)),
        "norm_90": float(np.quantile(finite, 0.9)),
    }
    return {f"{NOT_FOR_RELEASE}:{name}": value for name, value in found.items()}


def signal_to_noise(average: Weights, deviation: float) -> float:
    """Return an estimate of the norm of an average without its noise, over the root mean square norm of the noise.

    The squared norm of a noisy average is, in expectation, that of the signal plus d·deviation². 0 where noise alone
    would have this norm.

    Args:
        average: The released average, of d values.
        deviation: Standard deviation of the noise in each value, above 0.
    """
    noise = deviation**2 * sum(t.numel() for t in average.values())
    return math.sqrt(max(0.0, float(squared_norm(average)) / noise - 1.0)) if noise else 0.0
