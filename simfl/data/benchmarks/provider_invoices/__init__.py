"""Invoices of made-up providers: a benchmark that builds itself, and an endless stream for pretraining."""

from simfl.data.benchmarks.provider_invoices.benchmark import ProviderInvoices
from simfl.data.benchmarks.provider_invoices.documents import Document, Recipe, draw_documents
from simfl.data.benchmarks.provider_invoices.tables import to_split

__all__ = ["Document", "ProviderInvoices", "Recipe", "draw_documents", "to_split"]
