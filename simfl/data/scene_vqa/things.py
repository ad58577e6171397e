"""What can be in a picture: six scenes with six kinds of things each, and the drawings that stand for them.

A drawing is the number of an emoji in Unicode. Those under `novel` are held out: only the split `test_novel` has them.
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
SCENES: dict[str, tuple[Thing, ...]] = {
    "farm": (
        Thing("cow", "animal", ("1f404", "1f42e", "1f402"), ("1f403",)),
        Thing("pig", "animal", ("1f416", "1f437"), ("1f417",)),
        Thing("house", "building", ("1f3e0", "1f3e1"), ("1f3da",), painted=True),
        Thing("tent", "building", ("26fa",), painted=True),
        Thing("tractor", "vehicle", ("1f69c",), painted=True),
        Thing("horse", "animal", ("1f40e",), ("1f434",)),
    ),
    "sea": (
        Thing("fish", "animal", ("1f41f", "1f420"), ("1f421",), plural="fish", painted=True),
        Thing("whale", "animal", ("1f40b", "1f433")),
        Thing("boat", "vehicle", ("26f5", "1f6a4", "1f6e5"), ("1f6f6",), painted=True),
        Thing("anchor", "tool", ("2693",)),
        Thing("swimsuit", "clothing", ("1f459", "1fa73"), ("1fa71",), painted=True),
        Thing("octopus", "animal", ("1f419",), ("1f991",), plural="octopuses"),
    ),
    "kitchen": (
        Thing("bread", "food", ("1f35e", "1f956"), ("1f950",), plural="breads"),
        Thing("cake", "food", ("1f370", "1f382"), ("1f9c1",)),
        Thing("knife", "tool", ("1f52a",), plural="knives"),
        Thing("spoon", "tool", ("1f944",)),
        Thing("cup", "container", ("2615", "1f964"), ("1f375",), painted=True),
        Thing("bowl", "container", ("1f963", "1f372"), ("1f35c",), painted=True),
    ),
    "garden": (
        Thing("flower", "plant", ("1f337", "1f339", "1f33b", "1f33c"), ("1f33a",), painted=True),
        Thing("tree", "plant", ("1f333", "1f332")),
        Thing("apple", "food", ("1f34e", "1f34f")),
        Thing("bird", "animal", ("1f426", "1f54a"), ("1f99c",), painted=True),
        Thing("snail", "animal", ("1f40c",)),
        Thing("basket", "container", ("1f9fa",), painted=True),
    ),
    "street": (
        Thing("car", "vehicle", ("1f697", "1f699"), ("1f695",), painted=True),
        Thing("bus", "vehicle", ("1f68c", "1f68e"), ("1f68d",), plural="buses", painted=True),
        Thing("hat", "clothing", ("1f3a9", "1f452"), ("1f9e2",), painted=True),
        Thing("shoe", "clothing", ("1f45f", "1f45e"), ("1f97e",), painted=True),
        Thing("shop", "building", ("1f3ea", "1f3ec"), ("1f3e8",)),
        Thing("dog", "animal", ("1f415", "1f429"), ("1f436",)),
    ),
    "workshop": (
        Thing("hammer", "tool", ("1f528",), ("2692",)),
        Thing("saw", "tool", ("1fa9a",)),
        Thing("wrench", "tool", ("1f527",), plural="wrenches"),
        Thing("box", "container", ("1f4e6",), ("1f5c3",), plural="boxes", painted=True),
        Thing("bucket", "container", ("1faa3",), painted=True),
        Thing("glove", "clothing", ("1f9e4",), ("1f94a",), painted=True),
    ),
}
THINGS: dict[str, Thing] = {thing.name: thing for things in SCENES.values() for thing in things}
MOST = 5  # things in a picture
ANSWERS: tuple[str, ...] = (
    "no", "yes", *map(str, range(MOST + 1)), *COLOURS, *SIDES, *CATEGORIES, *sorted(THINGS),
)  # fmt: skip
