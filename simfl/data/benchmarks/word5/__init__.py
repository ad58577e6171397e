"""Pictures of words in five styles: a benchmark for federated word recognition that builds itself."""

from simfl.data.benchmarks.word5.benchmark import Word5

__all__ = ["Word5"]
