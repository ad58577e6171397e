"""Questions about a picture, chosen so that no answer is more likely than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.benchmarks.scene_vqa.plan import PlacedThing, ScenePlan

CELL_NAMES = {  # by the side of the grid
    2: ("top left", "top right", "bottom left", "bottom right"),
    3: (
        "top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right",
    ),
}  # fmt: skip


class SceneQuestion(NamedTuple):
    """One question about a picture."""

    task: str  # key of `TASKS`
    text: str
    answer: str


AskTask = Callable[[ScenePlan, int], Iterator[tuple[str, str]]]  # takes a plan and the side of its grid


def exists(plan: ScenePlan, grid: int) -> Iterator[tuple[str, str]]:
    """Ask whether a thing is there."""
    for thing in plan.things:
        yield f"Is there {thing.one}?", "yes" if plan.named(thing.name) else "no"


def count(plan: ScenePlan, grid: int) -> Iterator[tuple[str, str]]:
    """Ask for the number of things of a kind."""
    for thing in plan.things:
        yield f"How many {thing.many} are there?", str(len(plan.named(thing.name)))


def category(plan: ScenePlan, grid: int) -> Iterator[tuple[str, str]]:
    """Ask for the category of the thing in a cell."""
    for placed in plan.placed:
        cell = CELL_NAMES[grid][placed.row * grid + placed.column]
        yield f"What kind of thing is at the {cell}?", placed.thing.category


def colour(plan: ScenePlan, grid: int) -> Iterator[tuple[str, str]]:
    """Ask for the colour of the only thing of a kind."""
    for placed in _unique(plan):
        if placed.thing.painted:
            yield f"What colour is the {placed.thing.name}?", placed.colour


def relation(plan: ScenePlan, grid: int) -> Iterator[tuple[str, str]]:
    """Ask on which side of one thing another is, unless it is equally far in both directions."""
    unique = _unique(plan)
    for placed in unique:
        for other in unique:
            right, down = other.column - placed.column, other.row - placed.row
            if abs(right) != abs(down):
                across, along = ("left", "right"), ("above", "below")
                side = across[right > 0] if abs(right) > abs(down) else along[down > 0]
                yield f"Where is the {other.thing.name} from the {placed.thing.name}?", side


def comparison(plan: ScenePlan, grid: int) -> Iterator[tuple[str, str]]:
    """Ask which of two kinds of things occurs more often, if both occur and their numbers differ."""
    present = {placed.thing.name: placed.thing for placed in plan.placed}
    for one in present.values():
        for other in present.values():
            more, less = len(plan.named(one.name)), len(plan.named(other.name))
            if more != less:
                yield f"Are there more {one.many} than {other.many}?", "yes" if more > less else "no"


def next_to(plan: ScenePlan, grid: int) -> Iterator[tuple[str, str]]:
    """Ask for the kind of thing in the cells next to a thing, if only one kind is there."""
    for placed in _unique(plan):
        near = {o.thing.name for o in plan.placed if abs(o.row - placed.row) + abs(o.column - placed.column) == 1}
        if len(near) == 1:
            yield f"What is next to the {placed.thing.name}?", near.pop()


def _unique(plan: ScenePlan) -> list[PlacedThing]:
    return [placed for placed in plan.placed if len(plan.named(placed.thing.name)) == 1]


TASKS: dict[str, AskTask] = {
    "exists": exists,
    "count": count,
    "category": category,
    "colour": colour,
    "relation": relation,
    "comparison": comparison,
    "next_to": next_to,
}


class QuestionBalancer:
    """Greedy choice of questions: the task asked least so far, then the answer that it had least so far."""

    def __init__(self, grid: int, tasks: Sequence[str]) -> None:
        self.grid, self.tasks = grid, tasks
        self._counts: Counter[tuple[str, ...]] = Counter()

    def ask(self, plan: ScenePlan, number: int, random: RandomStream) -> list[SceneQuestion]:
        """Choose at most `number` questions of different tasks."""
        possible = {task: sorted(set(TASKS[task](plan, self.grid))) for task in self.tasks}
        tasks = sorted((task for task in possible if possible[task]), key=lambda t: (self._counts[plan.scene, t], t))
        return [self._choose(plan.scene, task, possible[task], random) for task in tasks[:number]]

    def _choose(
        self, scene: str, task: str, possible: Sequence[tuple[str, str]], random: RandomStream
    ) -> SceneQuestion:
        shuffled = random.sample(possible, len(possible))
        text, answer = min(shuffled, key=lambda pair: (self._counts[scene, task, "", pair[1]], self._counts[pair]))
        for key in ((scene, task), (scene, task, "", answer), (text, answer)):
            self._counts[key] += 1
        return SceneQuestion(task, text, answer)


def balance_yes_no(questions: Sequence[SceneQuestion]) -> list[bool]:
    """Return which questions to keep so that each wording has as many answers yes as no. The first ones are kept."""
    counts = Counter((question.text, question.answer) for question in questions)
    kept, taken = [], Counter[tuple[str, str]]()
    for question in questions:
        limit = min(counts[question.text, "yes"], counts[question.text, "no"])
        taken[question.text, question.answer] += 1
        kept.append(question.answer not in ("yes", "no") or taken[question.text, question.answer] <= limit)
    return kept
