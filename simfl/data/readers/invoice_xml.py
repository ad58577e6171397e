"""Header of an electronic invoice (UN/CEFACT CII, as embedded by ZUGFeRD 1 and 2, Factur-X and XRechnung).

Only values of the whole invoice are read, by the names of their nodes, in any namespace and profile.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation

ROOTS = ("CrossIndustryInvoice", "CrossIndustryDocument", "Invoice")  # the last in drafts of 2013
AGREEMENT = "ApplicableHeaderTradeAgreement|ApplicableSupplyChainTradeAgreement"
SETTLEMENT = "ApplicableHeaderTradeSettlement|ApplicableSupplyChainTradeSettlement"
SUMS = "SpecifiedTradeSettlementHeaderMonetarySummation|SpecifiedTradeSettlementMonetarySummation"
DOCUMENT = "ExchangedDocument|HeaderExchangedDocument"
TEXTS = {
    "number": (DOCUMENT, "ID"),
    "seller": (AGREEMENT, "SellerTradeParty", "Name"),
    "buyer": (AGREEMENT, "BuyerTradeParty", "Name"),
    "iban": (SETTLEMENT, "SpecifiedTradeSettlementPaymentMeans", "PayeePartyCreditorFinancialAccount", "IBANID"),
}
AMOUNTS = {
    "total": (SETTLEMENT, SUMS, "GrandTotalAmount"),
    "tax": (SETTLEMENT, SUMS, "TaxTotalAmount"),
    "net": (SETTLEMENT, SUMS, "TaxBasisTotalAmount"),
    "due": (SETTLEMENT, SUMS, "DuePayableAmount"),
}
DATES = {
    "date": (DOCUMENT, "IssueDateTime", "DateTimeString"),
    "due_date": (SETTLEMENT, "SpecifiedTradePaymentTerms", "DueDateDateTime", "DateTimeString"),
}


@dataclass(frozen=True)
class InvoiceHeader:
    """Values of an invoice by field; only those that exist, and no amount of zero."""

    texts: dict[str, str]
    amounts: dict[str, Decimal]
    dates: dict[str, date]


def parse_header(xml: bytes) -> InvoiceHeader | None:
    """Parse the header; None if this is not such an invoice or not valid XML. Documents with a DTD are rejected."""
    if b"<!DOCTYPE" in xml or b"<!ENTITY" in xml:
        return None
    try:
        root = ET.fromstring(xml)
    except (ET.ParseError, ValueError):
        return None
    if _name(root) not in ROOTS:
        return None
    texts = {field: value for field, path in TEXTS.items() if (value := _text(root, path))}
    amounts = {field: amount for field, path in AMOUNTS.items() if (amount := _amount(_text(root, path)))}
    dates = {field: day for field, path in DATES.items() if (day := _date(_text(root, path)))}
    return InvoiceHeader(texts, amounts, dates) if texts else None


def _name(node: ET.Element) -> str:
    return node.tag.rpartition("}")[2]


def _text(root: ET.Element, path: tuple[str, ...]) -> str:
    """Return the text at a path with its line breaks; an address may follow a name on the next line."""
    first, *rest = path
    nodes = [node for node in root.iter() if _name(node) in first.split("|")][:1]
    for step in rest:
        nodes = [child for node in nodes for child in _children(node, step)]
    text = next((node.text.strip() for node in nodes if node.text and node.text.strip()), "")
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def _children(node: ET.Element, step: str) -> Iterator[ET.Element]:
    return (child for child in node if _name(child) in step.split("|"))


def _amount(text: str) -> Decimal | None:
    try:
        return Decimal(text) if text else None
    except InvalidOperation:
        return None


def _date(text: str) -> date | None:
    for format in ("%Y%m%d", "%Y-%m-%d"):
        try:
            return datetime.strptime(text[:10], format).date()
        except ValueError:
            continue
    return None
