"""A provider: everything that is the same on all of its invoices."""

from __future__ import annotations

from dataclasses import dataclass, field

from simfl.data.benchmarks.provider_invoices.dice import Dice
from simfl.data.benchmarks.provider_invoices.dutch import DUTCH
from simfl.data.benchmarks.provider_invoices.english import ENGLISH
from simfl.data.benchmarks.provider_invoices.fonts import FAMILIES
from simfl.data.benchmarks.provider_invoices.french import FRENCH
from simfl.data.benchmarks.provider_invoices.german import GERMAN
from simfl.data.benchmarks.provider_invoices.language import Language

LANGUAGES = {"en": ENGLISH, "de": GERMAN, "fr": FRENCH, "nl": DUTCH}
BY_GROUP = ("en", "en", "de", "en", "fr", "en", "de", "en", "nl", "en")  # six of ten clients read English

BENCHMARK, OTHERS = 0, 1  # halves of the surnames and wordings: the benchmark's providers, and everybody else's

NUMBER_FORMATS = (
    "{p}{n:05}",
    "{p}-{n:04}",
    "{p}-{y}-{n:04}",
    "{y}{n:05}",
    "{n:06}",
    "{p}/{n:04}/{yy}",
    "{n:04}-{p}",
    "{yy}{n:06}",
)
MONEY_STYLES = ("plain", "symbol before", "symbol attached", "code after", "plain")
COLUMNS = (
    ("item", "quantity", "price", "amount"),
    ("quantity", "item", "price", "amount"),
    ("position", "item", "quantity", "price", "amount"),
    ("item", "price", "quantity", "amount"),
)
VARIANTS = ("", "", "", "XL", "Mini", "Pro", "Set", "Eco", "Duo")


@dataclass(frozen=True)
class Money:
    """How a provider prints amounts."""

    code: str
    symbol: str
    thousands: str
    decimal: str
    style: str  # one of MONEY_STYLES

    def number(self, cents: int) -> str:
        """The bare number."""
        units = f"{cents // 100:,}".replace(",", self.thousands)
        return f"{units}{self.decimal}{cents % 100:02}"

    def printed(self, cents: int) -> str:
        """The number as a total is printed."""
        number = self.number(cents)
        if self.style == "symbol before":
            return f"{self.symbol} {number}"
        if self.style == "symbol attached" and len(self.symbol) == 1:
            return f"{self.symbol}{number}"
        return f"{number} {self.code}" if self.style == "code after" else number

    def answers(self, cents: int) -> tuple[str, ...]:
        """The one printed word that holds the number, and the bare number if that differs."""
        number = self.number(cents)
        words = [word for word in self.printed(cents).split(" ") if number in word]
        return tuple(dict.fromkeys((*words, number)))


@dataclass(frozen=True)
class Style:
    """How a provider's page looks. Lengths are thousandths of the page's width."""

    family: str
    size: int  # of the body text
    height: int  # of the page, at least
    margin: int
    header: str  # left | right | centre
    swapped: bool  # customer on the right, dates and numbers on the left
    meta: str  # rows | column heads
    colon: str
    table: str  # lines | zebra | grid | bar
    totals: str  # right | left
    logo: str
    accent: tuple[int, int, int]


@dataclass(frozen=True)
class Provider:
    """Who issues invoices."""

    id: str
    group: int  # whose scanner reads them
    language: Language
    company: str
    address: tuple[str, str]
    contact: tuple[str, str]
    labels: dict[str, str] = field(repr=False)
    columns: tuple[str, ...]
    catalogue: tuple[tuple[str, int], ...] = field(repr=False)  # goods and their usual price in cents
    money: Money
    tax_rate: int  # per mille
    tax_label: str
    dates: str
    number: str
    prefix: str
    first_number: int
    terms: int  # days until payment is due
    style: Style


def make_provider(
    namespace: str, seed: int, index: int, group: int, half: int, taken: frozenset[str] | set[str] = frozenset()
) -> Provider:
    """Provider `index` of a namespace; its company is none of `taken`."""
    dice = Dice(namespace, seed, "provider", index)
    language = LANGUAGES[BY_GROUP[group % len(BY_GROUP)]]
    labels = {name: dice.pick(halves[half]) for name, halves in language.labels.items()}
    currency, symbol = dice.pick(language.currencies).split()
    separators = dice.pick(language.separators)
    family = dice.pick(tuple(FAMILIES))
    tax_rate = dice.pick(language.tax_rates)
    company = make_company(dice, language, half)
    while company in taken:
        company = make_company(dice, language, half)
    return Provider(
        id=f"{namespace}-{index:05}",
        group=group,
        language=language,
        company=company,
        address=make_address(dice, language),
        contact=(f"{labels['phone']} {_digits(dice, 3)} {_digits(dice, 4)}", f"{labels['tax_id']} {_digits(dice, 9)}"),
        labels=labels,
        columns=dice.pick(COLUMNS),
        catalogue=_catalogue(dice, language),
        money=Money(currency, symbol, separators[:-1], separators[-1], dice.pick(MONEY_STYLES)),
        tax_rate=tax_rate,
        tax_label=labels["tax"] + dice.pick(("", f" {tax_rate / 10:g}%")),
        dates=dice.pick(language.date_formats),
        number=dice.pick(NUMBER_FORMATS),
        prefix="".join(dice.pick("ABCDEFGHKLMNPRSTVWX") for _ in range(dice.between(1, 3))),
        first_number=dice.between(1, 900) * 10,
        terms=dice.pick((7, 10, 14, 21, 30, 30, 45, 60)),
        style=_style(dice, family),
    )


def make_company(dice: Dice, language: Language, half: int) -> str:
    """A made-up company; surnames of the two halves never meet."""
    names = language.names(half)
    first, legal = dice.pick(names), dice.pick(language.legal_forms)
    if dice.real() < 0.25:
        return f"{first} & {dice.pick(names)} {legal}"
    return f"{first} {dice.pick(language.trades)} {legal}"


def make_address(dice: Dice, language: Language) -> tuple[str, str]:
    """Street with number, and postcode with city."""
    street = dice.pick(language.streets).format(dice.between(1, 199))
    return street, f"{_digits(dice, 5)} {dice.pick(language.cities)}"


def _digits(dice: Dice, count: int) -> str:
    return str(dice.between(10 ** (count - 1), 10**count - 1))


def _catalogue(dice: Dice, language: Language) -> tuple[tuple[str, int], ...]:
    goods = []
    for noun in dice.sample(language.nouns, 24):
        name = f"{noun} {dice.pick(VARIANTS)}".strip()
        goods.append((name, round(10 ** (2.3 + 2.2 * dice.real()))))  # 2 to 316 units of the currency
    return tuple(goods)


def _style(dice: Dice, family: str) -> Style:
    return Style(
        family=family,
        size=dice.between(23, 27),
        height=dice.pick((1000, 1294, 1414)),
        margin=dice.between(50, 80),
        header=dice.pick(("left", "right", "centre", "left")),
        swapped=dice.real() < 0.3,
        meta=dice.pick(("rows", "rows", "rows", "column heads")),
        colon=dice.pick((":", ":", "")),
        table=dice.pick(("lines", "zebra", "grid", "bar")),
        totals=dice.pick(("right", "right", "left")),
        logo=dice.pick(("disc", "square", "ring", "triangle", "bars", "diamond", "none")),
        accent=(dice.between(0, 160), dice.between(0, 150), dice.between(30, 200)),
    )
