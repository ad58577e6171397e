"""Answers of a language model to prompts: instruction tuning, and questions about the image or the words of a page.

A prompt is a template over the columns of an example, in the chat template of the model's tokenizer or processor if it
has one. For a decoder, prompt and answer are one sequence, padded on the right for training; prompts are padded on the
left for generation. For a model with an encoder, the prompt is the encoder's input and the answer the decoder's; where
the encoder reads images alone (Donut, Pix2Struct), prompt and answer are the decoder's. Pages are encoded by the
model's own processor, and shared by the questions about them.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from simfl import metrics
from simfl.constraints import PositiveInt
from simfl.errors import ConfigError, DataError, nearest
from simfl.objectives.base import Objective, require_columns
from simfl.objectives.docvqa import NO_LABEL, round_up, token_losses
from simfl.objectives.labelled import Values, at_positions, cross_entropy, hits, labelled_positions, position_values
from simfl.objectives.labelled import token_losses as known_losses
from simfl.objectives.notes import cut_answers, missing_answers, missing_images
from simfl.objectives.page_inputs import (
    NO_WORDS,
    PAGE_KEYS,
    TOKEN_FEATURES,
    EncodedPages,
    PageProcessor,
    Words,
    encode_pages,
    fitting_image_tokens,
    has_images,
    page_inputs,
    page_words,
)
from simfl.objectives.pages import example_documents
from simfl.objectives.text_tokenizer import TextTokenizer, check_length, require_text_tokenizer
from simfl.protocol import Batch, Examples, Outputs

WORDS = "words"  # the field of a prompt that stands for the words of the example's page
PROMPT_IDS, PROMPT_MASK = "prompt_ids", "prompt_mask"
POSITIONS = "label_positions"  # batch key of the positions of labels
STEP = 8  # lengths are rounded up to a multiple

Metric = Literal["anls", "accuracy", "exact", "rouge_l", "token_accuracy"]
TOKEN_ACCURACY = "token_accuracy"
SCORES: dict[str, Callable[[str, Sequence[str]], float]] = {
    "anls": metrics.anls,
    "accuracy": metrics.normalized_match,
    "exact": metrics.exact_match,
    "rouge_l": metrics.rouge_l,
}


TokenInputs = dict[str, np.ndarray]  # `input_ids` [P] and further inputs of every token of a prompt [P, …]


class _Encoded(NamedTuple):
    """Inputs of an example: the prompt, and the tokens of the answer with its end; and how much of each was cut."""

    prompt: TokenInputs
    answer: list[int]
    cut_words: int
    cut_answer: bool

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens of the prompt."""
        found: list[int] = self.prompt["input_ids"].tolist()
        return found


@dataclass(frozen=True)
class _Prompts:
    """Encodes prompts, each with its page if there are pages."""

    tokenizer: TextTokenizer
    system: str
    pages: EncodedPages | None

    def encode(self, rows: Sequence[int], texts: Sequence[str], words: Sequence[Words]) -> list[TokenInputs]:
        """Return the inputs of these rows' prompts; `words` are those of the pages, for models that read boxes."""
        processor = self.tokenizer.processor
        if processor is not None and processor.reads_boxes:
            found = [processor.encode_words(text, w.texts, w.boxes) for text, w in zip(texts, words, strict=True)]
            return [{name: values for name, values in one.items() if name != "word"} for one in found]
        if self.pages is None:
            return [{"input_ids": np.array(ids, np.int64)} for ids in self.tokenizer.chat(self.system, texts)]
        assert processor is not None
        return [self._of_page(processor, row, text) for row, text in zip(rows, texts, strict=True)]

    def _of_page(self, processor: PageProcessor, row: int, text: str) -> TokenInputs:
        assert self.pages is not None
        inputs = processor.encode(processor.text(self.system, text), self.pages.outlines[self.pages.of_example[row]])
        if not processor.in_decoder:
            return inputs
        start = np.array([self.tokenizer.decoder_start], np.int64)
        return {"input_ids": np.concatenate([start, inputs["input_ids"]])}

    def length(self, inputs: TokenInputs) -> int:
        """Return the number of tokens of a prompt; those that stand for an image are not counted."""
        if self.pages is None:
            return len(inputs["input_ids"])
        assert self.tokenizer.processor is not None
        return int((inputs["input_ids"] != self.tokenizer.processor.image_token).sum())


@dataclass(frozen=True)
class Chat(Objective):
    """Generation of an answer to a prompt by a causal language model, or by one with an encoder."""

    prompt: str = "{question}"  # template; {name} is a column of the examples, {words} the words of the page
    answer: str = "answers"  # column of the answers: a text or a list of texts, of which the first is learned
    system: str = ""  # instruction before every prompt
    image: bool | None = None  # show the model the page's image; null: if it reads images and the data have them
    max_tokens: PositiveInt = 512  # of a prompt without its image; words are left out from the end until it fits
    max_answer: PositiveInt = 32  # tokens of an answer including its end token, in training and generation
    loss_on: Literal["answer", "all"] = "answer"  # tokens that are learned; all: those of the prompt too
    buckets: PositiveInt | None = None  # batches are as long as their longest example, rounded up to a multiple of this
    metric: Metric = "anls"  # type: ignore[misc]  # token_accuracy: of learned tokens, each after the right ones

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = (
        "input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", POSITIONS,
        *TOKEN_FEATURES, *PAGE_KEYS, "labels",
    )  # fmt: skip
    target: ClassVar[str] = "labels"

    def __post_init__(self) -> None:
        """Raise ConfigError if the template has no field or is damaged."""
        if not self.fields():
            raise ConfigError(
                "objective.prompt: it has no field of an example, such as {question}; allowed: a template"
            )

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the metrics; token accuracy costs one more pass, and so is computed only if it is asked for."""
        return (*SCORES, *[TOKEN_ACCURACY] * (self.metric == TOKEN_ACCURACY))

    @property
    def keeps_logits(self) -> bool:  # type: ignore[override]
        """False if losses are computed without logits, as where all tokens are learned."""
        return self.loss_on == "answer"

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

        Rows, with L, P and T the split's longest, rounded up to 8: `input_ids` and `attention_mask` int64 [N, L],
        `labels` and `label_positions` int64 [N, T]: labels[t] is the token after position label_positions[t], and −100
        where there is none; with `loss_on: all`, `labels` are [N, L] and there are no positions. `prompt_ids` and
        `prompt_mask` int64 [N, P] are padded on the left. For a model with an encoder, `labels` and `decoder_input_ids`
        are [N, T]; if it reads images alone, the prompt is in `decoder_input_ids`. Shared: the features of pages, with
        pixels as uint8.

        Raises:
            DataError: A column is missing, a prompt does not fit without words, or the model has no tokenizer of
                transformers.
        """
        given = require_text_tokenizer(tokenizer, "chat")
        self.check(split)
        pages = self._pages(split, given)
        encoded = self._encoded(split, _Prompts(given, self.system, pages))
        longest = max((len(one.prompt_ids) + len(one.answer) * (not given.has_encoder) for one in encoded), default=0)
        check_length(given, longest, "chat", "max_tokens or max_answer")
        in_decoder = pages is not None and given.processor is not None and given.processor.in_decoder
        rows = (
            self._with_encoder(encoded, given) if given.has_encoder else self._decoder_only(encoded, given, in_decoder)
        )
        shared = {}
        if pages is not None:
            rows |= {"document": pages.of_example} | {n: c.numpy()[pages.of_example] for n, c in pages.counts.items()}
            shared = {name: ("document", table) for name, table in pages.tables.items()}
        found = {name: torch.from_numpy(table) for name, table in rows.items()}
        blank = missing_images(split.documents) if pages is not None and split.documents is not None else []
        return Examples(found, shared, (*self._notes(encoded, split), *blank))

    def _pages(self, split: Any, tokenizer: TextTokenizer) -> EncodedPages | None:
        """Return the pages, if the model is shown images; DataError if it cannot be."""
        needs = tokenizer.processor is not None and tokenizer.processor.in_decoder
        shown = (tokenizer.processor is not None and has_images(split)) if self.image is None else self.image
        if needs and not shown:
            raise DataError("chat: the model reads nothing but images; the data have no column 'image' or 'image_path'")
        if not shown:
            return None
        if tokenizer.processor is None:
            raise DataError("chat: image: true, but the model reads no images; allowed: a model of image_text_to_text")
        return encode_pages(split, tokenizer.processor, "chat")

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

    def _encoded(self, split: Any, prompts: _Prompts) -> list[_Encoded]:
        """Return the inputs of all examples."""
        names = [name for name in self.fields() if name != WORDS]
        examples, processor = split.examples, prompts.tokenizer.processor
        reads = WORDS in self.fields() or (processor is not None and processor.reads_boxes)
        words = _words_of_examples(split) if reads else [NO_WORDS] * examples.num_rows
        values: list[dict[str, Any]] = examples.select(names).to_pylist() if names else [{}] * examples.num_rows
        firsts = [texts[0] if texts else "" for texts in self._answers(examples)]
        answers, end = prompts.tokenizer.encode(firsts), prompts.tokenizer.answer_end()
        return [
            _Encoded(prompt, [*ids[: self.max_answer - 1], end], cut, len(ids) >= self.max_answer)
            for (prompt, cut), ids in zip(self._prompts(values, words, prompts), answers, strict=True)
        ]

    def _prompts(
        self, values: Sequence[Mapping[str, Any]], words: Sequence[Words], prompts: _Prompts
    ) -> list[tuple[TokenInputs, int]]:
        """Return the inputs of each prompt and how many words were left out so that it fits."""
        texts = [self._text(v, page.texts) for v, page in zip(values, words, strict=True)]
        whole = prompts.encode(range(len(texts)), texts, words)
        lengths = [prompts.length(inputs) for inputs in whole]
        if 0 in lengths:
            raise DataError(f"chat: the prompt of row {lengths.index(0)} is empty")
        return [
            (inputs, 0) if length <= self.max_tokens else self._shortened(row, values[row], words[row], prompts)
            for row, (inputs, length) in enumerate(zip(whole, lengths, strict=True))
        ]

    def _text(self, values: Mapping[str, Any], words: Sequence[str]) -> str:
        return self.prompt.format(**{**values, WORDS: " ".join(words)})

    def _shortened(
        self, row: int, values: Mapping[str, Any], words: Words, prompts: _Prompts
    ) -> tuple[TokenInputs, int]:
        """Return the inputs of a prompt with as many words as fit, and how many do not; found by bisection."""
        fits, too_many, best = -1, len(words.texts), TokenInputs()
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            some = words.first(middle)
            (inputs,) = prompts.encode([row], [self._text(values, some.texts)], [some])
            if prompts.length(inputs) <= self.max_tokens:
                fits, best = middle, inputs
            else:
                too_many = middle
        if fits < 0:
            raise DataError(
                f"chat: the prompt of row {row} has more than max_tokens {self.max_tokens} tokens without words"
            )
        return best, len(words.texts) - fits

    def _decoder_only(
        self, encoded: Sequence[_Encoded], tokenizer: TextTokenizer, in_decoder: bool
    ) -> dict[str, np.ndarray]:
        """Return the inputs of a decoder: prompt and answer in one sequence, without the end of the answer."""
        ids = [one.prompt_ids + one.answer[:-1] for one in encoded]
        prompts = _padded([one.prompt_ids for one in encoded], tokenizer.pad_id, left=not in_decoder)
        inputs, mask = _padded(ids, tokenizer.pad_id)
        names = ("decoder_input_ids", "decoder_attention_mask") if in_decoder else ("input_ids", "attention_mask")
        rows = {names[0]: inputs, names[1]: mask, PROMPT_IDS: prompts[0], PROMPT_MASK: prompts[1]}
        rows |= self._labels(encoded, inputs.shape)
        for name in encoded[0].prompt if encoded else ():
            if name != "input_ids":
                kind = tokenizer.processor.answer_type if tokenizer.processor and name == "token_type_ids" else 0
                tables = [one.prompt[name] for one in encoded]
                rows[name] = _padded_features(tables, [len(one.answer) - 1 for one in encoded], kind, inputs.shape[1])
                rows[f"prompt_{name}"] = _padded_features(tables, None, kind, prompts[0].shape[1])
        return rows

    def _labels(self, encoded: Sequence[_Encoded], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return the labels of a decoder and, unless all tokens are learned, their positions."""
        if self.loss_on == "all":
            labels: np.ndarray = np.full(shape, NO_LABEL, np.int64)
            for row, one in enumerate(encoded):
                tokens = [*one.prompt_ids[1:], *one.answer]
                labels[row, : len(tokens)] = tokens
            return {"labels": labels}
        answers, mask = _padded([one.answer for one in encoded], NO_LABEL)
        starts = np.array([len(one.prompt_ids) - 1 for one in encoded], np.int64).reshape(-1, 1)
        return {"labels": answers, POSITIONS: (starts + np.arange(answers.shape[1])) * mask}

    def _with_encoder(self, encoded: Sequence[_Encoded], tokenizer: TextTokenizer) -> dict[str, np.ndarray]:
        """Return the inputs of encoder and decoder; the decoder's are the labels shifted by its first token."""
        if self.loss_on == "all":
            raise DataError("chat: loss_on 'all' needs a model without an encoder; allowed: answer")
        inputs, mask = _padded([one.prompt_ids for one in encoded], tokenizer.pad_id)
        answers, answer_mask = _padded([one.answer for one in encoded], tokenizer.pad_id)
        labels = np.where(answer_mask > 0, answers, NO_LABEL)
        shifted = np.roll(answers, 1, axis=1)
        shifted[:, 0] = tokenizer.decoder_start
        rows = {"input_ids": inputs, "attention_mask": mask, "decoder_input_ids": shifted, "labels": labels}
        for name in encoded[0].prompt if encoded else ():
            if name != "input_ids":
                tables = [one.prompt[name] for one in encoded]
                rows[name] = _padded_features(tables, [0] * len(tables), 0, inputs.shape[1])
        return rows

    def full_length(self, examples: Callable[[], Examples]) -> int | None:
        """Return the longest input of the model; None if batches are not cut, as those of decoders that read images."""
        if self.buckets is None:
            return None
        rows = examples().rows
        return int(rows["input_ids"].shape[1]) if "input_ids" in rows else None

    def token_lengths(self, examples: Examples) -> np.ndarray:
        """Return the number of tokens that the model reads of each example, int64 [N]."""
        found: np.ndarray = examples.rows["attention_mask"].sum(1).cpu().numpy()
        return found

    def cut_length(self, longest: int, examples: Examples) -> int:
        """Return `longest`, rounded up to a multiple of `buckets`, and at most the longest of all.

        It differs from the length of the decoder's inputs of a model with an encoder, whose dropout is not cut.
        """
        assert self.buckets is not None
        full, length = int(examples.rows["input_ids"].shape[1]), -(-max(1, longest) // self.buckets) * self.buckets
        if "decoder_input_ids" in examples.rows and length == examples.rows["decoder_input_ids"].shape[1]:
            length += self.buckets
        return min(length, full)

    def cut(self, batch: Batch, length: int) -> Batch:
        """Return a batch whose inputs and features of tokens have the first `length` tokens."""
        axis = batch["attention_mask"].dim() - 1
        names = ["input_ids", "attention_mask", *TOKEN_FEATURES, *["labels"] * (self.loss_on == "all")]
        found = {name: batch[name].narrow(axis, 0, length) for name in names if name in batch}
        if POSITIONS in batch:  # padding of a batch may be a longer example, which counts nothing
            found[POSITIONS] = batch[POSITIONS].clamp_max(length - 1)
        return {**batch, **found}

    def length_of(self, inputs: Batch) -> int:
        """Return the number of tokens of the inputs of the model."""
        return int(inputs["input_ids"].shape[1])

    def run(self, module: nn.Module, inputs: Batch) -> Outputs | Tensor:
        """Run the model; with `label_positions` [B, T], logits are [B, T, V].

        Where all tokens are learned, there are losses of tokens [B, L] and no logits.
        """
        if not self.keeps_logits and "labels" in inputs:
            losses = self._of_all(module, inputs, cross_entropy)
            return Outputs(losses.new_full((len(losses), 1, 1), float("nan")), token_losses=losses)
        given = {name: values for name, values in inputs.items() if name not in (POSITIONS, "labels")}
        positions = inputs.get(POSITIONS)
        with fitting_image_tokens(), nullcontext() if positions is None else labelled_positions(module, positions):
            outputs: Outputs = module(**page_inputs(module, given))
        if positions is not None and outputs.logits.shape[1] != positions.shape[1]:
            return Outputs(at_positions(outputs.logits, positions))
        return outputs

    def _of_all(self, module: nn.Module, inputs: Batch, values: Values) -> Tensor:
        """Return a value of every position [B, L] without whole logits."""
        given = {name: tensor for name, tensor in inputs.items() if name != "labels"}

        def run() -> Any:
            with fitting_image_tokens():
                return module(**page_inputs(module, given))

        found = position_values(module, inputs["labels"].clamp_min(0), run, values)
        return found.to(inputs["labels"].device)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy summed over the learned tokens of each example, and their number; both [B]."""
        if outputs.token_losses is not None:
            return known_losses(outputs, batch["labels"], batch["mask"], NO_LABEL)
        return token_losses(outputs, batch)

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """Return `answer`, generated greedily by the model's own `generate`; and the token accuracy if it is asked for.

        The latter is the share of the learned tokens of an example that are the likeliest after those before them.
        """
        found = {"answer": self._generated(module, batch)}
        if self.metric == TOKEN_ACCURACY:
            found[TOKEN_ACCURACY] = self._token_accuracy(module, batch).tolist()
        return found

    def _token_accuracy(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the token accuracy of each example, [B]."""
        inputs, labels = {name: batch[name] for name in self.inputs if name in batch}, batch["labels"]
        if self.keeps_logits:
            outputs: Any = self.run(module, inputs)
            right = hits(outputs.logits, labels)
        else:
            right = self._of_all(module, inputs, hits)
        real = (labels != NO_LABEL).float()
        return (right * real).sum(-1) / real.sum(-1).clamp_min(1)

    def _generated(self, module: Any, batch: Batch) -> list[str]:
        """Return the generated answers."""
        pages = {name: values for name, values in batch.items() if name in PAGE_KEYS}
        if PROMPT_IDS not in batch:  # of a model with an encoder
            given = {name: batch[name] for name in ("input_ids", "attention_mask", *TOKEN_FEATURES) if name in batch}
            tokens = self._generate(module, pages, _trimmed(given, batch["attention_mask"], right=True))
            return _texts(module, tokens)
        if "decoder_input_ids" in batch:
            return self._by_length(module, pages, batch[PROMPT_IDS], batch[PROMPT_MASK])
        given = {"input_ids": batch[PROMPT_IDS], "attention_mask": batch[PROMPT_MASK]}
        given |= {name: batch[f"prompt_{name}"] for name in TOKEN_FEATURES if f"prompt_{name}" in batch}
        given = _trimmed(given, batch[PROMPT_MASK], right=False)
        tokens = self._generate(module, pages, given)[:, given["input_ids"].shape[1] :]
        return _texts(module, tokens)

    def _generate(self, module: Any, pages: Batch, given: Batch) -> Tensor:
        inputs = page_inputs(module, {**pages, **given})
        with fitting_image_tokens():
            found: Tensor = module.generate(**inputs, max_new_tokens=self.max_answer, do_sample=False, num_beams=1)
        return found

    def _by_length(self, module: Any, pages: Batch, prompts: Tensor, mask: Tensor) -> list[str]:
        """Return answers that continue a decoder's input, prompts of one length at a time: it cannot be padded."""
        lengths, answers = mask.sum(1), [""] * len(prompts)
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero()[:, 0]
            part = {name: values[rows] for name, values in pages.items()}
            tokens = self._generate(module, part, {"decoder_input_ids": prompts[rows, :length]})
            texts = module.hf_tokenizer.decode(tokens[:, length:].tolist())
            for row, text in zip(rows.tolist(), texts, strict=True):
                answers[row] = text
        return answers

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return every metric of each answer."""
        answers = self._answers(split.examples.select([self.answer]).take(rows))
        pairs = list(zip(predictions["answer"], answers, strict=True))
        found = {
            name: np.array([rule(text, right) for text, right in pairs], np.float64) for name, rule in SCORES.items()
        }
        if self.metric == TOKEN_ACCURACY:
            found[TOKEN_ACCURACY] = np.array(predictions[TOKEN_ACCURACY], np.float64)
        return found

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return the first answers."""
        answers = self._answers(split.examples.select([self.answer]).take(rows))
        found: dict[str, Any] = {"answer": [texts[0] if texts else "" for texts in answers]}
        return found | ({TOKEN_ACCURACY: [1.0] * len(answers)} if self.metric == TOKEN_ACCURACY else {})


def _texts(module: Any, tokens: Tensor) -> list[str]:
    """Return the texts of generated tokens."""
    found: list[str] = module.hf_tokenizer.decode(tokens.tolist())
    return found


def _words_of_examples(split: Any) -> list[Words]:
    """Return the words of each example's page."""
    if split.documents is None:
        raise DataError("chat: the model reads the words of pages, which needs documents; the data have none")
    pages = page_words(split, "chat")
    return [pages[page] for page in example_documents(split.examples, split.documents, "chat")]


def _padded(rows: Sequence[Sequence[int]], pad: int, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return values and their mask, int64 [N, L] with L the longest row, rounded up."""
    length = round_up(max(map(len, rows), default=1), STEP, 1 << 30)
    ids, mask = np.full((len(rows), length), pad, np.int64), np.zeros((len(rows), length), np.int64)
    for row, values in enumerate(rows):
        part = slice(length - len(values), None) if left else slice(0, len(values))
        ids[row, part], mask[row, part] = values, 1
    return ids, mask


def _padded_features(rows: Sequence[np.ndarray], answers: Sequence[int] | None, answer: int, length: int) -> np.ndarray:
    """Return features of tokens [N, L, …]: of prompts, then `answer` for those of the answers, then zeros.

    `answers` are the numbers of their tokens; None: there are none, and prompts are at the right.
    """
    found: np.ndarray = np.zeros((len(rows), length, *rows[0].shape[1:]), np.int64)
    for row, values in enumerate(rows):
        if answers is None:
            found[row, length - len(values) :] = values
        else:
            found[row, : len(values)] = values
            found[row, len(values) : len(values) + answers[row]] = answer
    return found


def _trimmed(inputs: Batch, mask: Tensor, right: bool) -> Batch:
    """Return inputs [B, L, …] without the padding that all rows of a batch share, at the right or at the left."""
    used = mask.any(0).nonzero()[:, 0]
    part = slice(0, int(used[-1]) + 1) if right else slice(int(used[0]), None)
    return {name: values[:, part] for name, values in inputs.items()}
