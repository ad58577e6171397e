"""Tokenizers of transformers, with the facts about their model that objectives need to encode examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simfl.errors import ConfigError
from simfl.models.hf_processor import HfProcessor
from simfl.models.pretrained import reading
from simfl.models.tokenizer import public_tokenizer


@dataclass(frozen=True)
class HfTokenizer:
    """A tokenizer of transformers and how its model reads text.

    Attributes:
        tokenizer: A `transformers.PreTrainedTokenizerBase` that has a token for padding.
        has_encoder: Whether the model has an encoder and a decoder; answers are then inputs of the decoder.
        decoder_start: The first input of the decoder, for models with an encoder.
        max_positions: The most tokens that the model reads; None: no limit.
        processor: The processor of pages, for models that read images.
    """

    tokenizer: Any
    has_encoder: bool = False
    decoder_start: int | None = None
    max_positions: int | None = None
    processor: HfProcessor | None = None

    def __len__(self) -> int:
        return len(self.tokenizer)

    @property
    def pad_id(self) -> int:
        """The token of padding."""
        return int(self.tokenizer.pad_token_id)

    @property
    def end_id(self) -> int:
        """The token that ends a text; padding where the tokenizer has none, as models that classify texts may."""
        end = self.tokenizer.eos_token_id
        return self.pad_id if end is None else int(end)

    def answer_end(self) -> int:
        """Return the token that ends an answer.

        Raises:
            ConfigError: The tokenizer has none, so no generated answer could end.
        """
        if self.tokenizer.eos_token_id is None:
            raise ConfigError("model.tokenizer_from: the tokenizer has no token that ends a text; set its eos_token")
        return self.end_id

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        found: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        return found

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts without special tokens."""
        found: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [text.strip() for text in found]

    def chat(self, system: str, prompts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of prompts up to where the answer begins, in the model's chat template if it has one."""
        if self.tokenizer.chat_template is None:
            texts = [f"{system}\n{prompt}" if system else prompt for prompt in prompts]
            found: list[list[int]] = self.tokenizer(texts)["input_ids"] if texts else []
            end = self.tokenizer.eos_token_id
            return found if self.has_encoder else [ids[:-1] if ids[-1:] == [end] else ids for ids in found]
        first = [{"role": "system", "content": system}] if system else []
        rendered = [
            self.tokenizer.apply_chat_template(
                [*first, {"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
            for prompt in prompts
        ]
        return self.encode(rendered)


def load_tokenizer(folder: Path | None) -> Any:
    """Load the tokenizer of a folder; without a folder, a small public one.

    Raises:
        ConfigError: There is none or it is damaged, or it has no token that ends a text.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if folder is None:
        return PreTrainedTokenizerFast(
            tokenizer_object=public_tokenizer(), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
        )
    with reading(folder / "tokenizer.json", "model.tokenizer_from"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if tokenizer.eos_token_id is None and tokenizer.sep_token_id is not None:
        tokenizer.eos_token = tokenizer.sep_token
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                f"model.tokenizer_from: the tokenizer in {folder} has no token for padding or ends of texts"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
