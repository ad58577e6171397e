"""Test the tables of experiments/*/README.md again, from the means and deviations that are printed in them.

    python docs/make_daggers.py

`simfl table` tests differences from the scores of single examples in the folders of runs. This program serves tables of
runs that are no longer kept: Welch's t-test with the number of seeds minus one degrees of freedom (fewer than Welch's,
so p is rather too large), and Holm's correction for the comparisons of a table. Each printed deviation is increased by
half of its last digit. Tables that `simfl table` has tested since, and all other text, do not change.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from simfl.reports.statistical_tests import SIGNIFICANCE_LEVEL, holm, student_p, student_quantile

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
TABLE = re.compile(r"(<!-- simfl: [^>]+ -->\n)(.*?)(\n<!-- simfl: end -->)", re.DOTALL)
SCORE = re.compile(r"^\**(\d\.\d{4}) ± (\d\.\d{4})\**†?$")
REFERENCE = re.compile(
    r"^- † differs from (\S+) (\S+?)(?: where all else is the same| with otherwise equal settings)?: "
)
LIMIT = "- with "
ROUNDING = 0.00005
Rows = list[list[str]]


def again(text: str) -> str:
    """Return the text of a table with its † and notes made again; unchanged if it tests nothing."""
    lines = text.splitlines()
    matches = [match for line in lines if (match := REFERENCE.match(line))]
    if not matches:
        return text
    setting, value = matches[0].groups()
    table = [line for line in lines if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    seeds = int(rows[2][rows[0].index("seeds")])
    found = p_values(rows[0], rows[2:], setting, value, seeds)
    corrected = dict(zip(found, holm(list(found.values())), strict=True))
    for i, row in enumerate(rows[2:]):
        for j in range(len(row)):
            marked = corrected.get((i, j), 1.0) < SIGNIFICANCE_LEVEL
            row[j] = row[j].removesuffix("†") + "†" * marked
    notes = [line for line in lines if line.startswith("- ") and not REFERENCE.match(line) and LIMIT not in line]
    body = ["| " + " | ".join(row) + " |" for row in rows]
    same = " with otherwise equal settings" if rows[0].index("seeds") > 1 else ""
    return "\n".join([*body, "", *notes, *_notes(f"{setting} {value}{same}", len(found), seeds)])


def p_values(header: list[str], rows: Rows, setting: str, value: str, seeds: int) -> dict[tuple[int, int], float]:
    """Return the p of each cell that has a score, like its cell in the reference row; spreads are not tested."""
    first, last, column = header.index("seeds") + 1, header.index("download"), header.index(setting)
    settings = {tuple(row[: first - 1]): row for row in rows}
    found = {}
    for i, row in enumerate(rows):
        reference = settings.get(tuple(value if k == column else cell for k, cell in enumerate(row[: first - 1])))
        if reference is None or reference is row:
            continue
        for j in range(first, last):
            a, b = SCORE.match(row[j]), SCORE.match(reference[j])
            if a and b and ":" not in header[j]:
                found[i, j] = welch(float(a[1]), float(a[2]), float(b[1]), float(b[2]), seeds)
    return found


def welch(mean: float, deviation: float, other: float, other_deviation: float, seeds: int) -> float:
    """Return the p of two means over equally many seeds."""
    squares = [(d + ROUNDING) ** 2 for d in (deviation, other_deviation)]
    return student_p((mean - other) / math.sqrt(sum(squares) / seeds), seeds - 1)


def _notes(reference: str, tests: int, seeds: int) -> list[str]:
    error = student_quantile(SIGNIFICANCE_LEVEL / tests, seeds - 1)
    return [
        f"- † differs from {reference}: Welch's t-test of the printed means and deviations with {seeds - 1} degrees of"
        f" freedom, p < {SIGNIFICANCE_LEVEL} after Holm's correction for {tests} comparisons; the scores of single"
        " examples of these runs are not kept",
        f"- with {seeds} seeds and {tests} comparisons, the first † needs a difference of {error:.1f} standard errors;"
        " without †, this table cannot tell a difference from the chance of seeds and examples",
    ]


def main() -> None:
    """Write the tables."""
    for path in sorted(EXPERIMENTS.glob("*/README.md")):
        text = path.read_text(encoding="utf-8")
        new = TABLE.sub(lambda match: match[1] + again(match[2]) + match[3], text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(EXPERIMENTS), new.count("†") - new.count("- † "), "†")


if __name__ == "__main__":
    main()
