"""Text to pieces and back, and the other facts of a model's input that an objective needs to encode examples.

Pieces follow T5: 0 is padding and the decoder's start, 1 ends a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from simfl.errors import ConfigError
from simfl.models.marks import Marks

PAD, END, UNKNOWN = 0, 1, 2
SENTINELS = 100  # of T5's pretraining, behind the pieces


@dataclass(frozen=True)
class Tokenizer:
    """A trained vocabulary, and how the model it belongs to reads boxes and images."""

    text: tokenizers.Tokenizer
    image_size: int = 224  # height and width of the images the model reads
    box_scale: int = 1000  # box coordinates in [0, 1] times this, cut to integers, are the rows of the box tables
    start: int = END  # the piece before a text, for models that read one there
    end: int = END  # the piece behind a text
    marks: Marks | None = None  # the special pieces of self-pretraining, if it has them

    def __len__(self) -> int:
        return self.text.get_vocab_size(with_added_tokens=True)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The pieces of each text, without an end."""
        return [found.ids for found in self.text.encode_batch(texts, add_special_tokens=False)]

    def decode(self, pieces: list[list[int]]) -> list[str]:
        """The texts up to each end; padding and other special pieces are left out."""
        cut = [row[: row.index(END)] if END in row else row for row in pieces]
        return self.text.decode_batch(cut, skip_special_tokens=True)


def read(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a folder: `tokenizer.json`, or a T5 `spiece.model`. ConfigError if there is none."""
    if (folder / "tokenizer.json").is_file():
        text = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    elif (folder / "spiece.model").is_file():
        text = from_sentencepiece((folder / "spiece.model").read_bytes())
    else:
        raise ConfigError(f"model.weights: {folder} holds neither tokenizer.json nor spiece.model")
    text.no_padding()
    text.no_truncation()
    if text.token_to_id("<pad>") != PAD or text.token_to_id("</s>") != END:
        raise ConfigError(f"model.weights: the tokenizer in {folder} is not T5's: <pad> must be 0 and </s> must be 1")
    return text


def wordpiece(folder: Path, image_size: int) -> Tokenizer:
    """BERT's tokenizer of a folder (`tokenizer.json`, `vocab.txt`) or a start's small one; ConfigError for others."""
    if (folder / "tokenizer.json").is_file():
        text = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    elif (folder / "vocab.txt").is_file():
        text = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)._tokenizer
    else:
        raise ConfigError(f"model.weights: {folder} holds neither tokenizer.json nor vocab.txt")
    text.no_padding()
    text.no_truncation()
    if text.token_to_id("<pad>") == PAD and text.token_to_id("</s>") == END:
        return Tokenizer(text, image_size)
    start, end = text.token_to_id("[CLS]"), text.token_to_id("[SEP]")
    if text.token_to_id("[PAD]") != PAD or start is None or end is None:
        raise ConfigError(
            f"model.weights: the tokenizer in {folder} is not BERT's: [PAD] must be 0, with [CLS] and [SEP]"
        )
    return Tokenizer(text, image_size, start=start, end=end)


def from_sentencepiece(model: bytes) -> tokenizers.Tokenizer:
    """T5's tokenizer from its SentencePiece model: the pieces, then the 100 sentinels in falling order."""
    from transformers.utils import sentencepiece_model_pb2_new as sentencepiece  # the format's definition

    proto = sentencepiece.ModelProto.FromString(model)
    sentinels = [f"<extra_id_{number}>" for number in range(SENTINELS - 1, -1, -1)]
    pieces = [(piece.piece, piece.score) for piece in proto.pieces] + [(name, 0.0) for name in sentinels]
    text = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=proto.trainer_spec.unk_id, byte_fallback=False))
    if proto.normalizer_spec.precompiled_charsmap:
        text.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    text.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    text.decoder = decoders.Metaspace()
    text.add_special_tokens(["<pad>", "</s>", "<unk>", *sentinels])
    return text


def train(lines: Iterable[str], size: int, *, public: bool, leak: bool = False) -> tokenizers.Tokenizer:
    """A byte-pair vocabulary of at most `size` pieces, the same for the same lines in the same order.

    A vocabulary travels to every client and can be read by all: trained on private text it gives away words. So
    `public=False` is refused with ConfigError unless `leak=True`.
    """
    if not public and not leak:
        raise ConfigError(
            "tokenizer: a vocabulary trained on the clients' text shows their words to everybody; train on public text"
        )
    text = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    text.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(tokenizers.Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    text.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]
    )
    text.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], initial_alphabet=ALPHABET, show_progress=False
    )
    text.train_from_iterator(lines, trainer)
    return text


ALPHABET = [chr(code) for code in range(33, 127) if not chr(code).isupper()] + ["▁", "€", "£"]
PUBLIC_LINES = (  # words of forms, enough for a model built from nothing
    "invoice number date due total subtotal tax vat amount balance paid payment terms bank account iban bic order",
    "what is the on this page who when how much many which where question context answer yes no none customer",
    "company address street road city postcode country phone fax email website seller buyer supplier bill ship to from",
    "quantity price unit description item discount rate net gross currency usd eur gbp cash change card receipt",
    "january february march april may june july august september october november december monday friday",
    "north south east west limited ltd inc gmbh corp group holdings trading services international and sons",
)


@cache
def small() -> tokenizers.Tokenizer:
    """The vocabulary of a model that starts from nothing: characters and a few hundred words of forms."""
    return train(PUBLIC_LINES, 512, public=True)
