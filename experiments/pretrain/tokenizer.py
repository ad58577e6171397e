"""Train the tokenizer of `vt5_tiny` on public words and generated numbers, with identical bytes each time.

    python experiments/pretrain/tokenizer.py [PATH of tokenizer.json]

Byte pairs with the conventions of T5. Text is lower-cased, digits are grouped in pairs from the left, punctuation is
separate, and no token mixes letters with digits. A value therefore has the same, few tokens at any position.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from words import business, everyday, invoice_words

SIZE, SENTINELS = 3072, 100
SPECIAL = ["<pad>", "</s>", "<unk>"]  # ids 0, 1, 2 as in T5; its sentinels are at the end of the vocabulary
WEIGHTS = {"lorem": 8, "company": 4, "job": 4, "color": 4, "address": 2, "person": 2}
SYMBOLS = "".join(chr(c) for c in (*range(33, 127), *range(161, 256)) if c != 173) + "€–—’“”„•…œ▁"
PIECE = Regex(r"▁?\d{1,2}|▁?[^\W\d_]+|▁?.")
ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ROOT / "packages/simfl-benchmarks/simfl_benchmarks/pretrained/vt5_tiny/tokenizer.json"


def corpus() -> Iterator[str]:
    """Yield every word as often as the weight of its table, pairs of digits, and the words of synthetic invoices."""
    for word in business():
        yield from [word] * 40
    for table, words in everyday().items():
        for word in words:
            yield from [word] * WEIGHTS[table]
    for pair in range(100):
        yield from [f"{pair:02d} {pair % 10} 00{pair:02d}"] * 400
    for word, count in invoice_words():
        yield from [word] * count


def train() -> Tokenizer:
    """Train the tokenizer; encoding appends `</s>` unless special tokens are turned off."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(PIECE, behavior="isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    alphabet = sorted(set(SYMBOLS.lower()))
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - SENTINELS, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([f"<extra_id_{number}>" for number in range(SENTINELS)])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    assert tokenizer.get_vocab_size() == SIZE
    return tokenizer


if __name__ == "__main__":
    train().save(sys.argv[1] if len(sys.argv) > 1 else str(DEFAULT))
