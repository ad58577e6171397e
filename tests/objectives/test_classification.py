"""Classification: images and feature vectors, cross-entropy and accuracy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from documents import png
from torch import nn

from simfl.data.base import Split
from simfl.errors import DataError
from simfl.objectives.classification import Classification
from simfl.protocol import Outputs


def featured() -> Split:
    features = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4, 5, 6], pa.float32()), 2)
    return Split(pa.table({"features": features, "label": pa.array([0, 2, 1], pa.int32())}))


def test_classification_keeps_feature_vectors_unchanged() -> None:
    examples = Classification().encode(featured(), None)
    assert examples.rows["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert examples.rows["label"].tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("objective", "shape"), [(Classification(), (2, 3, 8, 6)), (Classification(image_size=5, grey=True), (2, 1, 5, 5))]
)
def test_classification_decodes_images_to_uint8(objective: Classification, shape: tuple[int, ...]) -> None:
    images = pa.table({"image": [png((9, 9, 9)), png((200, 200, 200))], "label": pa.array([0, 1], pa.int32())})
    x = objective.encode(Split(images), None).rows["x"]
    assert (x.shape, x.dtype) == (shape, torch.uint8)
    assert x[:, 0, 0, 0].tolist() == [9, 200]


def test_images_of_different_shapes_are_refused() -> None:
    images = pa.table({"image": [png((9, 9, 9)), png((9, 9, 9), (7, 7))], "label": pa.array([0, 1], pa.int32())})
    with pytest.raises(DataError, match="images differ in shape"):
        Classification().encode(Split(images), None)


def test_classification_refuses_examples_without_inputs_or_labels() -> None:
    with pytest.raises(DataError, match="no column 'label'"):
        Classification().encode(Split(pa.table({"text": ["a"]})), None)
    with pytest.raises(DataError, match="neither 'features' nor 'image'"):
        Classification().encode(Split(pa.table({"label": [1]})), None)


def test_classification_loss_is_the_cross_entropy_of_real_examples() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    batch = {"label": torch.tensor([1, 2, 1]), "mask": torch.tensor([1.0, 1.0, 0.0])}
    sums, weights = Classification().loss(Outputs(logits), batch)
    assert torch.allclose(sums[1], torch.tensor(3.0).log())
    assert torch.allclose(sums[:2], nn.functional.cross_entropy(logits[:2], batch["label"][:2], reduction="none"))
    assert (sums[2], weights.tolist()) == (0, [1, 1, 0])


def test_classification_predicts_labels_and_scores_accuracy() -> None:
    module = nn.Linear(2, 3)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
        module.bias.zero_()
    found = Classification().predict(module, {"x": torch.tensor([[2.0, 0.0], [0.0, 3.0]])})
    assert found["label"] == [0, 1]
    assert found["confidence"][0] == pytest.approx(np.exp(2) / (np.exp(2) + 1 + np.exp(-2)))
    scores = Classification().score(found, featured(), np.array([0, 1]))
    assert scores["accuracy"].tolist() == [1, 0]
    assert tuple(scores) == Classification.metrics
