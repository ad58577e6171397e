"""Contents of pictures: things with their drawings, backgrounds, and the words that answer questions about them.

Drawings under `novel` are held out: they are in the split `test_novel` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

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
MAX_THINGS = 5  # in a picture; counts must be one digit


@dataclass(frozen=True)
class Thing:
    """One kind of thing."""

    name: str  # in questions and answers
    category: str
    drawings: tuple[str, ...]  # seen in training
    novel: tuple[str, ...] = ()  # held out
    plural: str = ""  # empty: the name and an s
    painted: bool = False  # occurs in every colour, so that its name does not reveal it

    @property
    def many(self) -> str:
        """Return the plural."""
        return self.plural or f"{self.name}s"

    @property
    def one(self) -> str:
        """Return the name with its article."""
        return f"{'an' if self.name[0] in 'aeio' else 'a'} {self.name}"


@dataclass(frozen=True)
class Content:
    """Six scenes of things, and the source of their drawings and backgrounds."""

    scenes: Mapping[str, tuple[Thing, ...]]
    file: Callable[[str], Path]  # takes a drawing; raises DataError with the command that installs it
    background: Callable[[str, str, int], Image.Image]  # takes scene, album and side in pixels
    sources: tuple[str, ...]
    licence: str

    @property
    def answers(self) -> tuple[str, ...]:
        """Return all answers to all questions. The label of an answer is its index."""
        names = sorted(thing.name for things in self.scenes.values() for thing in things)
        return ("no", "yes", *map(str, range(MAX_THINGS + 1)), *COLOURS, *SIDES, *CATEGORIES, *names)
