"""One task in several domains: kinds of emoji in four drawing styles, or digits from five sources."""

from simfl.data.benchmarks.domains.benchmark import Domains

__all__ = ["Domains"]
