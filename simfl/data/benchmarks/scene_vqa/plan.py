"""Plans of pictures: which things, in which cells of a grid, in which colours. Nothing is drawn here."""

from __future__ import annotations

from dataclasses import dataclass

from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.benchmarks.scene_vqa.content import COLOURS, Thing

ALBUMS = 10  # per scene; pictures of one album have the same background


@dataclass(frozen=True)
class PlacedThing:
    """One thing in a picture. Offsets and sizes are shares of a cell."""

    thing: Thing
    drawing: str
    colour: str  # "" for things that keep their own
    row: int
    column: int
    size: float
    right: float  # offset of the centre from that of the cell
    down: float
    mirrored: bool


@dataclass(frozen=True)
class ScenePlan:
    """Contents of one picture."""

    id: str
    scene: str
    album: str
    things: tuple[Thing, ...]  # all things of the scene
    placed: tuple[PlacedThing, ...]  # ordered by row, then column

    def named(self, name: str) -> list[PlacedThing]:
        """Return all placed things of this name."""
        return [placed for placed in self.placed if placed.thing.name == name]


@dataclass(frozen=True)
class PlanSettings:
    """Settings shared by all pictures of a data set."""

    seed: int
    grid: int  # rows and columns
    fewest: int  # things in a picture
    most: int
    simple: bool = False  # one drawing per kind, of one size, in the centre of its cell


def plan_picture(settings: PlanSettings, split: str, scene: str, known: tuple[Thing, ...], number: int) -> ScenePlan:
    """Plan picture `number` of a scene, with some of the things `known`.

    In half of the pictures all kinds of things differ. In the other half one kind occurs 1 to `most` times, each
    number with equal probability. In `test_novel` every kind with held-out drawings shows these, and at least one such
    kind occurs.
    """
    random = RandomStream("scene_vqa", settings.seed, split, scene, number)
    fewest, most, grid = settings.fewest, settings.most, settings.grid
    novel = split == "test_novel"
    leads = [thing for thing in known if thing.novel] if novel else list(known)
    lead = random.choice(leads)
    others = random.sample([thing for thing in known if thing is not lead], len(known) - 1)
    if random.randrange(2):
        things = [lead, *others][: random.randint(fewest, most)]
    else:
        things = [lead] * random.randint(1, most)
        missing = max(fewest - len(things), random.randint(0, most - len(things)))
        things += [random.choice(others) for _ in range(missing)]
    cells = sorted(random.sample(range(grid * grid), len(things)))
    order = random.sample(things, len(things))
    placed = tuple(
        _place(thing, divmod(cell, grid), novel, settings.simple, random)
        for thing, cell in zip(order, cells, strict=True)
    )
    return ScenePlan(f"{split}-{scene}-{number}", scene, f"{scene}-{random.randrange(ALBUMS)}", known, placed)


def _place(thing: Thing, cell: tuple[int, int], novel: bool, simple: bool, random: RandomStream) -> PlacedThing:
    drawings = thing.novel if novel and thing.novel else thing.drawings
    colour = random.choice(tuple(COLOURS)) if thing.painted else ""
    if simple:
        return PlacedThing(thing, drawings[0], colour, *cell, 0.9, 0.0, 0.0, False)
    drawing = random.choice(drawings)
    size = 0.7 + 0.25 * random.random()
    shift = 0.5 * (1 - size)
    mirrored = random.randrange(2) == 1 and thing.category != "building"  # some have letters
    right, down = (shift * (2 * random.random() - 1) for _ in range(2))
    return PlacedThing(thing, drawing, colour, *cell, size, right, down, mirrored)
