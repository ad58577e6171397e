"""Token ids, special tokens, loading, and training on public text alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from simfl.errors import ConfigError
from simfl.models.tokenizer import (
    END,
    PAD,
    PUBLIC_LINES,
    UNKNOWN,
    Tokenizer,
    load_t5_tokenizer,
    public_tokenizer,
    train_tokenizer,
)


def test_special_tokens_have_the_ids_of_t5() -> None:
    assert (
        [public_tokenizer().token_to_id(token) for token in ("<pad>", "</s>", "<unk>")]
        == [PAD, END, UNKNOWN]
        == [0, 1, 2]
    )


def test_decoded_text_is_lower_case_and_stops_at_the_end_token() -> None:
    tokenizer = Tokenizer(public_tokenizer())
    ids = tokenizer.encode(["Total due: 12.50 EUR", "a  b"])
    assert tokenizer.decode([[*ids[0], END, 7, 8], [*ids[1], PAD]]) == ["total due: 12.50 eur", "a b"]


def test_the_same_lines_give_the_same_vocabulary_in_another_process() -> None:
    script = "from simfl.models.tokenizer import public_tokenizer; print(public_tokenizer().to_str())"
    other = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", script], env=other, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == public_tokenizer().to_str()


def test_training_on_private_text_is_rejected_unless_a_leak_is_accepted() -> None:
    with pytest.raises(ConfigError, match="train on public text"):
        train_tokenizer(["alice owes bob"], 50, public=False)
    assert train_tokenizer(["alice owes bob"], 200, public=False, leak=True).token_to_id("▁alice") is not None


def test_a_frequent_word_is_one_token() -> None:
    assert len(Tokenizer(train_tokenizer(PUBLIC_LINES * 2, 600, public=True)).encode(["total"])[0]) == 1


def test_a_saved_tokenizer_is_loaded(tmp_path: Path) -> None:
    public_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(load_t5_tokenizer(tmp_path)).encode(["invoice"]) == Tokenizer(public_tokenizer()).encode(
        ["invoice"]
    )


def test_a_folder_without_a_tokenizer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither tokenizer.json nor spiece.model"):
        load_t5_tokenizer(tmp_path)


def test_a_tokenizer_with_other_special_tokens_is_rejected(tmp_path: Path) -> None:
    other = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="<pad> must be 0"):
        load_t5_tokenizer(tmp_path)


def test_a_sentencepiece_model_of_t5_is_loaded(tmp_path: Path) -> None:
    from transformers.utils import sentencepiece_model_pb2_new as sentencepiece

    proto = sentencepiece.ModelProto()
    normal, control, unknown = 1, 3, 2
    words = [("▁", -2), ("▁total", -1), ("t", -5), ("o", -5), ("a", -5), ("l", -5), ("1", -4), (":", -3)]
    special = [("<pad>", 0, control), ("</s>", 0, control), ("<unk>", 0, unknown)]
    for piece, score, kind in [*special, *((word, score, normal) for word, score in words)]:
        proto.pieces.add(piece=piece, score=score, type=kind)
    proto.trainer_spec.unk_id = 2
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    text = Tokenizer(load_t5_tokenizer(tmp_path))
    assert len(text) == 11 + 100
    assert text.encode(["total:  1", "to"]) == [[4, 10, 3, 9], [3, 5, 6]]
    assert text.backend.token_to_id("<extra_id_0>") == 110  # the last, as in T5, where it is 32,099
    assert text.decode([[4, 10, 3, 9, 110, 1, 5]]) == ["total: 1"]
