"""Self-pretraining: masked words, lengths, no leaked answers, restored text, the loss by hand, two phases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from documents import Letters, page, png, question, split
from fakes import Experiment, experiment, model, run, then, traces
from fakes_documents import Pages
from plain_masking import Word, one, reference, together
from torch.testing import assert_close

from simfl.data.base import Split
from simfl.errors import ConfigError, DataError
from simfl.experiment import Evaluate
from simfl.models.layout_t5 import LayoutT5
from simfl.models.tokenizer import (
    NUM_SPECIAL_TOKENS,
    SpecialTokenIds,
    add_special_tokens,
    public_tokenizer,
    special_token_ids,
)
from simfl.objectives.docvqa import DocVqa
from simfl.objectives.masking import END, MaskingRules, build_pages
from simfl.objectives.self_pretraining import (
    LayoutModeling,
    MixedModeling,
    SelfPretraining,
    TextLayoutModeling,
    TextModeling,
)
from simfl.optimizers.server import Adam
from simfl.protocol import Outputs
from simfl.runs import tables

BOTH, LAYOUT, LAYOUT_END, TEXT, TEXT_END, PLACE = 1000, 2000, 3000, 4000, 5000, 6000
SPECIAL = SpecialTokenIds(
    *(np.arange(first, first + 501) for first in (BOTH, LAYOUT, LAYOUT_END, TEXT, TEXT_END, PLACE))
)


@dataclass(frozen=True)
class SpecialLetters(Letters):
    """Letters with special tokens from 1000 on."""

    special_tokens: SpecialTokenIds | None = SPECIAL


def rules(**settings: Any) -> MaskingRules:
    return replace(MaskingRules(SPECIAL, 100, 1024, 256, False), **settings)


def words(count: int, letters: int = 2) -> list[Word]:
    """Return words with letters and positions of their own."""
    return [
        Word(tuple(10 + (7 * k + j) % 26 for j in range(letters)), (k, k, k + 1, k + 1), (PLACE + k,) * 4)
        for k in range(count)
    ]


def at(number: int) -> list[int]:
    return [PLACE + number] * 4


THREE = words(3)
A, B, C = ([*word.tokens] for word in THREE)


@pytest.mark.parametrize(
    ("task", "code", "read", "said"),
    [
        ("text", False, [*A, TEXT, *at(1), *C], [TEXT, *B]),
        ("text", True, [*A, TEXT, *at(1), TEXT_END, *C], [TEXT, *B]),
        ("layout", False, [*A, LAYOUT, *B, LAYOUT_END, *C], [LAYOUT, *at(1)]),
        ("joint", False, [*A, BOTH, *C], [BOTH, *B, *at(1)]),
    ],
)
def test_a_masked_word_in_each_task(task: str, code: bool, read: list[int], said: list[int]) -> None:
    found = one(task, [9, 9], THREE, [False, True, False], rules(published_code=code))
    assert (found.ids, found.target) == ([9, 9, *read, END], [*said, END])
    boxes = dict(zip(found.ids, found.boxes, strict=True))
    assert all(boxes[token] == (0, 0, 0, 0) for token in found.ids if token >= BOTH)  # what is hidden has no box
    assert (boxes[A[0]], boxes[C[0]], boxes[9]) == ((0, 0, 1, 1), (2, 2, 3, 3), (0, 0, 1000, 1000))
    assert task != "layout" or boxes[B[0]] == (0, 0, 0, 0)


def test_the_reading_task_shows_the_word_after_its_position_with_its_box() -> None:
    found = one("reading", [9], THREE, [False, True, False], rules())
    assert (found.ids, found.target) == ([9, *A, TEXT, *at(1), *B, *C, END], [TEXT, *B, END])
    assert found.boxes[3:] == [(0, 0, 0, 0)] * 5 + [(1, 1, 2, 2)] * 2 + [(2, 2, 3, 3)] * 2 + [(0, 0, 0, 0)]


def restore(ids: list[int], target: list[int], task: str) -> list[int]:
    """Return the tokens of the page, restored from input and target alone."""
    first = {"text": TEXT, "layout": LAYOUT, "joint": BOTH}[task]
    said: dict[int, list[int]] = {}
    for token in target[:-1]:
        if first <= token < first + 100:
            said[token] = []
        else:
            said[next(reversed(said))].append(token)
    tokens: list[int] = []
    for token in ids[:-1]:
        if first <= token < first + 100:
            tokens += [p for p in said[token] if p < BOTH]
        elif token < BOTH:
            tokens.append(token)
    return tokens


@pytest.mark.parametrize("task", ["text", "layout", "joint"])
@pytest.mark.parametrize("seed", range(4))
def test_the_text_can_be_restore_again_and_hidden_words_are_not_in_what_is_read(task: str, seed: int) -> None:
    page = words(40, letters=3)
    chosen = (np.random.default_rng(seed).random(40) < 0.4).tolist()
    found = one(task, [], page, chosen, rules())
    assert restore(found.ids, found.target, task) == [token for word in page for token in word.tokens]
    if task != "layout":  # of which the text is shown
        shown = [token for word, hide in zip(page, chosen, strict=True) if not hide for token in word.tokens]
        assert [token for token in found.ids[:-1] if token < BOTH] == shown
    places = {p for word, hide in zip(page, chosen, strict=True) if hide for p in word.position}
    assert task == "text" or not places & set(found.ids)  # nor are hidden places


@pytest.mark.parametrize(("rate", "hidden"), [(0.0, 0), (1.0, 100)])
def test_at_most_max_masked_words_are_masked(rate: float, hidden: int) -> None:
    found = one("joint", [], words(150, letters=1), [rate == 1.0] * 150, rules(max_target=1000))
    assert sum(token >= BOTH for token in found.ids) == hidden
    assert len(found.ids) == 150 + 1  # one token each, hidden or not


@pytest.mark.parametrize(("code", "hidden"), [(False, 51), (True, 100)])
def test_a_target_of_256_tokens_has_51_positions_and_the_published_code_masks_further_words(
    code: bool, hidden: int
) -> None:
    found = one("layout", [], words(120, letters=1), [True] * 120, rules(published_code=code))
    assert len(found.target) == 51 * 5 + 1
    assert sum(LAYOUT <= token < LAYOUT + 100 for token in found.ids) == hidden


def test_a_word_cut_from_the_input_is_not_in_the_target() -> None:
    found = one("joint", [9, 9], words(10), [True] * 10, rules(max_tokens=6))
    assert (len(found.ids), sum(p in range(BOTH, BOTH + 100) for p in found.target)) == (6, 3)


@pytest.mark.parametrize("task", ["text", "layout", "joint", "reading"])
@pytest.mark.parametrize("code", [False, True])
@pytest.mark.parametrize(
    ("most", "max_tokens", "max_target"), [(100, 1024, 256), (3, 40, 256), (9, 1024, 24), (0, 9, 1)]
)
def test_masking_many_pages_equals_the_plain_reference_page_by_page(
    task: str, code: bool, most: int, max_tokens: int, max_target: int
) -> None:
    draw = np.random.default_rng(most)
    some = [words(count, letters=1 + count % 3) for count in (0, 1, 5, 12, 30)]
    some += [[word._replace(tokens=word.tokens[: k % 4]) for k, word in enumerate(words(20, letters=3))]]
    chosen = [(draw.random(len(page)) < 0.6).tolist() for page in some]
    limits = rules(max_masked=most, max_tokens=max_tokens, max_target=max_target, published_code=code)
    expected = [reference(task, [9, 8], page, hide, limits) for page, hide in zip(some, chosen, strict=True)]
    assert together(task, [9, 8], some, chosen, limits) == expected


def pages(count: int = 20, many: int = 60) -> Split:
    boxes = [0.5, 0.25, 0.75, 1.0] * many
    return split(
        [page([f"w{chr(97 + k % 26)}" for k in range(many)], boxes, png((255, 0, 0)))],
        [question(0, "what?", ["x"], name=f"q{k}") for k in range(count)],
    )


@pytest.mark.parametrize(
    ("objective", "mark", "rate"),
    [(TextModeling(), TEXT, 0.5), (LayoutModeling(max_target=512), LAYOUT, 0.75), (TextLayoutModeling(), BOTH, 0.15)],
)
def test_the_published_fraction_of_words_is_masked_with_other_words_per_example(
    objective: SelfPretraining, mark: int, rate: float
) -> None:
    found = objective.encode(pages(), SpecialLetters())
    ids = found.rows["input_ids"]
    hidden = ((ids >= mark) & (ids < mark + 100)).sum((1, 2))
    assert abs(float(hidden.float().mean()) / 60 - rate) < 0.05  # standard deviation at most √(.25 / 1200) = .014
    assert len({tuple(row.flatten().tolist()) for row in ids}) == 20
    again = objective.encode(pages(), SpecialLetters())
    assert torch.equal(again.rows["labels"], found.rows["labels"])
    other = replace(objective, seed=1).encode(pages(), SpecialLetters())
    assert not torch.equal(other.rows["input_ids"], ids)


def test_a_position_is_a_five_hundredth_of_the_page() -> None:
    found = TextModeling(rate=1.0).encode(pages(1, many=1), SpecialLetters())
    assert [p - PLACE for p in found.rows["input_ids"][0, 0].tolist() if p >= PLACE] == [250, 125, 375, 500]


def test_repeats_point_cyclically_to_the_next_equal_word_of_the_page() -> None:
    texts = [["a", "b", "a", "B", "a"], ["c", "a"]]
    boxes = [[0.0] * 20, [0.0] * 8]
    found = build_pages(pa.table({"words": texts, "boxes": boxes}), SpecialLetters())
    assert found.repeat.tolist() == [2, 2, 2, -2, -4, 0, 0]  # the last "a" is followed by the first
    assert found.bounds.tolist() == [0, 5, 7]


def test_with_repeat_rate_one_at_least_one_occurrence_of_a_repeated_word_stays() -> None:
    texts = ["twice", "once", "twice", "thrice", "thrice", "thrice", "never"]
    boxes = [0.5, 0.25, 0.75, 1.0] * len(texts)
    split_ = split(
        [page(texts, boxes, png((255, 0, 0)))], [question(0, "what?", ["x"], name=f"q{k}") for k in range(99)]
    )
    objective = TextModeling(rate=0.0, repeat_rate=1.0, max_tokens=128)
    found = objective.encode(split_, SpecialLetters())
    said = (found.rows["labels"] == SPECIAL.text[0]).any(1) & (found.rows["labels"] == SPECIAL.text[1]).any(1)
    assert said.all()  # one of the pair, and at least one of the three
    lone = objective.encode(split_, SpecialLetters()).rows["input_ids"][:, 0]
    twice, thrice = (_times(lone, SpecialLetters().encode([text])[0]) for text in ("twice", "thrice"))
    assert twice.tolist() == [1] * 99
    assert set(thrice.tolist()) == {1, 2}
    never = replace(objective, repeat_rate=0.0).encode(split_, SpecialLetters()).rows["input_ids"][:, 0]
    assert _times(never, SpecialLetters().encode(["twice"])[0]).tolist() == [2] * 99


def _times(ids: torch.Tensor, word: list[int]) -> torch.Tensor:
    """Return how often a word's tokens occur in each row."""
    return (ids.unfold(1, len(word), 1) == torch.tensor(word)).all(-1).sum(1)


class ConstantModel:
    """A model that returns the same logits of tokens 0 … 3 at every position."""

    def __init__(self, logits: list[float]) -> None:
        self.logits = torch.tensor(logits)

    def __call__(self, input_ids: torch.Tensor, labels: torch.Tensor, **rest: torch.Tensor) -> Outputs:
        assert input_ids.dim() == 2
        return Outputs(self.logits.expand(*labels.shape, 4), features=input_ids.float())


def test_the_self_pretraining_loss_is_the_mean_over_tasks_of_the_mean_over_tokens() -> None:
    objective = MixedModeling(tasks=("text", "layout"))
    batch = {
        "input_ids": torch.tensor([[[1, 2], [3, 4]]]),
        "boxes": torch.zeros(1, 2, 2, 4),
        "attention_mask": torch.ones(1, 2, 2, dtype=torch.bool),
        "labels": torch.tensor([[0, 0, 0, 1, -100, -100]]),  # three tokens of the first task, one of the second
        "mask": torch.ones(1),
    }
    module = ConstantModel([2.0, 1.0, 0.0, 0.0])
    given = {name: batch[name] for name in objective.inputs if name in batch}
    outputs = objective.run(module, given)
    log_sum = float(torch.tensor([2.0, 1.0, 0.0, 0.0]).logsumexp(0))
    sums, weights = objective.loss(outputs, batch)
    assert_close(sums, torch.tensor([((log_sum - 2.0) + (log_sum - 1.0)) / 2]))  # not 3/4 and 1/4
    assert weights.tolist() == [1.0]
    assert outputs.logits.shape == (1, 6, 4)
    assert outputs.features.tolist() == [[2.0, 3.0]]  # mean of (1, 2) and (3, 4)
    assert objective.predict(module, batch)["token_accuracy"] == [0.75]


def test_special_tokens_have_the_ids_of_udop() -> None:
    text = add_special_tokens(public_tokenizer())
    first = public_tokenizer().get_vocab_size()
    assert text.get_vocab_size() == first + NUM_SPECIAL_TOKENS == first + 1201
    found = special_token_ids(text)
    groups = (found.both, found.layout, found.layout_end, found.text, found.text_end, found.place)
    # of T5's 32,000 tokens: <extra_id_0> is 32,099, <loc_0> is 33,000
    assert [int(ids[0]) - first for ids in groups] == [99, 199, 299, 399, 499, 1000]
    assert int(found.place[500]) == first + 500
    assert text.encode("<loc_7>").ids == [int(found.place[7])]
    assert public_tokenizer().token_to_id("<loc_7>") is None  # the shared one is unchanged


def test_a_model_with_special_tokens_has_the_published_vocabulary_size() -> None:
    with torch.device("meta"):
        network = LayoutT5(size="base", special_tokens=True).network()
    assert network.t5.shared.weight.shape == (33_201, 768)
    assert LayoutT5(special_tokens=True).tokenizer().special_tokens is not None
    assert LayoutT5().tokenizer().special_tokens is None


def test_self_pretraining_refuses_a_model_without_special_tokens_and_duplicate_tasks() -> None:
    with pytest.raises(DataError, match=r"give model\.special_tokens: true"):
        TextModeling().encode(pages(1), SpecialLetters(special_tokens=None))
    with pytest.raises(ConfigError, match="allowed: text, layout, joint, reading, each once"):
        MixedModeling(tasks=("text", "text"))


SHORT: dict[str, Any] = {"max_tokens": 64, "max_target": 32}
OBJECTIVES = {
    "text": TextModeling(**SHORT),
    "layout": LayoutModeling(**SHORT),
    "joint": TextLayoutModeling(**SHORT, rate=0.5),
    "mixed": MixedModeling(**SHORT),
    "reading": MixedModeling(**SHORT, tasks=("reading",), reading_rate=0.5),
}
ADAM: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 2e-3, "batch_size": 4, "clients_per_round": 2}
MODEL: dict[str, Any] = {
    "data": Pages(train=16, valid=4, providers=4),
    "model": LayoutT5(special_tokens=True, dropout=0.0),
}


def pretraining(name: str, mode: str = "sequential", rounds: int = 1) -> Experiment:
    return experiment(
        "fedavg", mode, objective=OBJECTIVES[name], rounds=rounds, evaluate=Evaluate(samples=1), **MODEL, **ADAM,
        partition=_by_provider(), deterministic=True,
    )  # fmt: skip


def _by_provider() -> object:
    from simfl.data.partition.partitioners import PARTITIONERS

    return PARTITIONERS["iid"](clients=4)


def final(folder: Path, metric: str) -> list[float]:
    rows = tables.read(folder / "evaluations.parquet").to_pylist()
    return [row["value"] for row in rows if row["metric"] == metric and row["by"] == "all"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_small_model_learns_to_predict_masked_words(name: str, tmp_path: Path) -> None:
    run(pretraining(name, rounds=3), tmp_path)
    likelihoods = final(tmp_path, "log_likelihood")
    assert likelihoods[-1] > likelihoods[0] + 0.1


def test_mixed_modeling_trains_alike_in_both_execution_modes(tmp_path: Path) -> None:
    for mode in ("sequential", "vectorized"):
        run(pretraining("mixed", mode), tmp_path / mode)
    run(without_training(pretraining("mixed")), tmp_path / "start")
    start, sequential, vectorized = (_flat(model(tmp_path / n)) for n in ("start", "sequential", "vectorized"))
    assert (vectorized - sequential).norm() < 0.01 * (sequential - start).norm()


def without_training(given: Experiment) -> Experiment:
    """Return the experiment with a learning rate of 0, whose final model is the initial one."""
    (phase,) = given.phases
    return replace(given, phases=(replace(phase, local=replace(phase.local, learning_rate=0.0)),))


def _flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[name].double().flatten() for name in sorted(weights)])


@pytest.mark.slow
def test_fine_tuning_starts_from_the_self_pretrained_model(tmp_path: Path) -> None:
    """The phases differ in rounds, clients and server optimizer; the second starts with the model of the first."""
    first = pretraining("mixed", rounds=2)
    first = replace(first, phases=(replace(first.phases[0], server=Adam(learning_rate=1e-3), clients_per_round=4),))
    second = experiment("fedavg", objective=DocVqa(max_tokens=64, max_answer=8), rounds=1, **MODEL, **ADAM)
    run(first, tmp_path / "alone")
    second = without_training(second)
    run(then(first, second), tmp_path / "both")
    alone, both = model(tmp_path / "alone"), model(tmp_path / "both")
    for key, tensor in alone.items():
        assert torch.equal(both[key], tensor)
    rows = tables.read(tmp_path / "both" / "clients.parquet").to_pylist()
    assert [sum(row["phase"] == p and row["round"] == r for row in rows) for p, r in ((0, 1), (0, 2), (1, 1))] == [
        4,
        4,
        2,
    ]
    assert final(tmp_path / "both", "anls")  # the second phase is scored by its own metric
    run(then(first, second), tmp_path / "again")
    assert traces(tmp_path / "both") == traces(tmp_path / "again")
