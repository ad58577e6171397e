"""Tables that fit a page, sampled from real ones, and questions about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from simfl.data.benchmarks.multi_docqa.archive import Source
from simfl.data.benchmarks.multi_docqa.page import PageQuestion, format_number, parse_number
from simfl.data.benchmarks.random_stream import RandomStream

ROWS, COLUMNS = (7, 13), (2, 4)  # range of numbers of rows and of columns on a page, the key column not counted
MAX_READ = (120, 12)  # rows and columns of a real table that are read; pages are too small for more
MAX_CELL, MAX_HEADER = 22, 14  # characters of a key or a cell, and of a header
ROW = "row"  # key column of tables whose rows have no names


@dataclass(frozen=True)
class DataTable:
    """Some rows and columns of a real table; `None` is a missing number."""

    title: str
    key: str  # header of the key column
    keys: tuple[str, ...]  # names of the rows
    columns: dict[str, tuple[str, ...]]  # other columns by header, as printed
    numbers: dict[str, tuple[Decimal | None, ...]]  # values of the numeric columns

    @property
    def header(self) -> list[str]:
        """Return the headers of all columns, the key column first."""
        return [self.key, *self.columns]

    @property
    def body(self) -> list[list[str]]:
        """Return the cells row by row, the key first."""
        return [[key, *(column[i] for column in self.columns.values())] for i, key in enumerate(self.keys)]


def read_table(source: Source) -> DataTable | None:
    """Return the table of a source with all its rows.

    None if it has too few rows, no column of distinct names or counts, or fewer than two numeric columns.
    """
    header, *rows = [row[: MAX_READ[1]] for row in source.rows[: MAX_READ[0] + 1]] or [()]
    if len(rows) < ROWS[0] or any(len(row) != len(header) for row in rows):
        return None
    cells = [[_clean(cell, name) for cell in column] for name, *column in zip(header, *rows, strict=True)]
    named = [i for i, column in enumerate(cells) if _are_names(column)]
    years = [i for i, column in enumerate(cells) if header[i].lower() in ("year", "time") and _are_counts(column)]
    first = (named or years or ([0] if _are_counts(cells[0]) else []))[:1]
    columns = {
        header[i]: column
        for i, column in enumerate(cells)
        if i and i not in first and 1 < len(header[i]) <= MAX_HEADER and header[i].isascii() and _is_informative(column)
    }
    numbers = {name: tuple(map(parse_number, column)) for name, column in columns.items() if _is_numeric(column)}
    if not first or len(numbers) < 2:
        return None
    key = header[first[0]].lower() or (ROW if first[0] not in named else "name")
    printed = {name: tuple(column) for name, column in columns.items()}
    return DataTable(_title(source), key, tuple(cells[first[0]]), printed, numbers)


def _title(source: Source) -> str:
    title = source.title.encode("ascii", "ignore").decode()
    return title if len(title) <= 64 else " ".join(title[:64].split(" ")[:-1])


def _clean(cell: str, header: str) -> str:
    value = None if header.lower() == "time" else parse_number(cell.strip())  # parts of a year are months
    return " ".join(cell.split()) if value is None else format_number(value)


def _are_names(column: list[str]) -> bool:
    """Return whether these are distinct short texts."""
    return (
        len(set(column)) == len(column)
        and all(1 < len(cell) <= MAX_CELL and cell.isascii() and any(map(str.isalpha, cell)) for cell in column)
        and not any(cell in ("NA", "TRUE", "FALSE") for cell in column)
    )


def _are_counts(column: list[str]) -> bool:
    return len(set(column)) == len(column) and all(cell.isdigit() for cell in column)


def _is_numeric(column: list[str]) -> bool:
    known = [cell for cell in column if cell != "NA"]
    return len(known) > 0.8 * len(column) and all(parse_number(cell) is not None for cell in known)


def _is_informative(column: list[str]) -> bool:
    return len(set(column)) > 2 and all(cell and len(cell) <= MAX_CELL and cell.isascii() for cell in column)


def sample(table: DataTable, random: RandomStream) -> DataTable:
    """Sample rows and columns that fit a page, keeping their order; at least two columns are numeric."""
    rows = sorted(random.sample(range(len(table.keys)), min(len(table.keys), random.randint(*ROWS))))
    numeric = random.sample(list(table.numbers), 2)
    rest = [name for name in table.columns if name not in numeric]
    more = random.sample(rest, min(len(rest), random.randint(*COLUMNS) - 2))
    names = [name for name in table.columns if name in (*numeric, *more)]
    return DataTable(
        table.title,
        table.key,
        tuple(table.keys[row] for row in rows),
        {name: tuple(table.columns[name][row] for row in rows) for name in names},
        {name: tuple(table.numbers[name][row] for row in rows) for name in names if name in table.numbers},
    )


def ask(table: DataTable, random: RandomStream, count: int) -> list[PageQuestion]:
    """Sample up to `count` questions of different kinds."""
    kinds: tuple[Callable[[DataTable, RandomStream], PageQuestion | None], ...] = (
        _lookup, _reverse, _superlative, _count, _difference, _two_steps
    )  # fmt: skip
    questions = [kind(table, random) for kind in random.sample(kinds, len(kinds))]
    return [question for question in questions if question][:count]


def row_name(table: DataTable, row: int) -> str:
    """Return the name of a row as questions use it."""
    return f"{table.key} {table.keys[row]}" if table.keys[row].isdigit() else table.keys[row]


def rows_with_number(table: DataTable, column: str) -> list[int]:
    """Return the rows with a number in a column."""
    return [row for row, value in enumerate(table.numbers[column]) if value is not None]


def extreme(table: DataTable, column: str, highest: bool) -> int | None:
    """Return the row with the highest or lowest number of a column, or None if several rows have it."""
    values = [value for value in table.numbers[column] if value is not None]
    best = max(values) if highest else min(values)
    return table.numbers[column].index(best) if values.count(best) == 1 else None


def _lookup(table: DataTable, random: RandomStream) -> PageQuestion | None:
    column, row = random.choice(list(table.columns)), random.randrange(len(table.keys))
    cell = table.columns[column][row]
    wording = random.choice(("What is the {} of {}?", "What {} does {} have?", "Which {} is given for {}?"))
    return None if cell == "NA" else PageQuestion("lookup", wording.format(column, row_name(table, row)), (cell,))


def _reverse(table: DataTable, random: RandomStream) -> PageQuestion | None:
    column, row = random.choice(list(table.columns)), random.randrange(len(table.keys))
    cell = table.columns[column][row]
    if cell == "NA" or table.columns[column].count(cell) > 1:
        return None
    return PageQuestion("reverse", f"Which {table.key} has {column} {cell}?", (table.keys[row],))


def _superlative(table: DataTable, random: RandomStream) -> PageQuestion | None:
    column, highest = random.choice(list(table.numbers)), random.random() < 0.5
    row = extreme(table, column, highest)
    word = "highest" if highest else "lowest"
    question = f"Which {table.key} has the {word} {column}?"
    return None if row is None else PageQuestion("superlative", question, (table.keys[row],))


def _count(table: DataTable, random: RandomStream) -> PageQuestion | None:
    column, above = random.choice(list(table.numbers)), random.random() < 0.5
    values = [value for value in table.numbers[column] if value is not None]
    limit = random.choice(values)
    found = sum((value > limit) if above else (value < limit) for value in values)
    word = "above" if above else "below"
    return PageQuestion("count", f"In how many rows is {column} {word} {format_number(limit)}?", (str(found),))


def _difference(table: DataTable, random: RandomStream) -> PageQuestion | None:
    column = random.choice(list(table.numbers))
    first, second = random.sample(rows_with_number(table, column), 2)
    values = table.numbers[column]
    more, less = (first, second) if values[first] > values[second] else (second, first)  # type: ignore[operator]
    gap = Decimal(table.columns[column][more]) - Decimal(table.columns[column][less])
    question = f"How much higher is the {column} of {row_name(table, more)} than that of {row_name(table, less)}?"
    return PageQuestion("difference", question, (format_number(gap),)) if gap else None


def _two_steps(table: DataTable, random: RandomStream) -> PageQuestion | None:
    column, highest = random.choice(list(table.numbers)), random.random() < 0.5
    row, other = extreme(table, column, highest), random.choice([name for name in table.columns if name != column])
    if row is None or table.columns[other][row] == "NA":
        return None
    word = "highest" if highest else "lowest"
    question = f"What is the {other} of the {table.key} with the {word} {column}?"
    return PageQuestion("two steps", question, (table.columns[other][row],))
