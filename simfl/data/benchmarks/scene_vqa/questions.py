"""What can be asked about a picture, and which of it is asked, so that no answer is more likely than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.scene_vqa.plan import Placed, Plan

NAMES = {  # of the cells, by the side of the grid
    2: ("top left", "top right", "bottom left", "bottom right"),
    3: (
        "top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right",
    ),
}  # fmt: skip


class Question(NamedTuple):
    """One question; `task` is its kind."""

    task: str
    text: str
    answer: str


Ask = Callable[[Plan, int], Iterator[tuple[str, str]]]  # a picture and the side of its grid -> texts and answers


def exists(plan: Plan, grid: int) -> Iterator[tuple[str, str]]:
    """Is there one?"""
    for thing in plan.things:
        yield f"Is there {thing.one}?", "yes" if plan.of(thing.name) else "no"


def count(plan: Plan, grid: int) -> Iterator[tuple[str, str]]:
    """How many?"""
    for thing in plan.things:
        yield f"How many {thing.many} are there?", str(len(plan.of(thing.name)))


def category(plan: Plan, grid: int) -> Iterator[tuple[str, str]]:
    """What kind of thing is in a place?"""
    for one in plan.placed:
        yield f"What kind of thing is at the {NAMES[grid][one.row * grid + one.column]}?", one.thing.category


def colour(plan: Plan, grid: int) -> Iterator[tuple[str, str]]:
    """Which colour has the only one?"""
    for one in _single(plan):
        if one.thing.painted:
            yield f"What colour is the {one.thing.name}?", one.colour


def relation(plan: Plan, grid: int) -> Iterator[tuple[str, str]]:
    """On which side of one is another, where it is clear?"""
    single = _single(plan)
    for one in single:
        for other in single:
            right, down = other.column - one.column, other.row - one.row
            if abs(right) != abs(down):
                across, along = ("left", "right"), ("above", "below")
                side = across[right > 0] if abs(right) > abs(down) else along[down > 0]
                yield f"Where is the {other.thing.name} from the {one.thing.name}?", side


def comparison(plan: Plan, grid: int) -> Iterator[tuple[str, str]]:
    """Are there more of one than of another, where both are there and not as often?"""
    there = {one.thing.name: one.thing for one in plan.placed}
    for one in there.values():
        for other in there.values():
            more, less = len(plan.of(one.name)), len(plan.of(other.name))
            if more != less:
                yield f"Are there more {one.many} than {other.many}?", "yes" if more > less else "no"


def next_to(plan: Plan, grid: int) -> Iterator[tuple[str, str]]:
    """What is beside, above or below the only one, where things of one kind alone are?"""
    for one in _single(plan):
        near = {o.thing.name for o in plan.placed if abs(o.row - one.row) + abs(o.column - one.column) == 1}
        if len(near) == 1:
            yield f"What is next to the {one.thing.name}?", near.pop()


def _single(plan: Plan) -> list[Placed]:
    return [one for one in plan.placed if len(plan.of(one.thing.name)) == 1]


TASKS: dict[str, Ask] = {
    "exists": exists,
    "count": count,
    "category": category,
    "colour": colour,
    "relation": relation,
    "comparison": comparison,
    "next_to": next_to,
}


class Balance:
    """Chooses questions picture by picture: the kind asked least, then the answer that its wording had least."""

    def __init__(self, grid: int, tasks: Sequence[str]) -> None:
        self.grid, self.tasks = grid, tasks
        self._seen: Counter[tuple[str, ...]] = Counter()

    def ask(self, plan: Plan, number: int, dice: Dice) -> list[Question]:
        """At most `number` questions of different kinds."""
        possible = {task: sorted(set(TASKS[task](plan, self.grid))) for task in self.tasks}
        kinds = sorted((task for task in possible if possible[task]), key=lambda t: (self._seen[plan.scene, t], t))
        return [self._choose(plan.scene, task, possible[task], dice) for task in kinds[:number]]

    def _choose(self, scene: str, task: str, possible: Sequence[tuple[str, str]], dice: Dice) -> Question:
        shuffled = dice.sample(possible, len(possible))
        text, answer = min(shuffled, key=lambda pair: (self._seen[scene, task, "", pair[1]], self._seen[pair]))
        for key in ((scene, task), (scene, task, "", answer), (text, answer)):
            self._seen[key] += 1
        return Question(task, text, answer)


def fair(asked: Sequence[Question]) -> list[bool]:
    """Which questions stay so that each wording with answers yes and no has both equally often; the first ones do."""
    counts = Counter((one.text, one.answer) for one in asked)
    stays, taken = [], Counter[tuple[str, str]]()
    for one in asked:
        limit = min(counts[one.text, "yes"], counts[one.text, "no"])
        taken[one.text, one.answer] += 1
        stays.append(one.answer not in ("yes", "no") or taken[one.text, one.answer] <= limit)
    return stays
