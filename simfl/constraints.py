"""Types of settings with a range, such as `rounds: PositiveInt`, which refuses 0.

A plain `int` or `float` setting refuses negative and non-finite numbers; `FiniteFloat` allows negative ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple


class Constraint(NamedTuple):
    """A condition on a setting's value."""

    description: str  # completes the error message "<value> is not ..."
    check: Callable[[Any], bool]


MAX_INT = (1 << 63) - 1  # largest integer of tables and random generators
NonNegativeInt = Annotated[int, Constraint("a whole number of at least 0", lambda n: 0 <= n <= MAX_INT)]
PositiveInt = Annotated[int, Constraint("a whole number of at least 1", lambda n: 1 <= n <= MAX_INT)]
Seed = Annotated[int, Constraint("a whole number from 0 to 2**63 - 1", lambda n: 0 <= n <= MAX_INT)]
Port = Annotated[int, Constraint("a port from 0 to 65535", lambda n: 0 <= n <= 65535)]
PowerOfTwo = Annotated[int, Constraint("a power of two", lambda n: n > 0 and n & (n - 1) == 0)]

NonNegativeFloat = Annotated[float, Constraint("a number of at least 0", lambda x: x >= 0 and math.isfinite(x))]
PositiveFloat = Annotated[float, Constraint("a number above 0", lambda x: x > 0 and math.isfinite(x))]
Fraction = Annotated[float, Constraint("a number above 0 and at most 1", lambda x: 0 < x <= 1)]
ProperFraction = Annotated[float, Constraint("a number above 0 and below 1", lambda x: 0 < x < 1)]
FiniteFloat = Annotated[float, Constraint("a finite number", math.isfinite)]

FileName = Annotated[
    str,
    Constraint(
        "letters, digits, '.', '_' and '-', not beginning with '.'", lambda s: bool(re.fullmatch(r"[\w-][\w.-]*", s))
    ),
]
