"""Prompts and answers as tokens, for decoders and for models with an encoder; texts with a label."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from documents import page, split

from simfl import metrics
from simfl.data.base import Split
from simfl.errors import ConfigError, DataError
from simfl.models.hf_tokenizer import HfTokenizer, load_tokenizer
from simfl.objectives.chat import NO_LABEL, Chat
from simfl.objectives.text_classification import TextClassification

TOKENS = load_tokenizer(None)
DECODER, WITH_ENCODER = HfTokenizer(TOKENS), HfTokenizer(TOKENS, True, 0)
WORDS = ["total", "12", "date", "2020", "paid", "cash", "tax", "1", "name", "due"]


def texts(**columns: Any) -> Split:
    given = {"question": ["what is the total ?", "date ?"], "answers": [["12"], ["2020", "x"]]}
    return Split(pa.table(given | columns))


def ids(text: str) -> list[int]:
    return list(TOKENS(text, add_special_tokens=False)["input_ids"])


def test_a_decoder_learns_each_token_of_the_answer_from_the_one_before() -> None:
    rows = Chat().encode(texts(), DECODER).rows
    for row, (question, answer) in enumerate([("what is the total ?", "12"), ("date ?", "2020")]):
        prompt, wanted = ids(question), [*ids(answer), DECODER.end_id]
        whole = prompt + wanted
        length = len(whole) - 1
        assert rows["input_ids"][row, :length].tolist() == whole[:-1]
        assert rows["attention_mask"][row].sum() == length
        learned = rows["labels"][row] != NO_LABEL
        assert rows["labels"][row][learned].tolist() == wanted
        positions = rows["label_positions"][row][learned].tolist()
        assert positions == list(range(len(prompt) - 1, length))
        assert rows["prompt_ids"][row, -len(prompt) :].tolist() == prompt
        assert rows["prompt_mask"][row].tolist() == [0] * (len(rows["prompt_ids"][row]) - len(prompt)) + [1] * len(
            prompt
        )


def test_all_tokens_of_the_prompt_but_the_first_are_learned_if_asked_for() -> None:
    labels = Chat(loss_on="all").encode(texts(), DECODER).rows["labels"][0]
    whole = [*ids("what is the total ?"), *ids("12"), DECODER.end_id]
    assert labels[labels != NO_LABEL].tolist() == whole[1:]
    with pytest.raises(DataError, match="loss_on 'all' needs a model without an encoder"):
        Chat(loss_on="all").encode(texts(), WITH_ENCODER)


def test_a_decoder_with_an_encoder_reads_the_answer_shifted_by_its_first_token() -> None:
    rows = Chat().encode(texts(), WITH_ENCODER).rows
    wanted = [*ids("2020"), WITH_ENCODER.end_id]
    assert rows["labels"][1, : len(wanted)].tolist() == wanted
    assert rows["decoder_input_ids"][1, : len(wanted)].tolist() == [0, *wanted[:-1]]
    prompt = rows["input_ids"][1][rows["attention_mask"][1] > 0]
    assert prompt.tolist()[: len(ids("date ?"))] == ids("date ?")


def test_words_of_a_page_are_left_out_from_the_end_until_the_prompt_fits() -> None:
    boxes = [0.1, 0.1, 0.2, 0.2] * len(WORDS)
    question = {"id": "q", "document": 0, "question": "total ?", "answers": ["12"], "field": "total"}
    data = split([page(WORDS, boxes)], [question])
    chat = Chat(prompt="{words} Q: {question}", max_tokens=16)
    found = chat.encode(data, DECODER)
    prompt = found.rows["prompt_ids"][0][found.rows["prompt_mask"][0] > 0].tolist()
    kept = max(n for n in range(len(WORDS) + 1) if len(ids(f"{' '.join(WORDS[:n])} Q: total ?")) <= 16)
    assert 0 < kept < len(WORDS)
    assert prompt == ids(f"{' '.join(WORDS[:kept])} Q: total ?")
    assert found.notes == (f"max_tokens 16: {len(WORDS) - kept} words are cut, in 1 of 1 examples",)
    with pytest.raises(DataError, match="the prompt of row 0 has more than max_tokens 2 tokens without words"):
        Chat(prompt="{words} Q: {question}", max_tokens=2).encode(data, DECODER)


def test_the_chat_template_of_the_tokenizer_is_used() -> None:
    tokens = load_tokenizer(None)
    tokens.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}[answer]"
    rows = Chat(system="be brief").encode(texts(), HfTokenizer(tokens)).rows
    prompt = rows["prompt_ids"][1][rows["prompt_mask"][1] > 0].tolist()
    assert prompt == ids("[system] be brief [user] date ? [answer]")


def test_the_loss_is_that_of_the_answers_by_hand() -> None:
    chat = Chat()
    batch = chat.encode(texts(), DECODER).take(torch.tensor([0, 1]))
    logits = torch.randn(*batch["labels"].shape, len(TOKENS), generator=torch.Generator().manual_seed(0))
    from simfl.protocol import Outputs

    sums, weights = chat.loss(Outputs(logits), batch)
    by_hand = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=NO_LABEL, reduction="sum"
    )
    torch.testing.assert_close(sums.sum(), by_hand)
    assert weights.tolist() == [len(ids("12")) + 1, len(ids("2020")) + 1]


@pytest.mark.parametrize(
    ("settings", "columns", "said"),
    [
        ({"prompt": "hello"}, {}, "objective.prompt: it has no field of an example"),
        ({"prompt": "{question"}, {}, "objective.prompt: '{question' is no template"),
        ({"prompt": "{questoin}"}, {}, "chat: the examples have no column 'questoin'; did you mean 'question'"),
        ({"answer": "reply"}, {}, "chat: the examples have no column 'reply'"),
        ({}, {"question": ["a", None]}, "chat: row 1, column 'question': null"),
        ({}, {"answers": [0, 1]}, "chat: column 'answers' has type int64, expected a text or a list of texts"),
        ({"prompt": "{words} {question}"}, {}, "chat: {words} needs documents, the data have none"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(settings: dict[str, Any], columns: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, DataError)) as error:
        Chat(**settings).check(texts(**columns))
    assert said in str(error.value)


def test_what_the_model_cannot_read_is_refused() -> None:
    with pytest.raises(DataError, match="the longest example has 10 tokens, the model reads 4; reduce max_tokens or"):
        Chat().encode(texts(), HfTokenizer(TOKENS, max_positions=4))
    with pytest.raises(DataError, match="chat: the prompt of row 1 is empty"):
        Chat().encode(texts(question=["a", ""]), DECODER)
    with pytest.raises(DataError, match="row 1, column 'text': null, expected a text for every example"):
        TextClassification().check(texts(text=["a", None], label=[0, 1]))
    with pytest.raises(DataError, match="column 'text' has type int64, not text"):
        TextClassification().check(texts(text=[1, 2], label=[0, 1]))


@pytest.mark.parametrize("objective", [Chat(), TextClassification()])
def test_a_model_without_a_tokenizer_of_transformers_is_refused(objective: Any) -> None:
    with pytest.raises(DataError, match=r"needs a model with a tokenizer of transformers, such as model\.name: hf"):
        objective.encode(texts(text=["a", "b"], label=[0, 1]), None)


def test_texts_are_padded_on_the_right_and_cut() -> None:
    data = texts(text=["total", "total date paid cash tax"], label=[1, 0])
    found = TextClassification(max_tokens=3).encode(data, DECODER)
    assert found.rows["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert found.rows["label"].tolist() == [1, 0]
    assert found.notes == ("max_tokens 3: texts of 1 of 2 examples may be cut",)


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [("a b c d", ["a c d e"], 0.75), ("A B", ["a b", "x"], 1.0), ("", ["a"], 0.0), ("a", [], 0.0)],
)
def test_rouge_l_by_hand(prediction: str, answers: list[str], expected: float) -> None:
    assert metrics.rouge_l(prediction, answers) == pytest.approx(expected)
