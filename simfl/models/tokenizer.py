"""Text to token ids and back, and the other facts about a model's input that an objective needs to encode examples.

Ids follow T5: 0 is padding and the decoder's first input, 1 ends a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from simfl.errors import ConfigError
from simfl.models.pretrained import reading

PAD, END, UNKNOWN = 0, 1, 2
NUM_SENTINELS = 100  # T5's <extra_id_i>, which follow its text tokens
# UDOP's special tokens, which follow the text tokens in this order, each kind with falling numbers; with T5's 32,000
# text tokens the vocabulary has 33,201 in all
SPECIAL_TOKEN_COUNTS = {
    "extra_id": NUM_SENTINELS, "extra_l_id": NUM_SENTINELS, "/extra_l_id": NUM_SENTINELS,
    "extra_t_id": NUM_SENTINELS, "/extra_t_id": NUM_SENTINELS, "loc": 501, "other": 200,
}  # fmt: skip
NUM_SPECIAL_TOKENS = sum(SPECIAL_TOKEN_COUNTS.values())
ALPHABET = [chr(code) for code in range(33, 127) if not chr(code).isupper()] + ["▁", "€", "£"]
PUBLIC_LINES = (  # words of forms, enough for a model without pretrained weights
    "invoice number date due total subtotal tax vat amount balance paid payment terms bank account iban bic order",
    "what is the on this page who when how much many which where question context answer yes no none customer",
    "company address street road city postcode country phone fax email website seller buyer supplier bill ship to from",
    "quantity price unit description item discount rate net gross currency usd eur gbp cash change card receipt",
    "january february march april may june july august september october november december monday friday",
    "north south east west limited ltd inc gmbh corp group holdings trading services international and sons",
)


@dataclass(frozen=True)
class SpecialTokenIds:
    """Ids of UDOP's special tokens for self-pretraining: sentinels that replace a masked word, and page positions.

    Each field is an int64 array indexed by the number of the token.
    """

    both: np.ndarray  # of a word whose text and position are masked, <extra_id_i> [100]
    layout: np.ndarray  # before a word whose position is masked
    layout_end: np.ndarray  # after it
    text: np.ndarray  # before the position of a word whose text is masked
    text_end: np.ndarray  # after it
    place: np.ndarray  # of a coordinate in steps of 1/500, <loc_i> [501]


@dataclass(frozen=True)
class Tokenizer:
    """A trained vocabulary, and how its model reads boxes and images."""

    backend: tokenizers.Tokenizer
    image_size: int = 224  # height and width of the images that the model reads
    box_scale: int = 1000  # box coordinates in [0, 1] times this, truncated to integers, index the box tables
    start_id: int = END  # the token before a text, for models that read one
    end_id: int = END  # the token after a text
    special_tokens: SpecialTokenIds | None = None  # of self-pretraining, if the vocabulary has them

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text, without an end token."""
        return [encoding.ids for encoding in self.backend.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Return the texts up to each end token; padding and other special tokens are left out."""
        cut = [row[: row.index(END)] if END in row else row for row in ids]
        return self.backend.decode_batch(cut, skip_special_tokens=True)


def load_t5_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Load `tokenizer.json` or T5's `spiece.model` of a folder; ConfigError if there is neither, or it is damaged."""
    backend = _read_tokenizer(folder, "spiece.model", lambda path: from_sentencepiece(path.read_bytes()))
    backend.no_padding()
    backend.no_truncation()
    if backend.token_to_id("<pad>") != PAD or backend.token_to_id("</s>") != END:
        raise ConfigError(f"model.weights: the tokenizer in {folder} is not T5's: <pad> must be 0 and </s> must be 1")
    return backend


def _read_tokenizer(folder: Path, other: str, read: Callable[[Path], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """Read `tokenizer.json` of a folder, else the file `other`. ConfigError if there is neither, or it is damaged."""
    path = folder / "tokenizer.json"
    if path.is_file():
        with reading(path):
            return tokenizers.Tokenizer.from_file(str(path))
    if (folder / other).is_file():
        with reading(folder / other):
            return read(folder / other)
    raise ConfigError(f"model.weights: {folder} has neither tokenizer.json nor {other}")


def load_bert_tokenizer(folder: Path, image_size: int) -> Tokenizer:
    """Load BERT's tokenizer of a folder, or the small one of bundled weights; raise ConfigError for other tokenizers.

    BERT's is read from `tokenizer.json` or `vocab.txt`.
    """
    backend = _read_tokenizer(
        folder, "vocab.txt", lambda path: tokenizers.BertWordPieceTokenizer(str(path), lowercase=True)._tokenizer
    )
    backend.no_padding()
    backend.no_truncation()
    if backend.token_to_id("<pad>") == PAD and backend.token_to_id("</s>") == END:
        return Tokenizer(backend, image_size)
    start, end = backend.token_to_id("[CLS]"), backend.token_to_id("[SEP]")
    if backend.token_to_id("[PAD]") != PAD or start is None or end is None:
        raise ConfigError(
            f"model.weights: the tokenizer in {folder} is not BERT's: [PAD] must be 0, with [CLS] and [SEP]"
        )
    return Tokenizer(backend, image_size, start_id=start, end_id=end)


def from_sentencepiece(model: bytes) -> tokenizers.Tokenizer:
    """Convert T5's SentencePiece model: its tokens, then the 100 sentinels with falling numbers."""
    from transformers.utils import sentencepiece_model_pb2_new as sentencepiece  # the definition of the format

    proto = sentencepiece.ModelProto.FromString(model)
    sentinels = _special_token_names("extra_id", NUM_SENTINELS)[::-1]
    tokens = [(piece.piece, piece.score) for piece in proto.pieces] + [(name, 0.0) for name in sentinels]
    backend = tokenizers.Tokenizer(models.Unigram(tokens, unk_id=proto.trainer_spec.unk_id, byte_fallback=False))
    if proto.normalizer_spec.precompiled_charsmap:
        backend.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<pad>", "</s>", "<unk>", *sentinels])
    return backend


def add_special_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a copy with UDOP's special tokens after its own; those it already has keep their ids."""
    extended = tokenizers.Tokenizer.from_str(backend.to_str())
    names = [
        name for kind, count in SPECIAL_TOKEN_COUNTS.items() for name in reversed(_special_token_names(kind, count))
    ]
    extended.add_special_tokens([name for name in names if extended.token_to_id(name) is None])
    return extended


def special_token_ids(backend: tokenizers.Tokenizer) -> SpecialTokenIds:
    """Return the ids of the special tokens of a tokenizer made by `add_special_tokens`."""

    def ids(kind: str) -> np.ndarray:
        names = _special_token_names(kind, SPECIAL_TOKEN_COUNTS[kind])
        return np.array([backend.token_to_id(name) for name in names], np.int64)

    return SpecialTokenIds(*(ids(kind) for kind in SPECIAL_TOKEN_COUNTS if kind != "other"))


def _special_token_names(kind: str, count: int) -> list[str]:
    return [f"<{kind}_{number}>" for number in range(count)]


def train_tokenizer(lines: Iterable[str], size: int, *, public: bool, leak: bool = False) -> tokenizers.Tokenizer:
    """Train a byte-pair vocabulary; it is identical for the same lines in the same order.

    A vocabulary is sent to every client and readable by all: trained on private text, it reveals words.

    Args:
        lines: Training text.
        size: Largest number of tokens.
        public: Whether the text is public.
        leak: Whether private text is accepted.

    Raises:
        ConfigError: If the text is neither public nor accepted as a leak.
    """
    if not public and not leak:
        raise ConfigError(
            "tokenizer: a vocabulary trained on the clients' text reveals their words to all; train on public text"
        )
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(tokenizers.Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]
    )
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], initial_alphabet=ALPHABET, show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    return backend


@cache
def public_tokenizer() -> tokenizers.Tokenizer:
    """Train the vocabulary of models without pretrained weights: characters and a few hundred words of forms."""
    return train_tokenizer(PUBLIC_LINES, 512, public=True)
