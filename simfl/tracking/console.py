"""A Rich console that shows text of others without obeying it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from simfl.safe_text import printable


class SafeConsole(Console):
    """A console whose texts are made printable after their layout; its own colours and cursor movements stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object, with control characters and secrets replaced in every piece of text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
