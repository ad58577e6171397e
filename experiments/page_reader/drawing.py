"""Drawn pages with what is printed where: pixels, characters and tokens of each patch, and tasks about the page.

Half of the pages are the invoices of `provider_invoices` in its stream for pretraining: other providers, companies,
people and labels than those of the benchmark. The others are lines of random words and numbers, so that reading cannot
be replaced by knowing which words an invoice has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, radians, sin

import numpy as np
from PIL import Image

from simfl.data.benchmarks.fonts import FAMILIES, widths
from simfl.data.benchmarks.provider_invoices.invoice import ask, make_invoice
from simfl.data.benchmarks.provider_invoices.layout import LEADING, SPACE, InvoicePage, PrintedWord, lay_out
from simfl.data.benchmarks.provider_invoices.provider import OTHERS, Provider, make_provider
from simfl.data.benchmarks.provider_invoices.scan import ScanEffects, draw, scan
from simfl.data.benchmarks.random_stream import RandomStream

SIDE, PATCH = 480, 12  # pixels of a page and of a patch: lines are 13 to 15 pixels apart, letters 5 wide
DRAWN_WIDTH = 448  # pixels of a page before it is scaled to a square, as in the experiments
GRID = SIDE // PATCH
SLOTS = 4  # cells of a patch, side by side, each with the character centred in it
NUM_CLASSES = 256  # characters; 0: none
NOTHING = -1  # in place of a token: the patch shows none
GROUPS = 10  # of providers: language and scanner
MAX_LINES = 5  # rows of an invoice's table
EURO = 0x80  # class of €, which is outside of Latin-1


@dataclass(frozen=True)
class DrawnPage:
    """A page: grey pixels uint8 [SIDE, SIDE], characters uint8 [GRID², SLOTS], words, and questions with answers.

    `places` has, for each word, the centre of each letter, x and y in patches [letters, 2].
    """

    pixels: np.ndarray
    slots: np.ndarray
    words: list[str]
    places: list[np.ndarray]
    questions: list[tuple[str, tuple[str, ...]]]


def draw_page(stream: str, number: int, questions: int = 6, per_provider: int = 4) -> DrawnPage:
    """Draw invoice `number` of an endless, repeatable stream; the provider changes every `per_provider` pages."""
    index, page_number = divmod(number, per_provider)
    provider = _provider(stream, index)
    random = RandomStream("provider_invoices", f"drawn/{stream}", 1, provider.id, page_number)
    invoice = make_invoice(provider, page_number, random, OTHERS, MAX_LINES)
    asked = ask(invoice, random, questions)
    page = lay_out(invoice, random)
    return _drawn(page, provider.group % 2 == 1, random, [(q.question, q.answers) for q in asked])


def draw_text(stream: str, number: int, vocabulary: Sequence[str]) -> DrawnPage:
    """Draw a page of random words and numbers of an endless, repeatable stream."""
    random = RandomStream("page_reader", f"text/{stream}", 1, number)
    family = random.choice(sorted(FAMILIES))
    height = random.choice((1000, 1294, 1414))
    words: list[PrintedWord] = []
    y = random.uniform(50, 120)
    while y < height - 50:
        size, bold = random.uniform(21, 30) * FAMILIES[family].scale, random.random() < 0.3
        if random.random() < 0.75:
            words += _line(random, vocabulary, family, (size, bold), y)
        y += size * LEADING * random.choice((1.0, 1.0, 1.2, 1.8))
    page = InvoicePage(tuple(words), (), float(height), family, (0, 0, 0))
    return _drawn(page, random.random() < 0.5, random, [])


def _line(
    random: RandomStream, vocabulary: Sequence[str], family: str, face: tuple[float, bool], y: float
) -> list[PrintedWord]:
    """Return a line of words, in one to three columns."""
    found: list[PrintedWord] = []
    (size, bold), em = face, widths(family, face[1])
    x, end = random.uniform(50, 500), random.uniform(400, 950)
    while True:
        text = _word(random, vocabulary)
        width = em[text] * size
        if x + width > end:
            return found
        found.append(PrintedWord(text, x, y, width, size, bold, 0))
        x += width + SPACE * size * (1 if random.random() < 0.8 else random.uniform(2, 8))


def _word(random: RandomStream, vocabulary: Sequence[str]) -> str:
    """Return a word, a number, an amount, a date or a code."""
    kind = random.random()
    digits = lambda count: "".join(str(random.randrange(10)) for _ in range(count))
    if kind < 0.66:
        word = random.choice(vocabulary)
        word += random.choice(vocabulary).lower() if random.random() < 0.3 and len(word) < 6 else ""
        return random.choice((word, word.lower(), word.capitalize(), word.capitalize(), word.upper())) + random.choice(
            ("", "", "", "", ",", ".", ":")
        )
    if kind < 0.76:
        return digits(random.randint(1, 8))
    if kind < 0.85:
        return f"{random.randrange(2000)}{random.choice('.,')}{digits(2)}"
    if kind < 0.93:
        mark = random.choice("./-")
        return mark.join((digits(2), digits(2), random.choice(("19", "20")) + digits(2))[:: random.choice((1, -1))])
    letters = "".join(chr(65 + random.randrange(26)) for _ in range(random.randint(1, 3)))
    return letters + random.choice(("-", "", "/")) + digits(random.randint(2, 6))


def _drawn(
    page: InvoicePage, scanned: bool, random: RandomStream, questions: list[tuple[str, tuple[str, ...]]]
) -> DrawnPage:
    """Return a page as picture; a poor scanner turns, blurs and disturbs it."""
    image, degrees = draw(page, DRAWN_WIDTH), 0.0
    size = image.size
    if scanned:
        degrees = 3 * random.random() - 1.5
        image = scan(image, ScanEffects(degrees, 0.6 * random.random(), 12 * random.random()), random.generator)
    pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.uint8)
    words = sorted(page.words, key=lambda w: (round(w.baseline), w.left))
    places = _places(page, words, size, degrees)
    texts = [word.text for word in words]
    return DrawnPage(pixels, _slots(texts, places), texts, places, questions)


@cache
def _provider(stream: str, index: int) -> Provider:
    return make_provider(f"drawn/{stream}", 1, index, index % GROUPS, OTHERS)


def _places(page: InvoicePage, words: list[PrintedWord], size: tuple[int, int], degrees: float) -> list[np.ndarray]:
    """Return the centre of each letter in patches, on a page turned by some degrees."""
    found = []
    width, height = size
    turn, scale = radians(degrees), width / 1000
    for word in words:
        em = widths(page.family, word.bold)
        advances = np.array([em[char] for char in word.text]) * word.size
        x = (word.left + np.cumsum(advances) - advances / 2) * scale - width / 2
        y = (word.baseline - 0.3 * word.size) * scale - height / 2
        across = (x * cos(turn) + y * sin(turn) + width / 2) * GRID / width
        down = (y * cos(turn) - x * sin(turn) + height / 2) * GRID / height
        found.append(np.stack([across, down], 1))
    return found


def _slots(words: list[str], places: list[np.ndarray]) -> np.ndarray:
    """Return the class of the character in each cell; the first of a page, where two share one."""
    slots: np.ndarray = np.zeros(GRID * GRID * SLOTS, np.uint8)
    if not words:
        return slots.reshape(GRID * GRID, SLOTS)
    across, down = np.concatenate(places).T
    inside = (across >= 0) & (across < GRID) & (down >= 0) & (down < GRID)
    cells = (down.astype(int) * GRID * SLOTS + (across * SLOTS).astype(int))[inside]
    codes = np.array([_class(char) for word in words for char in word], np.uint8)[inside]
    slots[cells[::-1]] = codes[::-1]
    return slots.reshape(GRID * GRID, SLOTS)


def _class(char: str) -> int:
    code = EURO if char == "€" else ord(char)
    return code if code < NUM_CLASSES else 1


def shown_tokens(words: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the token that each patch shows, int32 [GRID²]; NOTHING where none is.

    A row of patches shows the tokens of its line in their order, each as near to its place as one token per patch
    allows: digits, which are tokens of their own and narrower than a patch, are spread about the middle of a number.

    Args:
        words: Tokens of each word [tokens], the letter in which each begins [tokens], places of letters [letters, 2].
    """
    rows: dict[int, list[tuple[float, int]]] = {}
    for tokens, starts, places in words:
        row = int(places[:, 1].mean())
        ends = [*starts[1:].tolist(), len(places)]
        for token, start, end in zip(tokens.tolist(), starts.tolist(), ends, strict=True):
            x = places[start : max(end, start + 1), 0].mean() - 0.5
            rows.setdefault(row, []).append((float(x), token))
    shown = np.full((GRID, GRID), NOTHING, np.int32)
    for row, items in rows.items():
        if 0 <= row < GRID:
            items = sorted(items, key=lambda item: item[0])[:GRID]
            shown[row, spread(np.array([x for x, _ in items]), GRID)] = [token for _, token in items]
    return shown.reshape(-1)


def spread(places: np.ndarray, count: int) -> np.ndarray:
    """Return different whole numbers of 0 .. count − 1 in increasing order, nearest to sorted places by least squares.

    Isotonic regression of places − index by the pool-adjacent-violators algorithm (Ayer et al. 1955), then rounding.
    """
    means: list[float] = []
    sizes: list[int] = []
    for value in places - np.arange(len(places)):
        means.append(float(value))
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            last, size = means.pop(), sizes.pop()
            means[-1] = (means[-1] * sizes[-1] + last * size) / (sizes[-1] + size)
            sizes[-1] += size
    smooth = np.repeat(means, sizes).clip(0, count - len(places))
    found: np.ndarray = np.rint(smooth).astype(int) + np.arange(len(places))
    return found


READING = (
    ("Which word follows {}?", 1),
    ("Which word follows {}?", 1),
    ("Read on from: {}", 3),
    ("Which words follow {}?", 5),
    ("Continue after {}", 10),
)  # tasks of reading, and how many words are to be read


def reading_tasks(words: list[str], generator: np.random.Generator, count: int) -> list[tuple[str, str]]:
    """Return tasks: words of the page, and the words that follow them in reading order."""
    tasks = []
    for index in range(count if len(words) > 3 else 0):
        wording, length = READING[index % len(READING)]
        start = int(generator.integers(0, len(words) - 2))
        tasks.append((wording.format(" ".join(words[start : start + 2])), " ".join(words[start + 2 :][:length])))
    return tasks
