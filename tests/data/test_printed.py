"""Finding printed forms of a value among the words of a page."""

from datetime import date
from decimal import Decimal

import pytest

from simfl.data.io import printed_forms as printed


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        ("1.234,56", "1234.56"), ("1,234.56", "1234.56"), ("1 234,56", "1234.56"), ("1'234.56", "1234.56"),
        ("1234,56", "1234.56"), ("0,50", "0.50"), ("-12.50", "-12.50"), ("12,50-", "-12.50"), ("- 1,12", "-1.12"),
        ("12,5000", "12.50"), ("1.234", None), ("12", None), ("12,5", None), ("1.2.3", None), ("1,2345,00", None),
        ("12.50.", "12.50"),
    ],
)  # fmt: skip
def test_amounts_need_decimals_and_one_meaning(shown, value):
    assert printed.number(shown) == (None if value is None else Decimal(value))


def test_an_amount_is_found_across_words_and_without_its_currency():
    words = ["112,50", "12,5000", "EUR", "12,50€", "1", "234,00"]
    assert printed.amount(words, Decimal("12.50")) == "12,50"
    assert printed.amount(words, Decimal("1234.00")) == "1 234,00"
    assert printed.amount(words, Decimal("2.50")) is None


def test_text_is_found_regardless_of_case_and_marks_and_returned_as_printed():
    words = ["(Seller:", "ACME", "GmbH", "&", "Co.)", "No.", "12"]
    assert printed.text(words, "Acme GmbH & Co.") == "ACME GmbH & Co."
    assert printed.text(words, "12") == "12"
    assert printed.text(words, "Acme Co") is None
    assert printed.text(words, "...") is None


def test_a_code_is_found_if_it_is_printed_in_groups():
    assert printed.compact(["IBAN:", "DE02", "1203", "0000,"], "DE0212030000") == "DE02 1203 0000"
    assert printed.compact(["DE02", "1203"], "DE0212030000") is None


@pytest.mark.parametrize(
    "shown", ["05.03.2018", "5.3.2018", "2018-03-05", "05/03/2018", "5. März 2018", "5 mars 2018", "March 5, 2018"]
)
def test_dates_are_found_in_usual_spellings(shown):
    assert printed.day(["am", *shown.split(), "in"], date(2018, 3, 5)) == shown


def test_month_before_day_is_accepted_only_if_it_is_unambiguous():
    assert printed.day(["03/05/2018"], date(2018, 3, 5)) is None
    assert printed.day(["03/15/2018"], date(2018, 3, 15)) == "03/15/2018"
    assert printed.day(["2018-03-05", "05.03.2018"], date(2018, 3, 5)) == "2018-03-05"
