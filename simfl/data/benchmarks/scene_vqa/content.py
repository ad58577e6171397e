"""What pictures are made of: things with their drawings, and backgrounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from simfl.data.benchmarks.scene_vqa import emoji, stamps
from simfl.data.benchmarks.scene_vqa.things import CATEGORIES, COLOURS, MOST, SIDES, Thing


@dataclass(frozen=True)
class Content:
    """Six scenes of things, and where their drawings and backgrounds come from."""

    scenes: Mapping[str, tuple[Thing, ...]]
    file: Callable[[str], Path]  # a drawing's picture; DataError says what to install
    background: Callable[[str, str, int], Image.Image]  # of a scene's album, so many pixels square
    sources: tuple[str, ...]
    licence: str

    @property
    def answers(self) -> tuple[str, ...]:
        """All that any question is answered with; an answer's label is its place."""
        names = sorted(thing.name for things in self.scenes.values() for thing in things)
        return ("no", "yes", *map(str, range(MOST + 1)), *COLOURS, *SIDES, *CATEGORIES, *names)


CONTENTS: dict[str, Content] = {
    "emoji": Content(emoji.SCENES, emoji.file, emoji.background, (f"{emoji.PACKAGE} {emoji.VERSION}",), emoji.LICENCE),
    "stamps": Content(stamps.SCENES, stamps.file, stamps.background, tuple(stamps.PACKAGES.values()), stamps.LICENCE),
}
