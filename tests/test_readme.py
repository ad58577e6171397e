"""The first example of README.md, executed on a file and a model that are not simfl's."""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parent.parent / "README.md"


def write_reviews() -> list[str]:
    draw = random.Random(1)
    words = {"good": ["kind", "quick", "fresh", "warm"], "bad": ["rude", "late", "cold", "broken"]}
    rows = []
    for number in range(240):
        stars = draw.choice(list(words))
        rows.append((" ".join(draw.choices(words[stars], k=6)), stars, f"shop {number % 6}"))
    with open("reviews.csv", "w", newline="") as file:
        csv.writer(file).writerows([("review", "stars", "shop"), *rows])
    return [review for review, *_ in rows]


def save_model(texts: list[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    tokens = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<pad>", "<unk>"]))
    PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="<unk>", pad_token="<pad>").save_pretrained("my-model")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForSequenceClassification(BertConfig(vocab_size=tokens.get_vocab_size(), **sizes)).save_pretrained("my-model")


@pytest.mark.slow
def test_the_first_example_trains_and_exports_a_model_of_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    save_model(write_reviews())
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, README.name, "exec"), names)
    run = names["run"]
    assert (len(run.partition), run.summary["plan"]) == (6, "matches")
    assert run.summary["final"]["loss"] != run.summary["initial"]["loss"]  # random weights learn little in six rounds
    from transformers import AutoModelForSequenceClassification

    assert AutoModelForSequenceClassification.from_pretrained("tuned").config.num_labels == 2
