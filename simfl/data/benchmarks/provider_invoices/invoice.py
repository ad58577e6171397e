"""Contents of one invoice, and questions about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from simfl.data.benchmarks.provider_invoices.language import DATE_FORMATS
from simfl.data.benchmarks.provider_invoices.provider import Provider, make_address, make_company
from simfl.data.benchmarks.random_stream import RandomStream

QUESTIONS = {
    "number": (
        "What is the invoice number?",
        "Which number does this invoice have?",
        "Which number identifies this invoice?",
    ),
    "date": ("What is the invoice date?", "When was this invoice issued?", "On which date was this invoice written?"),
    "due": ("What is the due date?", "When must this invoice be paid?", "By which date is the payment due?"),
    "total": ("What is the total amount?", "How much has to be paid in total?", "What does this invoice come to?"),
    "tax": ("What is the tax amount?", "How much tax is charged?", "What is the amount of the tax?"),
    "customer": ("Who is the customer?", "Who has to pay this invoice?", "To whom is this invoice addressed?"),
    "provider": ("Who issued this invoice?", "What is the name of the seller?", "Which company sent this invoice?"),
    "quantity": ("How many {} were sold?", "What is the quantity of {}?", "What number of {} was ordered?"),
    "price": ("What is the unit price of {}?", "How much does one of {} cost?", "What is the price of {}?"),
}
FIRST_DAY, LAST_DAY = date(2004, 1, 1).toordinal(), date(2025, 12, 31).toordinal()


@dataclass(frozen=True)
class InvoiceLine:
    """One row of the table; money in cents."""

    item: str
    quantity: int
    price: int

    @property
    def amount(self) -> int:
        """Return quantity times price."""
        return self.quantity * self.price


@dataclass(frozen=True)
class InvoiceQuestion:
    """One question and its correct answers, the printed one first."""

    field: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Invoice:
    """The contents of one page; money in cents."""

    provider: Provider
    id: str
    number: str
    date: str
    due: str
    customer: str
    address: tuple[str, str]
    lines: tuple[InvoiceLine, ...]
    net: int
    tax: int

    @property
    def total(self) -> int:
        """Return net amount plus tax."""
        return self.net + self.tax


def make_invoice(provider: Provider, index: int, random: RandomStream, half: int, max_lines: int) -> Invoice:
    """Make invoice `index` of a provider, with 1 to `max_lines` lines."""
    language = provider.language
    issued = date.fromordinal(random.randint(FIRST_DAY, LAST_DAY))
    lines = tuple(
        InvoiceLine(item, random.randint(2, 99), max(1, round(price * (0.6 + 0.8 * random.random()))))
        for item, price in random.sample(provider.catalogue, random.randint(1, max_lines))
    )
    net = sum(line.amount for line in lines)
    number = provider.first_number + random.randrange(9000)
    if random.random() < 0.5:
        customer = make_company(random, language, half)
    else:
        customer = f"{random.choice(language.first_names)} {random.choice(language.names(half))}"
    return Invoice(
        provider=provider,
        id=f"{provider.id}-{index:04}",
        number=provider.number.format(p=provider.prefix, n=number, y=issued.year, yy=f"{issued.year % 100:02}"),
        date=_format_date(issued, provider),
        due=_format_date(issued + timedelta(days=provider.terms), provider),
        customer=customer,
        address=make_address(random, language),
        lines=lines,
        net=net,
        tax=tax_of(net, provider.tax_rate),
    )


def tax_of(net: int, rate: int) -> int:
    """Return the tax on an amount at a rate per mille, rounded half up."""
    return (net * rate + 500) // 1000


def _format_date(day: date, provider: Provider) -> str:
    return DATE_FORMATS[provider.dates](day, provider.language.months[day.month - 1])


def ask(invoice: Invoice, random: RandomStream, count: int) -> tuple[InvoiceQuestion, ...]:
    """Sample `count` questions of different kinds, or fewer if the page answers fewer. None contains its answer."""
    fields = [f for f in QUESTIONS if f != "tax" or invoice.tax]
    return tuple(_ask(invoice, f, random) for f in random.sample(fields, min(count, len(fields))))


def _ask(invoice: Invoice, field: str, random: RandomStream) -> InvoiceQuestion:
    wording = random.choice(QUESTIONS[field])
    money = invoice.provider.money
    if field in ("quantity", "price"):
        line = random.choice(invoice.lines)
        answers = (str(line.quantity),) if field == "quantity" else (money.number(line.price),)
        return InvoiceQuestion(field, wording.format(line.item), answers)
    if field in ("total", "tax"):
        return InvoiceQuestion(field, wording, money.answers(invoice.total if field == "total" else invoice.tax))
    answer = invoice.provider.company if field == "provider" else getattr(invoice, field)
    return InvoiceQuestion(field, wording, (answer,))
