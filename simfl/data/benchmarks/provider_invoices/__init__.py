"""Invoices of invented providers: a benchmark that builds itself, and an endless stream of pages for pretraining."""

from simfl.data.benchmarks.provider_invoices.benchmark import ProviderInvoices
from simfl.data.benchmarks.provider_invoices.documents import Document, Recipe, draw_documents

__all__ = ["Document", "ProviderInvoices", "Recipe", "draw_documents"]
