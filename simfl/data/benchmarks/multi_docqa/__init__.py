"""Five document tasks on real texts and numbers: a benchmark that builds itself from what pip installs."""

from simfl.data.benchmarks.multi_docqa.benchmark import MultiDocqa

__all__ = ["MultiDocqa"]
