"""A kind of thing with its drawings, and the words that answer questions about things.

Drawings under `novel` are held out: only the split `test_novel` has them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thing:
    """One kind of thing."""

    name: str  # as questions and answers call it
    category: str  # what kind of thing it is
    drawings: tuple[str, ...]  # seen in training
    novel: tuple[str, ...] = ()  # held out
    plural: str = ""  # if it is not the name and an s
    painted: bool = False  # comes in every colour, so that its name does not tell it

    @property
    def many(self) -> str:
        """The plural."""
        return self.plural or f"{self.name}s"

    @property
    def one(self) -> str:
        """The name with its article."""
        return f"{'an' if self.name[0] in 'aeio' else 'a'} {self.name}"


CATEGORIES = ("animal", "building", "clothing", "container", "food", "plant", "tool", "vehicle")
SIDES = ("left", "right", "above", "below")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "yellow": (246, 200, 30),
    "green": (50, 160, 60),
    "blue": (40, 90, 220),
    "purple": (140, 60, 180),
    "black": (45, 45, 50),
}
MOST = 5  # things in a picture
