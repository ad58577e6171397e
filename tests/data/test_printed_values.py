"""Search of values among the words of a page."""

from datetime import date
from decimal import Decimal

import pytest

from simfl.data.io.printed_values import find_amount, find_code, find_date, find_text, parse_amount


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        ("1.234,56", "1234.56"), ("1,234.56", "1234.56"), ("1 234,56", "1234.56"), ("1'234.56", "1234.56"),
        ("1234,56", "1234.56"), ("0,50", "0.50"), ("-12.50", "-12.50"), ("12,50-", "-12.50"), ("- 1,12", "-1.12"),
        ("12,5000", "12.50"), ("1.234", None), ("12", None), ("12,5", None), ("1.2.3", None), ("1,2345,00", None),
        ("12.50.", "12.50"),
    ],
)  # fmt: skip
def test_parse_amount_needs_decimals_and_one_meaning(shown, value):
    assert parse_amount(shown) == (None if value is None else Decimal(value))


def test_find_amount_matches_whole_words_without_currency():
    words = ["112,50", "12,5000", "EUR", "12,50€", "1", "234,00"]
    assert find_amount(words, Decimal("12.50")) == "12,50"
    assert find_amount(words, Decimal("1234.00")) == "1 234,00"
    assert find_amount(words, Decimal("2.50")) is None


def test_find_text_ignores_case_and_punctuation():
    words = ["(Seller:", "ACME", "GmbH", "&", "Co.)", "No.", "12"]
    assert find_text(words, "Acme GmbH & Co.") == "ACME GmbH & Co."
    assert find_text(words, "12") == "12"
    assert find_text(words, "Acme Co") is None
    assert find_text(words, "...") is None


def test_find_code_matches_groups():
    assert find_code(["IBAN:", "DE02", "1203", "0000,"], "DE0212030000") == "DE02 1203 0000"
    assert find_code(["DE02", "1203"], "DE0212030000") is None


@pytest.mark.parametrize(
    "shown", ["05.03.2018", "5.3.2018", "2018-03-05", "05/03/2018", "5. März 2018", "5 mars 2018", "March 5, 2018"]
)
def test_find_date_matches_common_notations(shown):
    assert find_date(["am", *shown.split(), "in"], date(2018, 3, 5)) == shown


def test_find_date_accepts_month_first_only_if_unambiguous():
    assert find_date(["03/05/2018"], date(2018, 3, 5)) is None
    assert find_date(["03/15/2018"], date(2018, 3, 15)) == "03/15/2018"
    assert find_date(["2018-03-05", "05.03.2018"], date(2018, 3, 5)) == "2018-03-05"
