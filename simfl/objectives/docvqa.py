"""Document question answering: the model reads a prompt and the words of a page, and generates the answer.

Input and loss are VT5's in the PFL-DocVQA competition (2023). The input is

    question: <question>  context: <word> <word> … </s>

and every token of a word has the word's box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl import metrics
from simfl.constraints import PositiveInt
from simfl.errors import DataError
from simfl.objectives.base import Objective
from simfl.objectives.images import decode_images
from simfl.protocol import Batch, Examples, Outputs
from simfl.seeds import seed_for

END, PAD, NO_LABEL = 1, 0, -100
NOTHING = "none"
TABLE_ROWS = 1024  # rows of the model's box embeddings
PROMPT_BOX = (0, 0, 1000, 1000)


@dataclass(frozen=True)
class DocVqa(Objective):
    """Generation of the answer to a question about a page; scored by ANLS and accuracy."""

    max_tokens: PositiveInt = 512  # of prompt, words and end token; the rest of the page is cut
    max_answer: PositiveInt = 20  # tokens of an answer including its end token, in training and generation
    answer: Literal["first", "drawn"] = "first"  # which of several correct answers to learn; drawn: by a hash of the id
    anls_threshold: Literal["ge", "gt"] = "ge"  # whether ANLS counts a similarity of exactly ½ (ge) or not (gt)
    confidence: Literal["answer", "batch"] = "answer"  # probabilities up to the end of the answer, or of the batch

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "boxes", "attention_mask", "labels", "pixel_values")
    metric: ClassVar[str] = "anls"
    metrics: ClassVar[tuple[str, ...]] = ("anls", "accuracy")
    target: ClassVar[str] = "labels"

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return the examples of a split.

        Rows: `input_ids` int32 [N, L], `boxes` int16 [N, L, 4], `attention_mask` bool [N, L], `labels` int64 [N, T].
        L and T are the split's longest, rounded up to 16 and 4. Shared: `pixel_values` uint8 [documents, 3, S, S].
        Raises DataError if the split has no documents.
        """
        if split.documents is None or tokenizer is None:
            raise DataError("docvqa: needs documents and a model with a tokenizer; the data or the model have none")
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
        return Examples(rows, {"pixel_values": ("document", page_images(split.documents, tokenizer.image_size))})

    def _labels(self, examples: Any, tokenizer: Any) -> Tensor:
        texts = []
        for name, answers in zip(examples["id"].to_pylist(), examples["answers"].to_pylist(), strict=True):
            pick = seed_for("answer", name) % len(answers) if self.answer == "drawn" and answers else 0
            texts.append(answers[pick].lower() if answers else "")
        answers_ids = [[*ids[: self.max_answer - 1], END] for ids in tokenizer.encode(texts)]
        length = round_up(max(map(len, answers_ids), default=1), 4, self.max_answer)
        labels = np.full((len(answers_ids), length), NO_LABEL, np.int64)
        for row, ids in enumerate(answers_ids):
            labels[row, : len(ids)] = ids
        return torch.from_numpy(labels)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy summed over the tokens of each answer, and their number; both [B]."""
        labels = batch["labels"]
        real = (labels != NO_LABEL).to(outputs.logits.dtype) * batch["mask"][..., None]
        log_probs = outputs.logits.log_softmax(-1)
        picked = log_probs.gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
        return -(picked * real).sum(-1), real.sum(-1)

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """Return `answer` and its `confidence`; `module` has `generate` and `tokenizer` like VT5's."""
        given = {name: batch[name] for name in self.inputs if name != "labels"}
        tokens, probs = module.generate(**given, max_tokens=self.max_answer - 1)
        answers = module.tokenizer.decode(tokens.tolist())
        return {"answer": answers, "confidence": confidence(tokens, probs, self.confidence).tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `anls` and `accuracy` of each answer."""
        answers = split.examples["answers"].take(rows).to_pylist()
        pairs = list(zip(predictions["answer"], answers, strict=True))
        return {
            "anls": np.array([anls(given, right, self.anls_threshold) for given, right in pairs], np.float64),
            "accuracy": np.array([accuracy(given, right) for given, right in pairs], np.float64),
        }


def confidence(tokens: Tensor, probs: Tensor, rule: str) -> Tensor:
    """Return the product of the probabilities [B, n] of each answer's tokens [B, n] without its end token; [B].

    Rule `batch` is that of the published code: it leaves out the last step of the batch and includes steps after the
    end of shorter answers, so the result depends on the other examples of the batch. The rules agree for a batch of one
    answer that ended.
    """
    if rule == "batch":
        return probs[:, :-1].prod(-1)
    inside = ((tokens == END).cumsum(-1) == 0).to(probs.dtype)
    return (probs * inside + (1 - inside)).prod(-1)


def anls(prediction: str, answers: Sequence[str], rule: str = "ge") -> float:
    """Return `simfl.metrics.anls`; 0 for the literal answer "none", which models give if they find nothing."""
    return 0.0 if metrics.normalize_answer(prediction) == NOTHING else metrics.anls(prediction, answers, rule)


def accuracy(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the prediction is one of the answers; 0 for the literal answer "none"."""
    text = metrics.normalize_answer(prediction)
    return float(text != NOTHING and text in [metrics.normalize_answer(answer) for answer in answers])


class _Words:
    """Tokens and boxes of all documents; each distinct word is tokenized once."""

    def __init__(self, documents: Any, tokenizer: Any) -> None:
        column = documents["words"].combine_chunks()
        flat = column.flatten().dictionary_encode()
        tokens = tokenizer.encode([word.lower() for word in flat.dictionary.to_pylist()])
        sizes = np.array([len(ids) for ids in tokens], np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        table = np.array([token for ids in tokens for token in ids], np.int32)
        word = flat.indices.to_numpy(zero_copy_only=False)
        counts = sizes[word]
        ends = np.cumsum(counts)
        inside = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        self._ids = table[np.repeat(starts[word], counts) + inside] if len(word) else np.zeros(0, np.int32)
        scale = tokenizer.box_scale
        boxes = documents["boxes"].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        # the reference truncates doubles; a float32 just below an integer must not be truncated to the one before
        cut = np.clip(boxes * scale + 1e-6 * scale, 0, TABLE_ROWS - 1).astype(np.int16).reshape(-1, 4)
        if len(cut) != len(word):
            raise DataError(f"docvqa: {len(word)} words have {len(cut)} boxes")
        self._boxes = np.repeat(cut, counts, axis=0)
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        self._bounds = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(lengths)])]

    def length(self, document: int) -> int:
        """Return the number of tokens of a document."""
        return int(self._bounds[document + 1] - self._bounds[document])

    def take(self, document: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first tokens of a document [count] and their boxes [count, 4]."""
        first = self._bounds[document]
        return self._ids[first : first + count], self._boxes[first : first + count]


def page_images(documents: Any, size: int) -> Tensor:
    """Return the documents' pages, uint8 [documents, 3, size, size]. Raises DataError without images."""
    column = "image" if "image" in documents.column_names else "image_path"
    if column not in documents.column_names:
        raise DataError(
            f"docvqa: the documents have neither 'image' nor 'image_path'; their columns: {documents.column_names}"
        )
    names = [f"document {name}" for name in documents["id"].to_pylist()]
    return decode_images(documents[column].to_pylist(), "RGB", (size, size), names)


def round_up(length: int, step: int, maximum: int) -> int:
    """Return the next multiple of `step`, at most `maximum`."""
    return min(-(-length // step) * step, maximum)
