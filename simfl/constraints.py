"""Numbers and names with limits, as types for the fields of settings.

`rounds: Count` refuses 0. A plain `int` or `float` field refuses what is negative or not finite; `Signed` allows
any finite number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple


class Limit(NamedTuple):
    """What a value must hold, and how an error line says it."""

    words: str
    holds: Callable[[Any], bool]


MOST = (1 << 63) - 1  # of numbers as tables and generators take them
Whole = Annotated[int, Limit("a whole number of at least 0", lambda n: 0 <= n <= MOST)]
Count = Annotated[int, Limit("a whole number of at least 1", lambda n: 1 <= n <= MOST)]
Seed = Annotated[int, Limit("a whole number from 0 to 2**63 - 1", lambda n: 0 <= n <= MOST)]
PowerOfTwo = Annotated[int, Limit("a power of two", lambda n: n > 0 and n & (n - 1) == 0)]

Amount = Annotated[float, Limit("a number of at least 0", lambda x: x >= 0 and math.isfinite(x))]
Positive = Annotated[float, Limit("a number above 0", lambda x: x > 0 and math.isfinite(x))]
Fraction = Annotated[float, Limit("a number above 0 and at most 1", lambda x: 0 < x <= 1)]
Signed = Annotated[float, Limit("a finite number", math.isfinite)]

FileName = Annotated[
    str,
    Limit(
        "letters, digits, '.', '_' and '-', not beginning with '.'", lambda s: bool(re.fullmatch(r"[\w-][\w.-]*", s))
    ),
]
