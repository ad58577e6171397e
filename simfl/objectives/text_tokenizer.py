"""The tokenizer that objectives of texts need, as models of transformers have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from simfl.errors import DataError
from simfl.objectives.page_inputs import PageProcessor


@runtime_checkable
class TextTokenizer(Protocol):
    """A tokenizer of transformers, and how its model reads text; `simfl.models.hf_tokenizer` implements it."""

    @property
    def tokenizer(self) -> Any:
        """The `transformers.PreTrainedTokenizerBase`."""

    @property
    def has_encoder(self) -> bool:
        """True if the model has an encoder and a decoder; answers are then inputs of the decoder."""

    @property
    def decoder_start(self) -> int | None:
        """The first input of the decoder, for models with an encoder."""

    @property
    def max_positions(self) -> int | None:
        """The most tokens that the model reads; None: no limit."""

    @property
    def processor(self) -> PageProcessor | None:
        """The processor of pages; None for models of text alone."""

    @property
    def pad_id(self) -> int:
        """The token of padding."""

    @property
    def end_id(self) -> int:
        """The token that ends a text; padding where the tokenizer has none."""

    def answer_end(self) -> int:
        """Return the token that ends an answer; raise ConfigError if the tokenizer has none."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""

    def chat(self, system: str, prompts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of prompts up to where the answer begins."""


def require_text_tokenizer(tokenizer: object, objective: str) -> TextTokenizer:
    """Return the tokenizer; raise DataError if it is none of transformers."""
    if not isinstance(tokenizer, TextTokenizer):
        raise DataError(f"{objective}: needs a model with a tokenizer of transformers, such as model.name: hf")
    return tokenizer


def check_length(tokenizer: TextTokenizer, length: int, objective: str, settings: str) -> None:
    """Raise DataError if a sequence of `length` tokens is longer than the model reads; `settings` limit the length."""
    if tokenizer.max_positions is not None and length > tokenizer.max_positions:
        raise DataError(
            f"{objective}: the longest example has {length} tokens, the model reads {tokenizer.max_positions};"
            f" reduce {settings}"
        )


def check_texts(column: Any, name: str, objective: str) -> None:
    """Raise DataError if a column is no text, or has no value for an example."""
    if "string" not in str(column.type):
        raise DataError(f"{objective}: column {name!r} has type {column.type}, not text")
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{objective}: row {row}, column {name!r}: null, expected a text for every example")
