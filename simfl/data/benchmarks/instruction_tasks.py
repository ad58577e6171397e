"""Instructions of four domains that a program writes: stand-ins for FlowerTune's data sets, without any download.

| domain | tasks | in place of |
|---|---|---|
| general | sort, count, spell and abbreviate words; capitals of countries | alpaca-gpt4 |
| finance | the sentiment of a sentence about a company | fingpt-sentiment-train |
| medical | the meaning of medical terms of Greek and Latin roots, and their terms | medical_meadow_medical_flashcards |
| code | one-line Python functions that filter, map and reduce a list | CodeAlpaca-20k |

Answers are computed, so they are right by construction; they are much more regular than those of people or of GPT-4.
The split `unseen` has wordings of the same tasks that are in no other split. The content of every example, such as the
words to sort or the term to explain, is in one split only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import pyarrow as pa

from simfl.constraints import PositiveInt
from simfl.data.base import Data, Dataset, Split
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.tables import TableBuilder

VERSION = 1
SPLITS = ("train", "valid", "test", "unseen")
SCHEMA = pa.schema(
    [("id", pa.string()), ("question", pa.string()), ("answers", pa.list_(pa.string())), ("field", pa.string())]
)
TRIES = 100  # drawings of a new example, per example that is wanted


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in _names(text))


WORDS = _names(
    """apple bridge candle dragon engine forest garden harbour island jacket kettle lantern market needle orange pencil
    quarry river saddle tunnel umbrella valley window yellow zipper anchor basket copper desert eagle feather glacier
    hammer insect jungle kitchen ladder marble nectar oyster pepper quiver rabbit silver timber urchin velvet walnut"""
)
CAPITALS = _pairs(
    """France:Paris Spain:Madrid Italy:Rome Germany:Berlin Austria:Vienna Poland:Warsaw Greece:Athens Portugal:Lisbon
    Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Ireland:Dublin Hungary:Budapest Romania:Bucharest
    Bulgaria:Sofia Croatia:Zagreb Serbia:Belgrade Iceland:Reykjavik Estonia:Tallinn Latvia:Riga Lithuania:Vilnius
    Egypt:Cairo Kenya:Nairobi Ghana:Accra Senegal:Dakar Tunisia:Tunis Morocco:Rabat Japan:Tokyo China:Beijing
    Thailand:Bangkok Vietnam:Hanoi Indonesia:Jakarta Nepal:Kathmandu Mongolia:Ulaanbaatar Iran:Tehran Iraq:Baghdad
    Canada:Ottawa Cuba:Havana Peru:Lima Chile:Santiago Ecuador:Quito Uruguay:Montevideo Australia:Canberra"""
)
NUMBERS = _names("zero one two three four five six seven eight nine")
COMPANIES = _names("Alder Birch Cedar Dorn Elm Fenn Gale Hale Ivor Juno Kern Lund Moss Nord Olin Penn Rhys Stor Tarn")
FIGURES = ("net sales", "operating profits", "new orders", "revenues", "earnings", "dividends")
MOVES = {
    "positive": ("rose {p} % to EUR {n} mn", "grew to EUR {n} mn from EUR {m} mn", "exceeded forecasts by {p} %"),
    "negative": ("fell {p} % to EUR {n} mn", "dropped to EUR {m} mn from EUR {n} mn", "missed forecasts by {p} %"),
    "neutral": ("will be published on {d} May", "are reported in euros", "were unchanged at EUR {n} mn"),
}
ROOTS = _pairs(
    """nephr:kidney hepat:liver gastr:stomach dermat:skin arthr:joint encephal:brain enter:intestine oste:bone
    neur:nerve rhin:nose ot:ear cyst:bladder phleb:vein angi:vessel pneumon:lung laryng:larynx pharyng:pharynx
    hyster:uterus splen:spleen aden:gland mast:breast chondr:cartilage tendon:tendon blephar:eyelid gloss:tongue
    gingiv:gum myel:marrow"""
)
ENDINGS = {
    "itis": "inflammation of the {}", "ectomy": "surgical removal of the {}", "algia": "pain in the {}",
    "opathy": "disease of the {}", "omegaly": "enlargement of the {}", "oplasty": "surgical repair of the {}",
    "oscopy": "examination of the inside of the {}", "otomy": "incision into the {}", "orrhaphy": "suture of the {}",
    "oma": "tumour of the {}",
}  # fmt: skip
FILTERS = {
    "the even numbers": "x % 2 == 0", "the odd numbers": "x % 2 == 1", "the positive numbers": "x > 0",
    "the negative numbers": "x < 0", "the numbers above {k}": "x > {k}", "the numbers below {k}": "x < {k}",
    "the multiples of {k}": "x % {k} == 0",
}  # fmt: skip
MAPS = {"": "x", " squared": "x ** 2", " doubled": "2 * x", " plus {j}": "x + {j}", " times {j}": "{j} * x"}
REDUCTIONS = {"list": "[{}]", "sum": "sum({})", "largest": "max({})", "smallest": "min({})", "count": "len([{}])"}


class Task(NamedTuple):
    """A task: its content, which is in one split only, its wordings, of which the last is unseen, and the answer."""

    content: str
    wordings: tuple[str, ...]
    answer: str


def _general(random: RandomStream) -> Task:
    kind = random.randrange(5)
    if kind == 0:
        country = random.choice(list(CAPITALS))
        texts = ("What is the capital of {}?", "Name the capital city of {}.", "Which city is the capital of {}?")
        return _task("capital", country, texts, CAPITALS[country])
    words = random.sample(WORDS, random.randint(3, 5))
    listed = ", ".join(words)
    if kind == 1:
        texts = (
            "Sort these words alphabetically: {}",
            "Put the words {} in alphabetical order.",
            "Arrange from A to Z: {}",
        )
        return _task("sort", listed, texts, ", ".join(sorted(words)))
    if kind == 2:
        texts = ("How many words are in this list: {}", "Count the words: {}", "Tell me the number of words in: {}")
        return _task("count", listed, texts, NUMBERS[len(words)])
    if kind == 3:
        texts = ("Make an acronym of the words {}.", "Abbreviate {}.", "Which letters do {} begin with?")
        return _task("acronym", listed, texts, "".join(word[0].upper() for word in words))
    texts = (
        "Reverse the order of these words: {}",
        "List {} from the last to the first.",
        "Say {} backwards.",
    )
    return _task("reverse", listed, texts, ", ".join(reversed(words)))


def _finance(random: RandomStream) -> Task:
    label = random.choice(list(MOVES))
    low, high = sorted((random.randint(2, 90), random.randint(91, 400)))
    move = random.choice(MOVES[label]).format(p=random.randint(2, 40), n=high, m=low, d=random.randint(2, 30))
    text = f"{random.choice(COMPANIES)} {random.choice(('Oy', 'plc', 'AG', 'Inc.'))}: {random.choice(FIGURES)} {move}."
    ask = "Choose an answer from negative, neutral, positive."
    texts = (
        f"What is the sentiment of this news? {ask}\n\n{{}}",
        f"{{}}\n\nIs this news good or bad for the company? {ask}",
        f"How would an investor feel about this? {ask}\n\n{{}}",
    )
    return _task("sentiment", text, texts, label)


def _medical(random: RandomStream) -> Task:
    root, ending = random.choice(list(ROOTS)), random.choice(list(ENDINGS))
    term = f"{root}{ending}".capitalize()
    meaning = ENDINGS[ending].format(ROOTS[root])
    if random.random() < 0.5:
        texts = ("What is the meaning of {}?", "Explain the medical term {}.", "A report mentions {}. What is it?")
        return _task("meaning", term, texts, f"{term} means {meaning}.")
    texts = ("What is the medical term for {}?", "Which term names {}?", "How do doctors call {}?")
    return _task("term", meaning, texts, term)


def _code(random: RandomStream) -> Task:
    kept, mapped = random.choice(list(FILTERS)), random.choice(list(MAPS))
    result = random.choice(list(REDUCTIONS))
    values = {"k": random.randint(3, 20), "j": random.randint(2, 9)}
    goal = f"the {result} of {kept}{mapped}".format(**values)
    body = REDUCTIONS[result].format(f"{MAPS[mapped]} for x in values if {FILTERS[kept]}").format(**values)
    texts = (
        "Write a Python function f(values) that returns {}.",
        "Define f(values) in Python. It returns {}.",
        "I need Python code: f takes a list of numbers and gives {}.",
    )
    return _task("function", goal, texts, f"def f(values):\n    return {body}")


def _task(kind: str, content: str, texts: tuple[str, ...], answer: str) -> Task:
    return Task(f"{kind}: {content}", tuple(text.format(content) for text in texts), answer)


DOMAINS: dict[str, Callable[[RandomStream], Task]] = {
    "general": _general,
    "finance": _finance,
    "medical": _medical,
    "code": _code,
}
Domain = Literal["general", "finance", "medical", "code"]


@dataclass(frozen=True)
class InstructionTasks(Data):
    """Instructions of four domains that a program writes, in place of FlowerTune's; `field` is the domain."""

    domains: tuple[Domain, ...] = ("general", "finance", "medical", "code")  # those that are used
    train: PositiveInt = 400  # examples of each domain, fewer if a domain has no more
    valid: PositiveInt = 40  # examples of each domain
    test: PositiveInt = 60  # examples of each domain, in the wordings of training
    unseen: PositiveInt = 60  # examples of each domain, in other wordings
    seed: int = 1  # of the tasks

    example: ClassVar[Mapping[str, object]] = {"train": 8, "valid": 2, "test": 2, "unseen": 2}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or write it: a second."""
        return load_or_build(cache, "instruction_tasks", VERSION, self, [], self._build)

    def _build(self) -> Dataset:
        builders = {name: TableBuilder(SCHEMA) for name in SPLITS}
        for domain in dict.fromkeys(self.domains):
            self._add(domain, builders)
        splits = {name: Split(builder.table()) for name, builder in builders.items()}
        sizes = {name: dict(Counter(split.examples["field"].to_pylist())) for name, split in splits.items()}
        card: dict[str, object] = {
            "licence": "written by this project's code, Apache-2.0; medical terms are regular, not all are in use",
            "examples": sizes,
            "dropped": {},
        }
        return Dataset("instruction_tasks", splits, content_sha256(splits), card)

    def _add(self, domain: str, builders: Mapping[str, TableBuilder]) -> None:
        """Add examples of a domain; no content is in two splits, and none twice."""
        random, seen = RandomStream("instruction_tasks", domain, self.seed), set[str]()
        wanted = {name: getattr(self, name) for name in ("unseen", "test", "valid", "train")}
        for split, count in wanted.items():
            added, tries = 0, TRIES * count
            while added < count and tries:
                tries -= 1
                task = DOMAINS[domain](random)
                if task.content in seen:
                    continue
                seen.add(task.content)
                wordings = task.wordings[-1:] if split == "unseen" else task.wordings[:-1]
                builders[split].add(
                    id=f"{domain}-{split}-{added}",
                    question=random.choice(wordings),
                    answers=[task.answer],
                    field=domain,
                )
                added += 1
