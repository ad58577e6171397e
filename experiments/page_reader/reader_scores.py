"""Scores of a page reader on pages that it was not trained on."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from drawing import GRID, SIDE, draw_page, draw_text, reading_tasks
from network import BEFORE_IMAGE, IMAGE_TOKEN, as_floats, user_turn
from PIL import Image

from simfl import metrics
from simfl.data.benchmarks.provider_invoices.documents import NAMESPACE, Recipe, benchmark_providers, make_document
from simfl.data.benchmarks.provider_invoices.provider import BENCHMARK
from simfl.data.readers.sroie import Sroie
from simfl.files import cache_folder

SCANNERS = 10


@dataclass(frozen=True)
class Asked:
    """A question about a page, uint8 [SIDE, SIDE], with its correct answers."""

    pixels: np.ndarray
    question: str
    answers: Sequence[str]


def held_out(vocabulary: Sequence[str], count: int) -> dict[str, list[Asked]]:
    """Return questions on new pages: to read on and about invoices, both drawn as in training; and of the benchmark.

    The benchmark's invoices are by providers with names, companies and labels that no page of the training has.
    """
    found: dict[str, list[Asked]] = {"reading": [], "drawn": [], "invoices": []}
    providers, _ = benchmark_providers(1, 3 * SCANNERS, 0, SCANNERS)
    for number in range(-(-count // 2)):
        page = draw_page("held out", 4 * number)
        found["drawn"] += [Asked(page.pixels, text, answers) for text, answers in page.questions[:2]]
        page = draw_text("held out", number, vocabulary)
        tasks = reading_tasks(page.words, np.random.default_rng([8, number]), 5)[1:4:2]
        found["reading"] += [Asked(page.pixels, text, (answer,)) for text, answer in tasks]
        provider = providers[7 * number % len(providers)]
        document = make_document(provider, number, NAMESPACE, BENCHMARK, Recipe(image_width=448))
        pixels = as_page(document.image)
        found["invoices"] += [Asked(pixels, q.question, q.answers) for q in document.questions[:2]]
    return {kind: asked[:count] for kind, asked in found.items()}


def receipts(count: int) -> list[Asked]:
    """Return questions on real receipts of companies outside of the training split; none without $SIMFL_REAL_DATA."""
    if "SIMFL_REAL_DATA" not in os.environ:
        return []
    split = Sroie(path="$SIMFL_REAL_DATA/sroie", image_size=448).load(cache_folder()).splits["unseen"]
    assert split.documents is not None
    images = split.documents["image"]
    rows = split.examples.select(["document", "question", "answers"]).to_pylist()
    rows = rows[:: max(1, len(rows) // count)][:count]
    return [Asked(as_page(images[row["document"]].as_py()), row["question"], row["answers"]) for row in rows]


def as_page(image: bytes) -> np.ndarray:
    """Return an encoded picture as the processor of the page reader gives it."""
    with Image.open(io.BytesIO(image)) as picture:
        return np.asarray(picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.uint8)


@torch.no_grad()
def score(
    model: Any, tokenizer: Any, asked: Sequence[Asked], batch: int, max_answer: int = 32, shown: int = 2
) -> dict[str, float]:
    """Return ANLS, exact matches and characters right (1 − edit distance / length) of greedy answers.

    Args:
        model: The page reader, a LLaVA of transformers.
        tokenizer: Of its language model.
        asked: Questions with answers.
        batch: Questions answered together.
        max_answer: Tokens of an answer.
        shown: Answers to print.
    """
    device, answers = model.device, []
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        texts = [user_turn(one.question, BEFORE_IMAGE + IMAGE_TOKEN * GRID**2) for one in part]
        prompts = tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt").to(
            device
        )
        pixels = as_floats(torch.from_numpy(np.stack([one.pixels for one in part])).to(device))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            tokens = model.generate(**prompts, pixel_values=pixels, max_new_tokens=max_answer, do_sample=False)
        answers += tokenizer.batch_decode(tokens[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    for one, answer in list(zip(asked, answers, strict=True))[:shown]:
        print("  ", one.question, "|", one.answers[0], "|", answer, flush=True)
    pairs = list(zip(answers, [one.answers for one in asked], strict=True))
    values = {
        "anls": [metrics.anls(answer, right) for answer, right in pairs],
        "exact": [metrics.exact_match(answer, right) for answer, right in pairs],
        "characters": [max(metrics.similarity(answer, one) for one in right) for answer, right in pairs],
    }
    return {name: round(float(np.mean(numbers)), 4) for name, numbers in values.items()}
