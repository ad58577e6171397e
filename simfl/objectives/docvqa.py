"""Questions about a page: prompt and words in, answer out (VT5, as in the PFL-DocVQA competition, 2023).

question: <question>  context: <word> <word> … </s>        every piece of a word has the word's box
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl.constraints import Count
from simfl.errors import DataError
from simfl.objectives.base import Objective
from simfl.objectives.images import table
from simfl.objectives.metrics import accuracy, anls
from simfl.protocol import Batch, Examples, Outputs
from simfl.seeds import seed_for

END, PAD, NO_LABEL = 1, 0, -100
TABLE_ROWS = 1024  # of the model's box tables
PROMPT_BOX = (0, 0, 1000, 1000)


@dataclass(frozen=True)
class DocVqa(Objective):
    """Generate the answer to a question about a page; scored by ANLS and accuracy."""

    max_tokens: Count = 512  # of prompt, words and end; what lies beyond is cut
    max_answer: Count = 20  # pieces of an answer with its end, in training; and of what is generated
    answer: Literal["first", "drawn"] = "first"  # which of several right answers is learnt; drawn by the question's id
    anls_threshold: Literal["ge", "gt"] = "ge"  # whether a similarity of exactly ½ counts
    confidence: Literal["answer", "batch"] = "answer"  # chances multiplied to the answer's end, or the batch's

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "boxes", "attention_mask", "labels", "pixel_values")
    metric: ClassVar[str] = "anls"
    metrics: ClassVar[tuple[str, ...]] = ("anls", "accuracy")
    target: ClassVar[str] = "labels"

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Rows `input_ids` int32 [N, L], `boxes` int16 [N, L, 4], `attention_mask` bool [N, L], `labels` int64 [N, T].

        L and T are the split's longest, rounded up to 16 and 4. Shared: `pixel_values` uint8 [documents, 3, S, S].
        DataError if the split has no documents.
        """
        if split.documents is None or tokenizer is None:
            raise DataError("docvqa: needs documents and a model that reads text; the data or the model have none")
        examples = split.examples
        document = examples["document"].to_numpy()
        words = _Words(split.documents, tokenizer)
        prompts = tokenizer.encode([f"question: {q}  context: " for q in examples["question"].to_pylist()])
        lengths = np.minimum(
            [len(p) + words.length(d) + 1 for p, d in zip(prompts, document, strict=True)], self.max_tokens
        )
        ids = np.full((len(prompts), round_up(int(lengths.max(initial=1)), 16, self.max_tokens)), PAD, np.int32)
        boxes = np.zeros((*ids.shape, 4), np.int16)
        for row, (prompt, page, length) in enumerate(zip(prompts, document, lengths, strict=True)):
            start, end = min(len(prompt), length - 1), length - 1
            ids[row, :start], boxes[row, :start] = prompt[:start], PROMPT_BOX
            ids[row, start:end], boxes[row, start:end] = words.take(page, end - start)
            ids[row, end] = END
        rows = {
            "input_ids": torch.from_numpy(ids),
            "boxes": torch.from_numpy(boxes),
            "attention_mask": torch.from_numpy(np.arange(ids.shape[1]) < lengths[:, None]),
            "labels": self._labels(examples, tokenizer),
            "document": torch.from_numpy(document.astype(np.int64)),
        }
        return Examples(rows, {"pixel_values": ("document", pages(split.documents, tokenizer.image_size))})

    def _labels(self, examples: Any, tokenizer: Any) -> Tensor:
        texts = []
        for name, answers in zip(examples["id"].to_pylist(), examples["answers"].to_pylist(), strict=True):
            pick = seed_for("answer", name) % len(answers) if self.answer == "drawn" and answers else 0
            texts.append(answers[pick].lower() if answers else "")
        pieces = [[*found[: self.max_answer - 1], END] for found in tokenizer.encode(texts)]
        labels = np.full(
            (len(pieces), round_up(max(map(len, pieces), default=1), 4, self.max_answer)), NO_LABEL, np.int64
        )
        for row, found in enumerate(pieces):
            labels[row, : len(found)] = found
        return torch.from_numpy(labels)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the tokens of each answer, logits [B, T, V], and the number of tokens; both [B]."""
        labels = batch["labels"]
        real = (labels != NO_LABEL).to(outputs.logits.dtype) * batch["mask"][..., None]
        chances = outputs.logits.log_softmax(-1)
        picked = chances.gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
        return -(picked * real).sum(-1), real.sum(-1)

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """`answer` (text) and `confidence` of each example; `module` has VT5's `generate` and `text`."""
        given = {name: batch[name] for name in self.inputs if name != "labels"}
        pieces, chances = module.generate(**given, max_tokens=self.max_answer - 1)
        answers = module.text.decode(pieces.tolist())
        return {"answer": answers, "confidence": confidence(pieces, chances, self.confidence).tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """`anls` and `accuracy` of each row."""
        answers = split.examples["answers"].take(rows).to_pylist()
        pairs = list(zip(predictions["answer"], answers, strict=True))
        return {
            "anls": np.array([anls(given, right, self.anls_threshold) for given, right in pairs], np.float64),
            "accuracy": np.array([accuracy(given, right) for given, right in pairs], np.float64),
        }


def confidence(pieces: Tensor, chances: Tensor, rule: str) -> Tensor:
    """The product of the chances [B, n] of each answer's pieces [B, n], the end left out; [B].

    `batch` is the published code's: the last step of the batch is left out, and steps after a shorter answer's end
    count, so the number depends on which examples stand beside it. The two agree for a batch of one that ended.
    """
    if rule == "batch":
        return chances[:, :-1].prod(-1)
    inside = ((pieces == END).cumsum(-1) == 0).to(chances.dtype)
    return (chances * inside + (1 - inside)).prod(-1)


class _Words:
    """The pieces and boxes of every document, each different word tokenised once."""

    def __init__(self, documents: Any, tokenizer: Any) -> None:
        column = documents["words"].combine_chunks()
        flat = column.flatten().dictionary_encode()
        pieces = tokenizer.encode([word.lower() for word in flat.dictionary.to_pylist()])
        sizes = np.array([len(p) for p in pieces], np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        table = np.array([piece for p in pieces for piece in p], np.int32)
        word = flat.indices.to_numpy(zero_copy_only=False)
        counts = sizes[word]
        ends = np.cumsum(counts)
        inside = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        self._ids = table[np.repeat(starts[word], counts) + inside] if len(word) else np.zeros(0, np.int32)
        scale = tokenizer.box_scale
        boxes = documents["boxes"].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        # the boxes were cut to integers from doubles; a float32 just below an integer must not fall to the one before
        cut = np.clip(boxes * scale + 1e-6 * scale, 0, TABLE_ROWS - 1).astype(np.int16).reshape(-1, 4)
        if len(cut) != len(word):
            raise DataError(f"docvqa: {len(word)} words have {len(cut)} boxes")
        self._boxes = np.repeat(cut, counts, axis=0)
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        self._bounds = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(lengths)])]

    def length(self, document: int) -> int:
        return int(self._bounds[document + 1] - self._bounds[document])

    def take(self, document: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The first pieces of a document [count] and their boxes [count, 4]."""
        first = self._bounds[document]
        return self._ids[first : first + count], self._boxes[first : first + count]


def pages(documents: Any, size: int) -> Tensor:
    """The documents' pages as uint8 [documents, 3, size, size]; DataError without images."""
    column = "image" if "image" in documents.column_names else "image_path"
    if column not in documents.column_names:
        raise DataError(f"docvqa: the documents have neither 'image' nor 'image_path', but {documents.column_names}")
    names = [f"document {name}" for name in documents["id"].to_pylist()]
    return table(documents[column].to_pylist(), "RGB", (size, size), names)


def round_up(length: int, step: int, most: int) -> int:
    """The next multiple of `step`, or `most`."""
    return min(-(-length // step) * step, most)
