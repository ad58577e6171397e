"""Drawn pages with what is printed where: pixels, characters of each patch, and conversations about the page.

The pages are the invoices of `provider_invoices` in its stream for pretraining: other providers, companies, people and
labels than those of the benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import cos, radians, sin

import numpy as np
from PIL import Image

from simfl.data.benchmarks.fonts import widths
from simfl.data.benchmarks.provider_invoices.documents import make_invoice
from simfl.data.benchmarks.provider_invoices.invoice import ask
from simfl.data.benchmarks.provider_invoices.layout import InvoicePage, PrintedWord, lay_out
from simfl.data.benchmarks.provider_invoices.provider import OTHERS, Provider, make_provider
from simfl.data.benchmarks.provider_invoices.scan import ScanEffects, draw, scan
from simfl.data.benchmarks.random_stream import RandomStream

SIDE, PATCH = 448, 16  # pixels of a page and of a patch
GRID = SIDE // PATCH
SLOTS = 5  # characters of a patch that are learned, line by line
NUM_CLASSES = 2 * 256  # a character and whether it starts a word; 0: no character
GROUPS = 10  # of providers: language and scanner
MAX_LINES = 5  # rows of an invoice's table
EURO = 0x80  # class of €, which is outside of Latin-1


@dataclass(frozen=True)
class DrawnPage:
    """A page: grey pixels uint8 [SIDE, SIDE], classes int16 [GRID², SLOTS], words, and questions with answers.

    `patches` has the patch of each letter of each word; −1 for letters outside of the page.
    """

    pixels: np.ndarray
    slots: np.ndarray
    words: list[str]
    patches: list[list[int]]
    questions: list[tuple[str, tuple[str, ...]]]


def draw_page(stream: str, number: int, questions: int = 6, per_provider: int = 4) -> DrawnPage:
    """Draw page `number` of an endless, repeatable stream; the provider changes every `per_provider` pages."""
    index, page_number = divmod(number, per_provider)
    provider = _provider(stream, index)
    random = RandomStream("provider_invoices", f"drawn/{stream}", 1, provider.id, page_number)
    invoice = make_invoice(provider, page_number, random, OTHERS, MAX_LINES)
    asked = ask(invoice, random, questions)
    page = lay_out(invoice, random)
    image, degrees = draw(page, SIDE), 0.0
    size = image.size
    if provider.group % 2:  # half of the providers have a poor scanner
        degrees = 3 * random.random() - 1.5
        image = scan(image, ScanEffects(degrees, 0.6 * random.random(), 12 * random.random()), random.generator)
    pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.uint8)
    words = sorted(page.words, key=lambda w: (round(w.baseline), w.left))
    patches = _patches(page, words, size, degrees)
    questions_of_page = [(q.question, q.answers) for q in asked]
    return DrawnPage(pixels, _slots(words, patches), [word.text for word in words], patches, questions_of_page)


@cache
def _provider(stream: str, index: int) -> Provider:
    return make_provider(f"drawn/{stream}", 1, index, index % GROUPS, OTHERS)


def _patches(page: InvoicePage, words: list[PrintedWord], size: tuple[int, int], degrees: float) -> list[list[int]]:
    """Return the patch in which the centre of each letter lies, on a page turned by some degrees."""
    found = []
    width, height = size
    turn, scale = radians(degrees), width / 1000
    for word in words:
        pen, patches = word.left, []
        for char in word.text:
            advance = widths(page.family, word.bold)[char] * word.size
            x, y = (pen + advance / 2) * scale - width / 2, (word.baseline - 0.3 * word.size) * scale - height / 2
            column = int((x * cos(turn) + y * sin(turn) + width / 2) * GRID / width)
            row = int((y * cos(turn) - x * sin(turn) + height / 2) * GRID / height)
            patches.append(row * GRID + column if 0 <= column < GRID and 0 <= row < GRID else -1)
            pen += advance
        found.append(patches)
    return found


def _slots(words: list[PrintedWord], patches: list[list[int]]) -> np.ndarray:
    """Return the classes of the characters of each patch, in reading order."""
    slots: np.ndarray = np.zeros((GRID * GRID, SLOTS), np.int16)
    used: np.ndarray = np.zeros(GRID * GRID, np.int64)
    for word, places in zip(words, patches, strict=True):
        for place, (char, patch) in enumerate(zip(word.text, places, strict=True)):
            if patch >= 0 and used[patch] < SLOTS:
                slots[patch, used[patch]] = _class(char, place == 0)
                used[patch] += 1
    return slots


def _class(char: str, first: bool) -> int:
    code = EURO if char == "€" else ord(char)
    return 2 * (code if code < 256 else 1) + first


READING = (
    ("Read on from: {}", 4),
    ("Which words follow {}?", 6),
    ("Continue after {}", 12),
)  # tasks of reading, and how many words are to be read


def reading_tasks(words: list[str], generator: np.random.Generator) -> list[tuple[str, str]]:
    """Return a task of each kind: words of the page, and the words that follow them in reading order."""
    places = [0, *np.sort(generator.integers(1, max(2, len(words) - 3), 2 * len(READING))).tolist()]
    tasks = []
    for (wording, count), (start, _) in zip(READING, list(pairwise(places))[::2], strict=False):
        key, rest = words[start : start + 2], words[start + 2 : start + 2 + count]
        if rest:
            tasks.append((wording.format(" ".join(key)), " ".join(rest)))
    whole = ("Read the page.", " ".join(words[:48]))
    return [whole, *tasks] if generator.random() < 0.5 else tasks
