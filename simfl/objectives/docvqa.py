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
from simfl.objectives.answers import answer_lists
from simfl.objectives.base import Objective, require_documents
from simfl.objectives.notes import cut_answers, cut_questions, missing_answers, missing_images
from simfl.objectives.pages import example_documents, page_images, read_words
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

    def check(self, split: Any) -> None:
        """Raise DataError without documents, questions or answers."""
        columns = ("id", "document", "question", "answers")
        require_documents(split, "docvqa", columns, ("id", "words", "boxes"))

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return the examples of a split.

        Rows: `input_ids` int32 [N, L], `boxes` int16 [N, L, 4], `attention_mask` bool [N, L], `labels` int64 [N, T].
        L and T are the split's longest, rounded up to 16 and 4. Shared: `pixel_values` uint8 [documents, 3, S, S].
        Raises DataError if the split has no documents, or if words and boxes of a document do not match.
        """
        if tokenizer is None:
            raise DataError("docvqa: needs documents and a model with a tokenizer; the model has none")
        self.check(split)
        examples = split.examples
        document = example_documents(examples, split.documents, "docvqa")
        words = _Words(split.documents, tokenizer)
        prompts = tokenizer.encode([f"question: {q}  context: " for q in examples["question"].to_pylist()])
        wanted = np.array([len(p) + words.length(d) + 1 for p, d in zip(prompts, document, strict=True)], np.int64)
        lengths = np.minimum(wanted, self.max_tokens)
        ids = np.full((len(prompts), round_up(int(lengths.max(initial=1)), 16, self.max_tokens)), PAD, np.int32)
        boxes = np.zeros((*ids.shape, 4), np.int16)
        cuts = _Cuts(self.max_tokens, len(prompts))
        for row, (prompt, page, length) in enumerate(zip(prompts, document, lengths, strict=True)):
            start, end = min(len(prompt), length - 1), length - 1
            ids[row, :start], boxes[row, :start] = prompt[:start], PROMPT_BOX
            ids[row, start:end], boxes[row, start:end] = words.take(page, end - start)
            ids[row, end] = END
            if wanted[row] > length:
                cuts.add(words.num_cut(page, end - start), len(prompt) > start)
        labels, num_cut = self._labels(examples, tokenizer)
        rows = {
            "input_ids": torch.from_numpy(ids),
            "boxes": torch.from_numpy(boxes),
            "attention_mask": torch.from_numpy(np.arange(ids.shape[1]) < lengths[:, None]),
            "labels": labels,
            "document": torch.from_numpy(document),
        }
        pages = {"pixel_values": ("document", page_images(split.documents, tokenizer.image_size))}
        silent = missing_answers(num_unanswered(examples), len(prompts), "and teach the model to give none")
        notes = cuts.notes(words.count(document)) + cut_answers(num_cut, len(prompts), self.max_answer)
        return Examples(rows, pages, (*notes, *silent, *missing_images(split.documents)))

    def _labels(self, examples: Any, tokenizer: Any) -> tuple[Tensor, int]:
        """Return the tokens of the answers, and the number of answers that are cut."""
        texts = []
        for name, answers in zip(examples["id"].to_pylist(), answer_lists(examples), strict=True):
            pick = seed_for("answer", name) % len(answers) if self.answer == "drawn" and answers else 0
            texts.append(answers[pick].lower() if answers else "")
        tokens = tokenizer.encode(texts)
        answers_ids = [[*ids[: self.max_answer - 1], END] for ids in tokens]
        length = round_up(max(map(len, answers_ids), default=1), 4, self.max_answer)
        labels = np.full((len(answers_ids), length), NO_LABEL, np.int64)
        for row, ids in enumerate(answers_ids):
            labels[row, : len(ids)] = ids
        return torch.from_numpy(labels), sum(len(ids) >= self.max_answer for ids in tokens)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy summed over the tokens of each answer, and their number; both [B]."""
        return token_losses(outputs, batch)

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """Return `answer` and its `confidence`; `module` has `generate` and `tokenizer` like VT5's."""
        given = {name: batch[name] for name in self.inputs if name != "labels"}
        tokens, probs = module.generate(**given, max_tokens=self.max_answer - 1)
        answers = module.tokenizer.decode(tokens.tolist())
        return {"answer": answers, "confidence": confidence(tokens, probs, self.confidence).tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `anls` and `accuracy` of each answer."""
        answers = answer_lists(split.examples.select(["answers"]).take(rows))
        pairs = list(zip(predictions["answer"], answers, strict=True))
        return {
            "anls": np.array([anls(given, right, self.anls_threshold) for given, right in pairs], np.float64),
            "accuracy": np.array([accuracy(given, right) for given, right in pairs], np.float64),
        }

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return the first answers."""
        return {"answer": [(a or [""])[0] for a in answer_lists(split.examples.select(["answers"]).take(rows))]}


def token_losses(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy summed over the tokens `labels` of each example, and their number; both [B]."""
    labels = batch["labels"]
    real = (labels != NO_LABEL).to(outputs.logits.dtype) * batch["mask"][..., None]
    log_probs = outputs.logits.log_softmax(-1)
    picked = log_probs.gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
    return -(picked * real).sum(-1), real.sum(-1)


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


@dataclass
class _Cuts:
    """Words and questions that a limit cuts."""

    limit: int  # tokens
    num_examples: int
    examples: int = 0
    words: int = 0
    questions: int = 0

    def add(self, words: int, question: bool) -> None:
        """Count an example, of which so many words and perhaps the question are cut."""
        self.examples += 1
        self.words += words
        self.questions += question

    def notes(self, num_words: int) -> list[str]:
        """Return what was cut, of so many words in all examples."""
        where = f"in {self.examples:,} of {self.num_examples:,} examples"
        words = f"max_tokens {self.limit}: {self.words:,} of {num_words:,} words are cut, {where}"
        return [words] * bool(self.words) + cut_questions(self.questions, self.num_examples, self.limit)


def num_unanswered(examples: Any) -> int:
    """Return the number of examples without an answer."""
    return sum(not any(answer.strip() for answer in answers) for answers in answer_lists(examples))


class _Words:
    """Tokens and boxes of all documents; each distinct word is tokenized once."""

    def __init__(self, documents: Any, tokenizer: Any) -> None:
        words = read_words(documents, "docvqa")
        tokens = tokenizer.encode([word.lower() for word in words.texts])
        sizes = np.array([len(ids) for ids in tokens], np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        table = np.array([token for ids in tokens for token in ids], np.int32)
        counts = sizes[words.kinds]
        ends = np.cumsum(counts)
        inside = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        found = table[np.repeat(starts[words.kinds], counts) + inside] if len(words.kinds) else np.zeros(0, np.int32)
        self._ids, scale = found, tokenizer.box_scale
        # the reference truncates doubles; a float32 just below an integer must not be truncated to the one before
        cut = np.clip(words.boxes * scale + 1e-6 * scale, 0, TABLE_ROWS - 1).astype(np.int16)
        self._boxes = np.repeat(cut, counts, axis=0)
        self._ends, self._words = np.concatenate([[0], ends]), words.bounds
        self._bounds = self._ends[words.bounds]

    def length(self, document: int) -> int:
        """Return the number of tokens of a document."""
        return int(self._bounds[document + 1] - self._bounds[document])

    def count(self, documents: np.ndarray) -> int:
        """Return the number of words of documents; a repeated document counts each time."""
        return int(np.diff(self._words)[documents].sum())

    def num_cut(self, document: int, count: int) -> int:
        """Return the number of words that the first `count` tokens of a document do not hold whole."""
        first, last = self._words[document], self._words[document + 1]
        ends = self._ends[first + 1 : last + 1] - self._ends[first]
        return int((ends > count).sum())

    def take(self, document: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first tokens of a document [count] and their boxes [count, 4]."""
        first = self._bounds[document]
        return self._ids[first : first + count], self._boxes[first : first + count]


def round_up(length: int, step: int, maximum: int) -> int:
    """Return the next multiple of `step`, at most `maximum`."""
    return min(-(-length // step) * step, maximum)
