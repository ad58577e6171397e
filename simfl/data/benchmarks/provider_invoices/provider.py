"""A provider: the properties shared by all of its invoices."""

from __future__ import annotations

from dataclasses import dataclass, field

from simfl.data.benchmarks.fonts import FAMILIES
from simfl.data.benchmarks.provider_invoices.language import Language
from simfl.data.benchmarks.provider_invoices.vocabulary import LANGUAGES
from simfl.data.benchmarks.random_stream import RandomStream

BY_GROUP = ("en", "en", "de", "en", "fr", "en", "de", "en", "nl", "en")  # six of ten clients read English

BENCHMARK, OTHERS = 0, 1  # halves of the surnames and wordings: for providers of the benchmark, for all others

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
    """Format of the amounts that a provider prints."""

    code: str
    symbol: str
    thousands: str
    decimal: str
    style: str  # one of MONEY_STYLES

    def number(self, cents: int) -> str:
        """Return the number without currency."""
        units = f"{cents // 100:,}".replace(",", self.thousands)
        return f"{units}{self.decimal}{cents % 100:02}"

    def format(self, cents: int) -> str:
        """Return the amount as printed for a total."""
        number = self.number(cents)
        if self.style == "symbol before":
            return f"{self.symbol} {number}"
        if self.style == "symbol attached" and len(self.symbol) == 1:
            return f"{self.symbol}{number}"
        return f"{number} {self.code}" if self.style == "code after" else number

    def answers(self, cents: int) -> tuple[str, ...]:
        """Return the printed word that contains the number, and the number without currency if that differs."""
        number = self.number(cents)
        words = [word for word in self.format(cents).split(" ") if number in word]
        return tuple(dict.fromkeys((*words, number)))


@dataclass(frozen=True)
class Style:
    """Layout style of a provider's pages. Lengths are thousandths of the page width."""

    family: str
    size: int  # font size of the body text
    height: int  # minimum height of the page
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
    """An issuer of invoices."""

    id: str
    group: int  # index of the scanner that reads its pages
    language: Language
    company: str
    address: tuple[str, str]
    contact: tuple[str, str]
    labels: dict[str, str] = field(repr=False)
    columns: tuple[str, ...]
    catalogue: tuple[tuple[str, int], ...] = field(repr=False)  # goods and their typical price in cents
    money: Money
    tax_rate: int  # per mille
    tax_label: str
    dates: str  # key of `DATE_FORMATS`
    number: str  # format of the invoice number
    prefix: str  # of the invoice number
    first_number: int
    terms: int  # days until payment is due
    style: Style


def make_provider(
    namespace: str, seed: int, index: int, group: int, half: int, taken: frozenset[str] | set[str] = frozenset()
) -> Provider:
    """Make provider `index` of a namespace, with a company name that is not in `taken`."""
    random = RandomStream("provider_invoices", namespace, seed, "provider", index)
    language = LANGUAGES[BY_GROUP[group % len(BY_GROUP)]]
    labels = {name: random.choice(halves[half]) for name, halves in language.labels.items()}
    currency, symbol = random.choice(language.currencies).split()
    separators = random.choice(language.separators)
    family = random.choice(tuple(FAMILIES))
    tax_rate = random.choice(language.tax_rates)
    company = make_company(random, language, half)
    while company in taken:
        company = make_company(random, language, half)
    return Provider(
        id=f"{namespace}-{index:05}",
        group=group,
        language=language,
        company=company,
        address=make_address(random, language),
        contact=(
            f"{labels['phone']} {_digits(random, 3)} {_digits(random, 4)}",
            f"{labels['tax_id']} {_digits(random, 9)}",
        ),
        labels=labels,
        columns=random.choice(COLUMNS),
        catalogue=_catalogue(random, language),
        money=Money(currency, symbol, separators[:-1], separators[-1], random.choice(MONEY_STYLES)),
        tax_rate=tax_rate,
        tax_label=labels["tax"] + random.choice(("", f" {tax_rate / 10:g}%")),
        dates=random.choice(language.date_formats),
        number=random.choice(NUMBER_FORMATS),
        prefix="".join(random.choice("ABCDEFGHKLMNPRSTVWX") for _ in range(random.randint(1, 3))),
        first_number=random.randint(1, 900) * 10,
        terms=random.choice((7, 10, 14, 21, 30, 30, 45, 60)),
        style=_style(random, family),
    )


def make_company(random: RandomStream, language: Language, half: int) -> str:
    """Make up a company name from surnames of one half."""
    names = language.names(half)
    first, legal = random.choice(names), random.choice(language.legal_forms)
    if random.random() < 0.25:
        return f"{first} & {random.choice(names)} {legal}"
    return f"{first} {random.choice(language.trades)} {legal}"


def make_address(random: RandomStream, language: Language) -> tuple[str, str]:
    """Make up a street with number, and a postcode with city."""
    street = random.choice(language.streets).format(random.randint(1, 199))
    return street, f"{_digits(random, 5)} {random.choice(language.cities)}"


def _digits(random: RandomStream, count: int) -> str:
    return str(random.randint(10 ** (count - 1), 10**count - 1))


def _catalogue(random: RandomStream, language: Language) -> tuple[tuple[str, int], ...]:
    goods = []
    for noun in random.sample(language.nouns, 24):
        name = f"{noun} {random.choice(VARIANTS)}".strip()
        goods.append((name, round(10 ** (2.3 + 2.2 * random.random()))))  # 2 to 316 units of the currency
    return tuple(goods)


def _style(random: RandomStream, family: str) -> Style:
    return Style(
        family=family,
        size=random.randint(23, 27),
        height=random.choice((1000, 1294, 1414)),
        margin=random.randint(50, 80),
        header=random.choice(("left", "right", "centre", "left")),
        swapped=random.random() < 0.3,
        meta=random.choice(("rows", "rows", "rows", "column heads")),
        colon=random.choice((":", ":", "")),
        table=random.choice(("lines", "zebra", "grid", "bar")),
        totals=random.choice(("right", "right", "left")),
        logo=random.choice(("disc", "square", "ring", "triangle", "bars", "diamond", "none")),
        accent=(random.randint(0, 160), random.randint(0, 150), random.randint(30, 200)),
    )
