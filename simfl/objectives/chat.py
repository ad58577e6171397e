"""Answers of a language model to prompts: instruction tuning, and questions about the words of a page.

A prompt is a template over the columns of an example, in the chat template of the model's tokenizer if it has one. For
a decoder, prompt and answer are one sequence, padded on the right for training; prompts are padded on the left for
generation. For a model with an encoder, the prompt is the encoder's input and the answer the decoder's.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simfl import metrics
from simfl.constraints import PositiveInt
from simfl.errors import ConfigError, DataError, nearest
from simfl.objectives.base import Objective, require_columns
from simfl.objectives.docvqa import NO_LABEL, round_up, token_losses
from simfl.objectives.notes import cut_answers, missing_answers
from simfl.objectives.pages import example_documents
from simfl.objectives.text_tokenizer import TextTokenizer, check_length, require_text_tokenizer
from simfl.protocol import Batch, Examples, Outputs

WORDS = "words"  # the field of a prompt that stands for the words of the example's page
STEP = 8  # lengths are rounded up to a multiple

Metric = Literal["anls", "accuracy", "exact", "rouge_l"]
SCORES: dict[str, Callable[[str, Sequence[str]], float]] = {
    "anls": metrics.anls,
    "accuracy": metrics.normalized_match,
    "exact": metrics.exact_match,
    "rouge_l": metrics.rouge_l,
}


class _Encoded(NamedTuple):
    """Token ids of an example: prompt, and answer with its end token; and how much of each was cut."""

    prompt: list[int]
    answer: list[int]
    cut_words: int
    cut_answer: bool


@dataclass(frozen=True)
class Chat(Objective):
    """Generation of an answer to a prompt by a causal language model, or by one with an encoder."""

    prompt: str = "{question}"  # template; {name} is a column of the examples, {words} the words of the page
    answer: str = "answers"  # column of the answers: a text or a list of texts, of which the first is learned
    system: str = ""  # instruction before every prompt
    max_tokens: PositiveInt = 512  # of a prompt; words of the page are left out from the end until it fits
    max_answer: PositiveInt = 32  # tokens of an answer including its end token, in training and generation
    loss_on: Literal["answer", "all"] = "answer"  # tokens that are learned; all: those of the prompt too
    metric: Metric = "anls"  # type: ignore[misc]  # the main metric

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "decoder_input_ids")
    metrics: ClassVar[tuple[str, ...]] = tuple(SCORES)
    target: ClassVar[str] = "labels"

    def __post_init__(self) -> None:
        """Raise ConfigError if the template has no field or is damaged."""
        if not self.fields():
            raise ConfigError(
                "objective.prompt: it has no field of an example, such as {question}; allowed: a template"
            )

    def fields(self) -> list[str]:
        """Return the names of the fields of the prompt; ConfigError if the template is damaged."""
        try:
            return [name for _, name, _, _ in string.Formatter().parse(self.prompt) if name is not None]
        except ValueError as error:
            raise ConfigError(f"objective.prompt: {self.prompt!r} is no template ({error}); {{{{ is a brace") from error

    def check(self, split: Any) -> None:
        """Raise DataError if a column that the prompt or the answer names is missing."""
        columns = split.examples.column_names
        for name in (*(field for field in self.fields() if field != WORDS), self.answer):
            if name not in columns:
                raise DataError(f"chat: the examples have no column {name!r}; {nearest(name, columns)}")
            if name != self.answer and split.examples[name].null_count:
                row = split.examples[name].is_null().to_pylist().index(True)
                raise DataError(f"chat: row {row}, column {name!r}: null, expected a value for every example")
        if "string" not in str(split.examples[self.answer].type):
            kind = split.examples[self.answer].type
            raise DataError(f"chat: column {self.answer!r} has type {kind}, expected a text or a list of texts")
        if WORDS in self.fields():
            if split.documents is None:
                raise DataError("chat: {words} needs documents, the data have none")
            require_columns(split.examples, ("document",), "chat: the examples")
            require_columns(split.documents, ("id", WORDS), "chat: the documents")

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return the examples of a split.

        Rows, with L, P and T the split's longest, rounded up to 8: `input_ids`, `attention_mask` and `labels` int64
        [N, L], where labels[t] is the token after position t, and −100 where none is learned; `prompt_ids` and
        `prompt_mask` int64 [N, P], padded on the left. For a model with an encoder, `labels` and `decoder_input_ids`
        are [N, T].

        Raises:
            DataError: A column is missing, a prompt does not fit without words, or the model has no tokenizer of
                transformers.
        """
        given = require_text_tokenizer(tokenizer, "chat")
        self.check(split)
        encoded = self._encoded(split, given)
        longest = max((len(one.prompt) + len(one.answer) * (not given.has_encoder) for one in encoded), default=0)
        check_length(given, longest, "chat", "max_tokens or max_answer")
        rows = self._with_encoder(encoded, given) if given.has_encoder else self._decoder_only(encoded, given)
        rows |= _padded("prompt", [one.prompt for one in encoded], given.pad_id, left=True)
        return Examples(
            {name: torch.from_numpy(table) for name, table in rows.items()}, None, self._notes(encoded, split)
        )

    def _notes(self, encoded: Sequence[_Encoded], split: Any) -> tuple[str, ...]:
        cut = [one.cut_words for one in encoded if one.cut_words]
        words = (
            f"max_tokens {self.max_tokens}: {sum(cut):,} words are cut, in {len(cut):,} of {len(encoded):,} examples"
        )
        silent = sum(not texts for texts in self._answers(split.examples))
        return (
            *[words] * bool(cut),
            *cut_answers(sum(one.cut_answer for one in encoded), len(encoded), self.max_answer),
            *missing_answers(silent, len(encoded), "and teach the model to give none"),
        )

    def _answers(self, examples: Any) -> list[list[str]]:
        """Return the answers of each example that are not blank."""
        given = examples[self.answer].to_pylist()
        lists = [[one] if isinstance(one, str) else one or [] for one in given]
        return [[text for text in texts if text and text.strip()] for texts in lists]

    def _encoded(self, split: Any, tokenizer: TextTokenizer) -> list[_Encoded]:
        """Return the tokens of all examples."""
        names = [name for name in self.fields() if name != WORDS]
        examples, words = split.examples, _page_words(split) if WORDS in self.fields() else None
        values: list[dict[str, Any]] = examples.select(names).to_pylist() if names else [{}] * examples.num_rows
        prompts = self._prompts(values, words, tokenizer)
        firsts = [texts[0] if texts else "" for texts in self._answers(examples)]
        answers = tokenizer.encode(firsts)
        return [
            _Encoded(prompt, [*ids[: self.max_answer - 1], tokenizer.end_id], cut, len(ids) >= self.max_answer)
            for (prompt, cut), ids in zip(prompts, answers, strict=True)
        ]

    def _prompts(
        self, values: Sequence[Mapping[str, Any]], words: Sequence[Sequence[str]] | None, tokenizer: TextTokenizer
    ) -> list[tuple[list[int], int]]:
        """Return the tokens of each prompt and how many words were left out so that it fits."""
        pages = words if words is not None else [()] * len(values)
        whole = tokenizer.chat(self.system, [self._text(v, page) for v, page in zip(values, pages, strict=True)])
        if [] in whole:
            raise DataError(f"chat: the prompt of row {whole.index([])} is empty")
        return [
            (ids, 0) if len(ids) <= self.max_tokens else self._shortened(row, values[row], pages[row], tokenizer)
            for row, ids in enumerate(whole)
        ]

    def _text(self, values: Mapping[str, Any], words: Sequence[str]) -> str:
        return self.prompt.format(**{**values, WORDS: " ".join(words)})

    def _shortened(
        self, row: int, values: Mapping[str, Any], words: Sequence[str], tokenizer: TextTokenizer
    ) -> tuple[list[int], int]:
        """Return the tokens of a prompt with as many words as fit, and how many do not; found by bisection."""
        fits, too_many, best = -1, len(words), list[int]()
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            ids = tokenizer.chat(self.system, [self._text(values, words[:middle])])[0]
            if len(ids) <= self.max_tokens:
                fits, best = middle, ids
            else:
                too_many = middle
        if fits < 0:
            raise DataError(
                f"chat: the prompt of row {row} has more than max_tokens {self.max_tokens} tokens without words"
            )
        return best, len(words) - fits

    def _decoder_only(self, encoded: Sequence[_Encoded], tokenizer: TextTokenizer) -> dict[str, np.ndarray]:
        """Return the inputs of a decoder: prompt and answer in one sequence, without the end of the answer."""
        rows = _padded("input", [one.prompt + one.answer[:-1] for one in encoded], tokenizer.pad_id)
        labels = np.full(rows["input_ids"].shape, NO_LABEL, np.int64)
        for row, (prompt, answer, _, _) in enumerate(encoded):
            start = len(prompt) - 1
            labels[row, start : start + len(answer)] = answer
            if self.loss_on == "all":
                labels[row, :start] = prompt[1:]
        return {"input_ids": rows["input_ids"], "attention_mask": rows["input_mask"], "labels": labels}

    def _with_encoder(self, encoded: Sequence[_Encoded], tokenizer: TextTokenizer) -> dict[str, np.ndarray]:
        """Return the inputs of encoder and decoder; the decoder's are the labels shifted by its first token."""
        if self.loss_on == "all":
            raise DataError("chat: loss_on 'all' needs a model without an encoder; allowed: answer")
        rows = _padded("input", [one.prompt for one in encoded], tokenizer.pad_id)
        answers = _padded("answer", [one.answer for one in encoded], tokenizer.pad_id)
        labels = np.where(answers["answer_mask"] > 0, answers["answer_ids"], NO_LABEL)
        shifted = np.roll(answers["answer_ids"], 1, axis=1)
        shifted[:, 0] = tokenizer.decoder_start
        return {
            "input_ids": rows["input_ids"],
            "attention_mask": rows["input_mask"],
            "decoder_input_ids": shifted,
            "labels": labels,
        }

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy summed over the learned tokens of each example, and their number; both [B]."""
        return token_losses(outputs, batch)

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """Return `answer`, generated greedily by the model's own `generate`."""
        prompt, mask = batch["prompt_ids"], batch["prompt_mask"]
        tokens = module.generate(
            input_ids=prompt, attention_mask=mask, max_new_tokens=self.max_answer, do_sample=False, num_beams=1
        )
        start = 0 if module.config.is_encoder_decoder else prompt.shape[1]
        return {"answer": module.hf_tokenizer.decode(tokens[:, start:].tolist())}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return every metric of each answer."""
        answers = self._answers(split.examples.select([self.answer]).take(rows))
        pairs = list(zip(predictions["answer"], answers, strict=True))
        return {
            name: np.array([rule(given, right) for given, right in pairs], np.float64) for name, rule in SCORES.items()
        }

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return the first answers."""
        answers = self._answers(split.examples.select([self.answer]).take(rows))
        return {"answer": [texts[0] if texts else "" for texts in answers]}


def _page_words(split: Any) -> list[list[str]]:
    """Return the words of each example's page."""
    pages = split.documents[WORDS].to_pylist()
    return [pages[page] or [] for page in example_documents(split.examples, split.documents, "chat")]


def _padded(name: str, rows: Sequence[Sequence[int]], pad: int, left: bool = False) -> dict[str, np.ndarray]:
    """Return `<name>_ids` and `<name>_mask`, int64 [N, L] with L the longest row, rounded up."""
    length = round_up(max(map(len, rows), default=1), STEP, 1 << 30)
    ids, mask = np.full((len(rows), length), pad, np.int64), np.zeros((len(rows), length), np.int64)
    for row, values in enumerate(rows):
        part = slice(length - len(values), None) if left else slice(0, len(values))
        ids[row, part], mask[row, part] = values, 1
    return {f"{name}_ids": ids, f"{name}_mask": mask}
