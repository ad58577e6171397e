"""The special pieces of self-pretraining: sentinels that stand for a hidden word, and places on a page.

In UDOP's order behind the n pieces of text: 100 each of <extra_id_i>, <extra_l_id_i>, </extra_l_id_i>, <extra_t_id_i>
and </extra_t_id_i>, 501 of <loc_i>, 200 of <other_i>, all falling; with T5's 32,000 pieces 33,201 in all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tokenizers

SENTINELS, PLACES, OTHERS = 100, 501, 200
GROUPS = {
    "extra_id": SENTINELS, "extra_l_id": SENTINELS, "/extra_l_id": SENTINELS, "extra_t_id": SENTINELS,
    "/extra_t_id": SENTINELS, "loc": PLACES, "other": OTHERS,
}  # fmt: skip
COUNT = sum(GROUPS.values())


@dataclass(frozen=True)
class Marks:
    """Ids of the special pieces, int64 by number."""

    both: np.ndarray  # for a word of which text and place are hidden, [100]
    layout: np.ndarray  # before a word of which the place is hidden
    layout_end: np.ndarray  # behind it
    text: np.ndarray  # before the place of a word of which the text is hidden
    text_end: np.ndarray  # behind it
    place: np.ndarray  # of a coordinate in steps of 1/500, [501]


def marked(text: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy that knows the special pieces behind its own; those it has stay where they are."""
    found = tokenizers.Tokenizer.from_str(text.to_str())
    names = [name for kind, count in GROUPS.items() for name in reversed(_names(kind, count))]
    found.add_special_tokens([name for name in names if found.token_to_id(name) is None])
    return found


def marks(text: tokenizers.Tokenizer) -> Marks:
    """The ids of a `marked` tokenizer's special pieces."""

    def ids(kind: str) -> np.ndarray:
        return np.array([text.token_to_id(name) for name in _names(kind, GROUPS[kind])], np.int64)

    return Marks(*(ids(kind) for kind in GROUPS if kind != "other"))


def _names(kind: str, count: int) -> list[str]:
    return [f"<{kind}_{number}>" for number in range(count)]
