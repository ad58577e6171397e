"""What a picture shows: which things, in which cells of a grid, in which colours. No pixel is drawn here."""

from __future__ import annotations

from dataclasses import dataclass

from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.scene_vqa.things import COLOURS, MOST, Thing

ALBUMS = 10  # of a scene: pictures of one album have one background


@dataclass(frozen=True)
class Placed:
    """One thing in a picture. Positions and sizes are shares of a cell."""

    thing: Thing
    drawing: str
    colour: str  # "" for things that have their own
    row: int
    column: int
    size: float
    right: float  # how far the middle lies from that of the cell
    down: float
    mirrored: bool


@dataclass(frozen=True)
class Plan:
    """One picture."""

    id: str
    scene: str
    album: str
    things: tuple[Thing, ...]  # what the scene may have
    placed: tuple[Placed, ...]  # row by row

    def of(self, name: str) -> list[Placed]:
        """All things of this name."""
        return [one for one in self.placed if one.thing.name == name]


def plan(
    seed: int,
    split: str,
    scene: str,
    known: tuple[Thing, ...],
    number: int,
    grid: int,
    fewest: int,
    most: int,
    simple: bool = False,
) -> Plan:
    """Picture `number` of a scene with the things `known` in a split: `fewest` to `most` things on a `grid` x `grid`.

    In half of the pictures all kinds of things differ; in the other half one kind is there 1 to `most` times, each
    number equally likely. In `test_novel` every kind that has held out drawings shows these, and at least one does.
    `simple` things have one drawing a kind and one size, and lie in the middle of their cells.
    """
    dice = Dice("scene_vqa", seed, split, scene, number)
    novel = split == "test_novel"
    leads = [thing for thing in known if thing.novel] if novel else list(known)
    lead = dice.pick(leads)
    others = dice.sample([thing for thing in known if thing is not lead], len(known) - 1)
    if dice.below(2):
        things = [lead, *others][: dice.between(fewest, most)]
    else:
        things = [lead] * dice.between(1, most)
        room = max(fewest - len(things), dice.between(0, most - len(things)))
        things += [dice.pick(others) for _ in range(room)]
    cells = sorted(dice.sample(range(grid * grid), len(things)))
    order = dice.sample(things, len(things))
    placed = tuple(
        _placed(thing, divmod(cell, grid), novel, simple, dice) for thing, cell in zip(order, cells, strict=True)
    )
    return Plan(f"{split}-{scene}-{number}", scene, f"{scene}-{dice.below(ALBUMS)}", known, placed)


def _placed(thing: Thing, cell: tuple[int, int], novel: bool, simple: bool, dice: Dice) -> Placed:
    drawings = thing.novel if novel and thing.novel else thing.drawings
    colour = dice.pick(tuple(COLOURS)) if thing.painted else ""
    if simple:
        return Placed(thing, drawings[0], colour, *cell, 0.9, 0.0, 0.0, False)
    drawing = dice.pick(drawings)
    size = 0.7 + 0.25 * dice.real()
    shift = 0.5 * (1 - size)
    mirrored = dice.below(2) == 1 and thing.category != "building"  # some have letters
    right, down = (shift * (2 * dice.real() - 1) for _ in range(2))
    return Placed(thing, drawing, colour, *cell, size, right, down, mirrored)


assert MOST < 10  # counts are one digit
