"""Scores of examples under a model that an attacker has: loss, confidence and the task's metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from simfl import files
from simfl.data.base import Split
from simfl.errors import ConfigError, RunError
from simfl.experiment import Experiment
from simfl.models.call_context import ModelCall, call_context
from simfl.protocol import Examples, Forward, Weights
from simfl.run_context import RunContext
from simfl.runs.results import Run
from simfl.seeds import seed_for
from simfl.training.context import PhaseContext
from simfl.training.forward import model_inputs, run_forward, with_task_loss

ACCURACY = "accuracy"  # an extracted field is the whole answer
Features = dict[str, np.ndarray]  # name -> one value per example; a larger one speaks for membership
REPHRASINGS: tuple[Callable[[str], str], ...] = (
    lambda question: question,
    lambda question: question.lower(),
    lambda question: question.rstrip(" ?.") + ".",
    lambda question: f"Please answer: {question}",
)


def context_on_device(experiment: Experiment) -> RunContext:
    """Return the parts of a run on the GPU, if there is one: attacks need no bit-identical results."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return RunContext(experiment, files.cache_folder(), device)


@dataclass(frozen=True)
class Target:
    """The model of a run and the data that it is attacked with.

    Attributes:
        run: The run.
        data: Its data set, and the device on which its model computes.
        context: Its last phase.
        weights: Tensors of the final model.
        initial: The same tensors before the first round, which every client knows.
    """

    run: Run
    data: RunContext
    context: PhaseContext
    weights: Weights
    initial: Weights

    @staticmethod
    def of(run: Run) -> Target:
        """Return the final global model of a run, without personal parameters.

        Raises:
            RunError: There is no checkpoint.
        """
        data = context_on_device(run.experiment)
        weights = run.snapshot().to(data.device).model
        context = data.phase_context(len(run.experiment.phases) - 1, len(run.stored_partition))
        return Target(run, data, context, weights, context.network.tensors(tuple(weights)))

    def with_weights_of(self, other: Run) -> Target:
        """Return the model of another run, on the data of this one.

        Raises:
            RunError: The other run trains another model.
        """
        weights = other.snapshot().to(self.data.device).model
        there, here = ({name: t.shape for name, t in one.items()} for one in (weights, self.weights))
        if there != here:
            raise RunError(f"--shadow: {other.folder} trains other tensors than {self.run.folder}")
        return replace(self, weights=weights)

    def split(self, name: str) -> Split:
        """Return a split of the data."""
        return self.data.split(name)

    def encoded(self, split: str, rephrasing: int = 0) -> Examples:
        """Return a split as the objective encodes it, with each question in other words."""
        context = self.data
        if not rephrasing:
            return context.examples(self.context.phase.objective, split)
        data = context.split(split)
        position = data.examples.column_names.index("question")
        texts = [REPHRASINGS[rephrasing](text) for text in data.examples["question"].to_pylist()]
        changed = data.examples.set_column(position, "question", [texts])
        return self.encode(replace(data, examples=changed))

    def encode(self, data: Split) -> Examples:
        """Return data that are no split of the data set as the objective encodes them."""
        context = self.data
        encoded = self.context.phase.objective.encode(data, context.experiment.model.tokenizer())
        return encoded.to(context.device)

    def scores(self, data: Split, examples: Examples) -> np.ndarray:
        """Return the accuracy of the predictions for encoded data, float64 [n].

        Raises:
            ConfigError: The objective has no accuracy.
        """
        context, objective = self.context, self.context.phase.objective
        size, found, module = self.run.experiment.evaluate.batch_size, list[np.ndarray](), context.network.module.eval()
        with torch.no_grad(), call_context(ModelCall()), context.network.swapped(self.weights):
            for rows in np.array_split(np.arange(len(data)), math.ceil(len(data) / size)):
                predictions = objective.predict(module, examples.take(torch.from_numpy(rows).to(context.device)))
                scores = objective.score(predictions, data, rows)
                if ACCURACY not in scores:
                    raise ConfigError(f"extraction: {type(objective).__name__} has no metric {ACCURACY!r}")
                found.append(np.asarray(scores[ACCURACY], np.float64))
        return np.concatenate(found)

    def features(
        self, split: str, rows: np.ndarray, initial: bool = False, rephrasing: int = 0, loss_only: bool = False
    ) -> Features:
        """Return the features of some examples.

        Args:
            split: Name of the split.
            rows: Rows of the split, int64 [n].
            initial: Whether to use the model before the first round.
            rephrasing: Number of the wording of questions, from 0, which is the data's own.
            loss_only: Whether to leave out features that need predictions.

        Returns:
            `loss` (negative mean loss), the objective's metric and, if it predicts one, `confidence`; float64 [n].
        """
        weights, examples = self.initial if initial else self.weights, self.encoded(split, rephrasing)
        size, data = self.run.experiment.evaluate.batch_size, self.split(split)
        parts = [
            self._batch_features(weights, examples, data, rows[first : first + size], loss_only)
            for first in range(0, len(rows), size)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _batch_features(
        self, weights: Weights, examples: Examples, data: Split, rows: np.ndarray, loss_only: bool
    ) -> Features:
        context, objective = self.context, self.context.phase.objective
        batch = examples.take(torch.from_numpy(rows).to(context.device))
        key = torch.tensor(seed_for(context.seed, "audit"))
        forward = Forward(train=False, grad=False)
        outputs = with_task_loss(
            context, run_forward(context, forward, weights, model_inputs(context, batch), key), batch
        )
        assert outputs.loss_sums is not None
        assert outputs.loss_weights is not None
        loss = outputs.loss_sums / outputs.loss_weights.clamp_min(1e-12)
        found = {"loss": -loss.cpu().double().numpy()}
        if loss_only:
            return found
        context.network.module.eval()
        with torch.no_grad(), call_context(ModelCall()), context.network.swapped(weights):
            predictions = objective.predict(context.network.module, batch)
        found[objective.metric] = objective.score(predictions, data, rows)[objective.metric]
        if "confidence" in predictions:
            found["confidence"] = np.asarray(predictions["confidence"], np.float64)
        return found
