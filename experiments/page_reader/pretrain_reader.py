"""Pretrain the page reader on drawn pages, on one GPU: first its encoder, then encoder, connector and LoRA together.

    python experiments/page_reader/pretrain_reader.py OUT

Pages are drawn by processes while the GPU trains. Stage 1 teaches the encoder which characters are in each patch.
Stage 2 trains conversations about a page: passages to read on, and questions about the invoice.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from drawing import GRID, NUM_CLASSES, SIDE, SLOTS, DrawnPage, draw_page, reading_tasks
from network import ALPHA, RANK, TARGETS, WIDTH, build, user_turn
from shipping import pack
from torch import Tensor, nn
from torch.nn import functional

from simfl import metrics
from simfl.models.composed import read_parts
from simfl.models.pretrained import weights_folder

CHUNK = 16  # pages of a task of a drawing process
NO_LABEL = -100
WITH_WORDS = 0.25  # share of conversations whose first question has the words of the page
EMPTY_WEIGHT = 0.1  # of places without a character in the loss of stage 1
SLOT_WEIGHT = 0.3  # of the loss of stage 1 within stage 2
PRINTED_WEIGHT = 0.5  # of the loss that draws patches to the embeddings of what is printed; falls to 0 at its end
FALLING = 0.6  # weight of a patch's second token relative to its first, and so on
EMPTY = np.zeros(0, np.uint8)
MAX_TOKENS = 1536  # of a conversation

_tokenizer: Any = None


def start_worker(folder: str) -> None:
    """Load the tokenizer of a drawing process."""
    global _tokenizer
    from transformers import AutoTokenizer

    _tokenizer = AutoTokenizer.from_pretrained(folder)


class Drawn(NamedTuple):
    """A page, and a conversation about it: tokens and labels [L]; and the patch and token of each printed token [n]."""

    pixels: np.ndarray
    slots: np.ndarray
    ids: np.ndarray
    labels: np.ndarray
    patches: np.ndarray
    tokens: np.ndarray


def drawn(chunk: int) -> list[Drawn]:
    """Return pages of the stream for training."""
    found = []
    for number in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        page, generator = draw_page("reader", number), np.random.default_rng([7, number])
        tasks = [*page.questions, *((text, (answer,)) for text, answer in reading_tasks(page.words, generator))]
        order = generator.permutation(len(tasks))
        turns = [(tasks[i][0], tasks[i][1][0]) for i in order]
        if generator.random() < WITH_WORDS:
            turns[0] = (f"{' '.join(page.words)}\n\n{turns[0][0]}", turns[0][1])
        found.append(Drawn(page.pixels, page.slots, *conversation(turns), *printed_tokens(page)))
    return found


def printed_tokens(page: DrawnPage) -> tuple[np.ndarray, np.ndarray]:
    """Return the patch in which each token of the page's words begins, and the token."""
    encoded_words = _tokenizer(
        [f" {word}" for word in page.words], add_special_tokens=False, return_offsets_mapping=True
    )
    pairs = [
        (cells[max(0, min(start - 1, len(cells) - 1))] // SLOTS, token)
        for cells, ids, offsets in zip(
            page.cells, encoded_words["input_ids"], encoded_words["offset_mapping"], strict=True
        )
        for token, (start, _) in zip(ids, offsets, strict=True)
    ]
    kept = np.array([pair for pair in pairs if pair[0] >= 0], np.int32).reshape(-1, 2)
    return kept[:, 0], kept[:, 1]


def conversation(turns: list[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of a conversation and its labels: the answers with their ends."""
    prompts = [user_turn(text, place == 0) for place, (text, _) in enumerate(turns)]
    encode = lambda texts: _tokenizer(texts, add_special_tokens=False)["input_ids"]
    asked, answered, newline = encode(prompts), encode([answer for _, answer in turns]), encode(["\n"])[0]
    ids: list[int] = []
    labels: list[int] = []
    for prompt, answer in zip(asked, answered, strict=True):
        ended = [*answer, _tokenizer.eos_token_id]
        ids += [*prompt, *ended, *newline]
        labels += [*[NO_LABEL] * len(prompt), *ended, *[NO_LABEL] * len(newline)]
    return np.array(ids[:MAX_TOKENS], np.int32), np.array(labels[:MAX_TOKENS], np.int32)


@dataclass
class Pages:
    """Pages in the memory of the device: the newest `capacity` that were drawn."""

    capacity: int
    device: torch.device
    rows: list[Drawn] = field(default_factory=list)
    total: int = 0

    def __post_init__(self) -> None:
        self.pixels = torch.zeros(self.capacity, SIDE, SIDE, dtype=torch.uint8, device=self.device)
        self.slots = torch.zeros(self.capacity, GRID**2, SLOTS, dtype=torch.int16, device=self.device)

    def add(self, chunk: list[Drawn]) -> None:
        """Store pages in place of the oldest."""
        places = (np.arange(len(chunk)) + self.total) % self.capacity
        rows = torch.from_numpy(places).to(self.device)
        self.pixels[rows] = torch.from_numpy(np.stack([page.pixels for page in chunk])).to(self.device)
        self.slots[rows] = torch.from_numpy(np.stack([page.slots for page in chunk])).to(self.device)
        for place, page in zip(places.tolist(), chunk, strict=True):
            kept = page._replace(pixels=EMPTY, slots=EMPTY)
            self.rows[place : place + 1] = [kept]
        self.total += len(chunk)

    def sample(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return random places of pages."""
        found: np.ndarray = generator.integers(0, len(self.rows), count)
        return found

    def sample_alike(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return random places of pages with conversations of similar length, which need little padding."""
        drawn_places = self.sample(4 * count, generator)
        lengths = [len(self.rows[i].ids) for i in drawn_places.tolist()]
        start = int(generator.integers(0, 3 * count + 1))
        return drawn_places[np.argsort(lengths, kind="stable")[start : start + count]]

    def floats(self, places: np.ndarray) -> Tensor:
        """Return pages as the encoder reads them [B, 3, SIDE, SIDE]."""
        return as_floats(self.pixels[torch.from_numpy(places).to(self.device)])

    def batch(self, places: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return tokens and labels [B, L] of conversations, padded on the right."""
        rows = [self.rows[i] for i in places.tolist()]
        length = -(-max(len(page.ids) for page in rows) // 64) * 64
        ids, labels = np.zeros((len(rows), length), np.int64), np.full((len(rows), length), NO_LABEL, np.int64)
        for row, page in enumerate(rows):
            ids[row, : len(page.ids)], labels[row, : len(page.ids)] = page.ids, page.labels
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(labels).to(self.device)

    def printed(self, places: np.ndarray, embeddings: Tensor) -> Tensor:
        """Return the weighted sum of the embeddings of the tokens that begin in each patch [B, patches, width]."""
        rows = [self.rows[i] for i in places.tolist()]
        flat = np.concatenate([page.patches.astype(np.int64) + row * GRID**2 for row, page in enumerate(rows)])
        order = np.argsort(flat, kind="stable")
        flat, tokens = flat[order], np.concatenate([page.tokens for page in rows]).astype(np.int64)[order]
        starts = np.r_[True, flat[1:] != flat[:-1]]
        rank = np.arange(len(flat)) - np.maximum.accumulate(np.where(starts, np.arange(len(flat)), 0))
        weights = torch.from_numpy(FALLING**rank).to(self.device, torch.float32)
        values = embeddings[torch.from_numpy(tokens).to(self.device)].float() * weights[:, None]
        found = torch.zeros(len(rows) * GRID**2, values.shape[1], device=self.device)
        return found.index_add(0, torch.from_numpy(flat).to(self.device), values).unflatten(0, (len(rows), -1))


def as_floats(pixels: Tensor) -> Tensor:
    """Return grey pages uint8 [B, H, W] as floats in [−1, 1], with three equal channels."""
    return (pixels.float() / 127.5 - 1)[:, None].expand(-1, 3, -1, -1)


def encoded(model: Any, floats: Tensor) -> Tensor:
    """Return the features of the patches [B, patches, width], as the connector reads them."""
    found: Tensor = model.model.vision_tower(floats, output_hidden_states=True).hidden_states[-1]
    return found


class SlotHead(nn.Module):
    """Predicts the characters of each patch from its features; used in pretraining alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SLOTS * NUM_CLASSES)

    def forward(self, features: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and the share of characters that are right."""
        logits = self.linear(self.norm(features)).float().unflatten(-1, (SLOTS, NUM_CLASSES))
        target = slots.long()
        losses = functional.cross_entropy(logits.flatten(0, 2), target.flatten(), reduction="none")
        weights = torch.where(target.flatten() > 0, 1.0, EMPTY_WEIGHT)
        inside = target > 0
        right = (logits.argmax(-1) == target)[inside].float().mean()
        return (losses * weights).sum() / weights.sum(), right


def steps_until(seconds: float, peak: list[float], optimizer: torch.optim.Optimizer) -> Iterator[int]:
    """Yield step numbers until the time is over; learning rates rise for 4 % of it, then fall as a cosine."""
    began, step = time.monotonic(), 0
    while (share := (time.monotonic() - began) / seconds) < 1:
        factor = min(1.0, share / 0.04 + 0.02) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        for group, rate in zip(optimizer.param_groups, peak, strict=True):
            group["lr"] = rate * factor
        yield step
        step += 1


def train_encoder(
    model: Any, head: SlotHead, pages: Pages, seconds: float, batch: int, note: Callable[..., None]
) -> None:
    """Stage 1: the characters of each patch."""
    parameters = [*model.model.vision_tower.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.01, betas=(0.9, 0.98))
    generator = np.random.default_rng(1)
    for step in steps_until(seconds, [1.5e-3], optimizer):
        places = pages.sample(batch, generator)
        with torch.autocast(pages.device.type, torch.bfloat16):
            features = encoded(model, pages.floats(places))
            loss, right = head(features, pages.slots[torch.from_numpy(places).to(pages.device)])
        update(optimizer, loss, parameters)
        if step % 50 == 0:
            note("encoder", step, loss=loss.item(), characters=right.item(), pages=pages.total)


def train_reader(
    model: Any, head: SlotHead, pages: Pages, seconds: float, batch: int, note: Callable[..., None]
) -> None:
    """Stage 2: conversations about pages."""
    language = model.model.language_model
    adapters = [p for n, p in language.named_parameters() if "lora_" in n]
    encoder = [*model.model.vision_tower.parameters(), *head.parameters()]
    connector = [*model.model.multi_modal_projector.parameters()]
    groups = [{"params": adapters}, {"params": connector}, {"params": encoder}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01, betas=(0.9, 0.98))
    generator, began = np.random.default_rng(2), time.monotonic()
    for step in steps_until(seconds, [1e-3, 1e-3, 6e-4], optimizer):
        places = pages.sample_alike(batch, generator)
        ids, labels = pages.batch(places)
        with torch.autocast(pages.device.type, torch.bfloat16):
            features = encoded(model, pages.floats(places))
            slot_loss, right = head(features, pages.slots[torch.from_numpy(places).to(pages.device)])
            shown = model.model.multi_modal_projector(features)
            printed = pages.printed(places, model.get_input_embeddings().weight)
            distance = printed_distance(shown.float(), printed)
            logits, target = answer_logits(model, shown, ids, labels)
            loss = functional.cross_entropy(logits.float(), target)
        weight = PRINTED_WEIGHT * max(0.0, 1 - (time.monotonic() - began) / seconds)
        update(optimizer, loss + SLOT_WEIGHT * slot_loss + weight * distance, [*adapters, *connector, *encoder])
        if step % 50 == 0:
            correct = (logits.argmax(-1) == target).float().mean()
            values = {"loss": loss, "tokens": correct, "characters": right, "distance": distance}
            note("reader", step, **{name: value.item() for name, value in values.items()}, pages=pages.total)


def printed_distance(shown: Tensor, printed: Tensor) -> Tensor:
    """Return the squared distance of patches to the embeddings of what is printed there, relative to their variance."""
    filled = (printed.abs().amax(-1, keepdim=True) > 0).float()
    weights = filled + EMPTY_WEIGHT * (1 - filled)
    scale = (printed**2 * filled).sum() / filled.sum().clamp(min=1)
    return ((shown - printed) ** 2 * weights).sum() / (weights.sum() * scale)


def answer_logits(model: Any, shown: Tensor, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits [n, V] of labelled tokens, and these tokens [n]."""
    embeddings = model.get_input_embeddings()(ids)
    embeddings = embeddings.masked_scatter((ids == model.config.image_token_id)[..., None], shown.to(embeddings.dtype))
    states = model.model.language_model(inputs_embeds=embeddings, use_cache=False).last_hidden_state
    target = labels[:, 1:]
    chosen = target != NO_LABEL
    return model.lm_head(states[:, :-1][chosen]), target[chosen]


def update(optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[nn.Parameter]) -> None:
    """Take a step of the optimizer, with gradients of at most norm 1."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()


@torch.no_grad()
def score(model: Any, tokenizer: Any, stream: str, count: int, batch: int) -> dict[str, float]:
    """Return ANLS and exact matches of generated answers to questions of newly drawn pages, by kind of question."""
    device, asked = model.device, []
    for number in range(-(-count // 4)):
        page, generator = draw_page(stream, number), np.random.default_rng([8, number])
        reading = reading_tasks(page.words, generator)[-1:]
        asked += [(page.pixels, text, answers, "question") for text, answers in page.questions[:4]]
        asked += [(page.pixels, text, (answer,), "reading") for text, answer in reading]
    found: dict[str, list[tuple[float, float]]] = {"question": [], "reading": []}
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        prompts = tokenizer([user_turn(text, True) for _, text, _, _ in part], padding=True, padding_side="left",
                            add_special_tokens=False, return_tensors="pt").to(device)  # fmt: skip
        pixels = as_floats(torch.from_numpy(np.stack([p for p, *_ in part])).to(device))
        with torch.autocast(device.type, torch.bfloat16):
            tokens = model.generate(**prompts, pixel_values=pixels, max_new_tokens=40, do_sample=False)
        texts = tokenizer.batch_decode(tokens[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
        for text, (_, question, answers, kind) in zip(texts, part, strict=True):
            found[kind].append((metrics.anls(text, answers), metrics.exact_match(text, answers)))
            if len(found[kind]) <= 3:
                print(kind, "|", question, "|", answers[0], "|", text, flush=True)
    names = ("anls", "exact")
    return {
        f"{kind}_{n}": float(np.mean([p[i] for p in pairs]))
        for kind, pairs in found.items()
        for i, n in enumerate(names)
    }


def add_lora(language: nn.Module) -> None:
    """Freeze the language model and add LoRA to all of its linear layers."""
    from peft import LoraConfig, inject_adapter_in_model

    for parameter in language.parameters():
        parameter.requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS)), language)
    for name, parameter in language.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)


def load_parts(model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Copy stored tensors into the parameters that the model has by now."""
    for name, parameter in model.named_parameters():
        found = tensors.get(name.replace(".base_layer", "").replace(".default", ""))
        if found is not None:
            parameter.data.copy_(found)


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--start", type=Path, help="a folder that this script wrote, to go on from")
    parser.add_argument("--encoder-seconds", type=float, default=120)
    parser.add_argument("--reader-seconds", type=float, default=420)
    parser.add_argument(
        "--batch", type=int, default=16, help="conversations a step; stage 1 reads eight times as many pages"
    )
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--capacity", type=int, default=60_000, help="pages kept on the device")
    parser.add_argument("--questions", type=int, default=400, help="questions of new pages, to score")
    return parser.parse_args()


def main() -> None:
    """Train, write the weights and score them as they are written."""
    given, began = options(), time.monotonic()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = language_folder(given.base)
    pages = Pages(given.capacity, device)
    context = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []

    def note(stage: str, step: int, **values: float) -> None:
        rows.append({"stage": stage, "step": step, "seconds": round(time.monotonic() - began, 1)} | values)
        print(json.dumps(rows[-1]), flush=True)

    with context.Pool(given.processes, start_worker, (str(folder),)) as pool:
        stop = threading.Event()
        filler = threading.Thread(target=fill, args=(pool, pages, stop), daemon=True)
        filler.start()
        model, tokenizer = build(folder)
        model.to(device)
        head = SlotHead().to(device)
        while pages.total < 8 * given.batch:
            time.sleep(0.1)
        start = None if given.start is None else read_parts(given.start / "model.safetensors")[0]
        if start is not None:
            load_parts(model, start)
        train_encoder(model, head, pages, given.encoder_seconds, 8 * given.batch, note)
        model.model.language_model.to(torch.bfloat16)
        add_lora(model.model.language_model)
        if start is not None:
            load_parts(model, {name: tensor for name, tensor in start.items() if ".lora_" in name})
        train_reader(model, head, pages, given.reader_seconds, given.batch, note)
        stop.set()
    given.out.mkdir(parents=True, exist_ok=True)
    pack(model, given.out, given.base)
    model.eval()
    scores = score(model, tokenizer, "held out", given.questions, 2 * given.batch)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    facts = {"pages": pages.total, "seconds": round(time.monotonic() - began, 1), **scores, "device": name}
    (given.out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    with (given.out / "curve.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    print(json.dumps(facts), flush=True)


def fill(pool: Any, pages: Pages, stop: threading.Event) -> None:
    """Store drawn pages until `stop`."""
    try:
        for chunk in pool.imap_unordered(drawn, range(1 << 30)):
            pages.add(chunk)
            if stop.is_set():
                return
    except Exception as error:
        if not stop.is_set():
            print(f"drawing ended: {error!r}", flush=True)


def language_folder(base: str) -> Path:
    """Return the folder of the language model in the layout of transformers."""
    from simfl.models.gguf import converted_folder, find_gguf

    folder = weights_folder(base)
    file = find_gguf(folder, None)
    return folder if file is None else converted_folder(file)


if __name__ == "__main__":
    main()
