"""What runs on a worker, in this process or in an actor: a resident model and data, given cohorts and shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from simfl.cohort.plan import CohortPlan
from simfl.cohort.stage import Stage
from simfl.cohort.visit import CohortResult, train_cohort
from simfl.evaluation import EvaluationPlan, Scores, evaluate
from simfl.experiment import Experiment
from simfl.memory import Store
from simfl.protocol import Parts, Weights
from simfl.setting import Setting


@dataclass(frozen=True)
class Setup:
    """All that a worker is made from."""

    experiment: Experiment
    cache: Path
    memory: Path
    way: str
    num_clients: int
    device: str = "cpu"


class Worker:
    """One process's share of the work. Its threads are fixed, since sums on the CPU depend on their number."""

    def __init__(self, setup: Setup, setting: Setting | None = None) -> None:
        torch.set_num_threads(setup.experiment.cohort.threads)
        self.setup = setup
        self.setting = setting or Setting(setup.experiment, setup.cache, torch.device(setup.device))
        self.store = Store(setup.memory)
        self.stages: dict[int, Stage] = {}
        self.phase = -1

    def begin(self, phase: int, base: Weights) -> None:
        """Enter a phase: `base` is what earlier phases made of the model."""
        with torch.no_grad():
            own = dict(self.setting.module.named_parameters()) | dict(self.setting.module.named_buffers())
            for name, tensor in base.items():
                own[name].copy_(tensor)
        self.phase = phase
        self.stages[phase] = self.setting.stage(phase, self.setup.num_clients)

    def train(self, plan: CohortPlan, received: Parts) -> CohortResult:
        """Train a cohort."""
        experiment = self.setup.experiment
        parts = self._here(received)
        result = train_cohort(self.stages[plan.phase], self.store, plan, parts, self.setup.way, experiment.on_error)
        result.sums = {part: _on_cpu(tensors) for part, tensors in result.sums.items()}
        result.gathered = {part: [_on_cpu(t) for t in uploads] for part, uploads in result.gathered.items()}
        return result

    def evaluate(self, plan: EvaluationPlan, received: Parts) -> Scores:
        """Score a shard."""
        size = self.setup.experiment.evaluate.batch_size
        return evaluate(self.setting, self.stages[self.phase], self.store, plan, self._here(received), size)

    def _here(self, received: Parts) -> Parts:
        device = self.setting.device
        return {part: {name: t.to(device) for name, t in tensors.items()} for part, tensors in received.items()}


def _on_cpu(weights: Weights) -> Weights:
    return {name: tensor.cpu() for name, tensor in weights.items()}
