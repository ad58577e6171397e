"""Pretrain the page reader on drawn pages, on one GPU: first encoder and connector, then these and LoRA together.

    python experiments/page_reader/pretrain_reader.py OUT

Stage 1 teaches which character is in each cell of a patch, and makes the connector show one token per patch: the
embedding of the token printed there. Stage 2 trains conversations about a page. Pages are drawn by other processes.
Weights are written and scored at intervals, so that a run that is stopped leaves what it has.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawing import GRID, NOTHING, draw_page, draw_text
from drawn_pages import Drawing, Pages, Writer
from network import BEFORE_IMAGE, Language, SlotHead, build, encoded
from reader_scores import Asked, held_out, receipts, score
from shipping import pack, unpack
from torch import Tensor, nn
from torch.nn import functional

from simfl.models.pretrained import weights_folder

EMPTY_WEIGHT = 0.1  # of cells and patches that show nothing, in the losses of stage 1
EMPTY_SHARE = 0.1  # of such patches in the loss of tokens
OTHERS = 2048  # random tokens that compete with the shown ones, besides those of the batch
SHARPNESS = 10.0  # of the choice between tokens, by the distance to their embeddings
SLOT_WEIGHT, SHOWN_WEIGHT = 0.2, 0.2  # of the losses of stage 1 within stage 2
FEW_PATCHES = 512  # of a page in the first part of stage 2: all that show something, and some others at random
ALL_PATCHES_FROM = 0.75  # share of stage 2 from which the language model sees the whole page, as it will in use
ENCODER_RATE = 1.5e-3  # of stage 1
LORA_RATE, CONNECTOR_RATE, LATER_RATE = 1e-3, 5e-4, 3e-4  # of stage 2; the last is the encoder's
NOTE_EVERY = 50  # steps


@dataclass
class Training:
    """The model in training, its pages, and notes of its progress."""

    model: Any
    tokenizer: Any
    language: Language
    head: SlotHead
    pages: Pages
    space: int
    began: float
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = self.pages.device
        self.kind = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.embeddings = self.model.get_input_embeddings().weight.detach().float()
        self.before = torch.tensor(self.tokenizer(BEFORE_IMAGE, add_special_tokens=False)["input_ids"]).to(self.device)
        self.generator = torch.Generator(self.device).manual_seed(1)

    def precise(self) -> Any:
        """Return the context in which activations have 16 bits on a GPU."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.kind is torch.bfloat16)

    def note(self, stage: str, step: int, **values: float | Tensor) -> None:
        """Print and keep a row of progress."""
        numbers = {k: round(v.item() if isinstance(v, Tensor) else v, 4) for k, v in values.items()}
        row = {"stage": stage, "step": step, "seconds": round(time.monotonic() - self.began, 1), **numbers}
        self.rows.append(row)
        print(json.dumps(row | {"pages": self.pages.ready}), flush=True)


def steps_until(seconds: float, optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, float]]:
    """Yield steps and the share of the time, until it is over; learning rates rise for 4 % of it, then fall."""
    peaks = [group["lr"] for group in optimizer.param_groups]
    began, step = time.monotonic(), 0
    while (share := (time.monotonic() - began) / seconds) < 1:
        factor = min(1.0, share / 0.04 + 0.02) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        yield step, share
        step += 1


def adamw(groups: list[tuple[list[nn.Parameter], float]], device: torch.device) -> torch.optim.AdamW:
    """Return AdamW over groups of parameters with their learning rates."""
    return torch.optim.AdamW(
        [{"params": parameters, "lr": rate} for parameters, rate in groups],
        weight_decay=0.01, betas=(0.9, 0.98), fused=device.type == "cuda",
    )  # fmt: skip


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take a step of the optimizer, with gradients of at most norm 1."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()


def slot_loss(logits: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of characters, and the share of them that is right; logits [B, P, slots, classes]."""
    target = slots.long().flatten()
    losses = functional.cross_entropy(logits.flatten(0, 2), target, reduction="none")
    printed = target > 0
    weights = torch.where(printed, 1.0, EMPTY_WEIGHT)
    right = ((logits.detach().flatten(0, 2).argmax(-1) == target) & printed).sum() / printed.sum().clamp(min=1)
    return (losses * weights).sum() / weights.sum(), right


def shown_loss(training: Training, vectors: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of the tokens that patches show, and the share of them that is right.

    The probability of a token falls with the squared distance of a vector [n, D] to its embedding, relative to the
    variance of embeddings; the distance to the right one is added, so that vectors come to lie on embeddings.
    """
    embeddings = training.embeddings
    others = torch.randint(len(embeddings), (OTHERS,), device=target.device, generator=training.generator)
    found = torch.where(target == NOTHING, training.space, target)
    candidates, place = torch.cat([found, others]).unique(return_inverse=True)
    table = embeddings[candidates]
    scale = table.var(0).sum()
    distances = ((table**2).sum(-1) - 2 * vectors.float() @ table.T) / scale  # but for the square of the vector
    losses = functional.cross_entropy(-SHARPNESS * distances, place[: len(found)], reduction="none")
    losses = losses + ((vectors.float() - table[place[: len(found)]]) ** 2).sum(-1) / scale
    printed = target != NOTHING
    weights = torch.where(printed, 1.0, EMPTY_WEIGHT)
    right = ((distances.detach().argmin(-1) == place[: len(found)]) & printed).sum() / printed.sum().clamp(min=1)
    return (losses * weights).sum() / weights.sum(), right


def rolled(batch: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Return pages moved down by whole patches, with what leaves at the bottom at the top."""
    side = batch["pixels"].shape[1]
    grid = {name: batch[name].unflatten(1, (GRID, GRID)).roll(rows, 1).flatten(1, 2) for name in ("slots", "shown")}
    return {"pixels": batch["pixels"].roll(rows * side // GRID, 1), **grid}


def train_encoder(training: Training, drawing: Drawing, seconds: float, batch: int) -> None:
    """Stage 1: characters and tokens of each patch."""
    model, head = training.model.model, training.head
    connector = list(model.multi_modal_projector.parameters())
    encoder = [*model.vision_tower.parameters(), *head.parameters()]
    optimizer = adamw([([*encoder, *connector], ENCODER_RATE)], training.device)
    random = np.random.default_rng(1)
    for step, _ in steps_until(seconds, optimizer):
        drawing.collect()
        rows = rolled(training.pages.sample(batch, training.generator), int(random.integers(GRID)))
        with training.precise():
            features = encoded(training.model, rows["pixels"])
            characters, right = slot_loss(head(features), rows["slots"])
            chance = torch.rand(rows["shown"].shape, device=training.device, generator=training.generator)
            chosen = (rows["shown"] != NOTHING) | (chance < EMPTY_SHARE)
            vectors = model.multi_modal_projector(features[chosen])
        shown, tokens = shown_loss(training, vectors, rows["shown"][chosen])
        update(optimizer, characters + shown)
        if step % NOTE_EVERY == 0:
            training.note("encoder", step, loss=characters, shown=shown, characters=right, tokens=tokens)


def some_patches(training: Training, shown: Tensor, count: int) -> Tensor:
    """Return places of patches [B, count] in their order: those that show something, and others at random."""
    chance = torch.rand(shown.shape, device=shown.device, generator=training.generator)
    return (chance + (shown != NOTHING)).topk(count, 1).indices.sort(1).values


def answer_loss(training: Training, rows: dict[str, Tensor], features: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of the tokens of answers, and the share of them that is right given those before them.

    Patches that are left out leave gaps: the others, and the text, keep their positions.

    Args:
        training: The model.
        rows: Pages.
        features: Of the encoder [B, P, width].
        places: Patches that the language model sees [B, n].
    """
    kind, ids, learned = training.kind, rows["ids"].long(), rows["learned"]
    with training.precise():
        kept = features.gather(1, places[..., None].expand(-1, -1, features.shape[-1]))
        vectors = training.model.model.multi_modal_projector(kept)
    size, before = len(ids), training.before
    text = functional.embedding(torch.cat([before.expand(size, -1), ids], 1), training.embeddings).to(kind)
    start = len(before)
    embeddings = torch.cat([text[:, :start], vectors.to(kind), text[:, start:]], 1)
    line = torch.arange(start + GRID**2 + ids.shape[1], device=ids.device).expand(size, -1)
    positions = torch.cat([line[:, :start], start + places, line[:, start + GRID**2 :]], 1)
    states = training.language(embeddings, positions)[:, start + places.shape[1] - 1 : -1][learned]
    logits = functional.linear(states, training.embeddings.to(kind)).float()
    target = ids[learned]
    right = (logits.detach().argmax(-1) == target).float().mean()
    return functional.cross_entropy(logits, target), right


class Saver:
    """Writes and scores the weights at intervals."""

    def __init__(self, training: Training, folder: Path, base: str, asked: dict[str, list[Asked]], every: float):
        self.training, self.folder, self.base = training, folder, base
        self.asked, self.every, self.last = asked, every, time.monotonic()

    def due(self) -> bool:
        """Return whether the interval is over."""
        return time.monotonic() - self.last > self.every

    def save(self, step: int, read_back: bool = False) -> dict[str, dict[str, float]]:
        """Write the weights, and score them; as they are read from the file if `read_back`."""
        training = self.training
        pack(training.model, training.language, self.folder, self.base)
        if read_back:
            unpack(training.model, training.language, self.folder)
        training.language.write_into(training.model.model.language_model)
        training.model.eval()
        found = {
            kind: score(training.model, training.tokenizer, asked, 64) for kind, asked in self.asked.items() if asked
        }
        training.model.train()
        print(json.dumps({"scores": found, "step": step, "seconds": time.monotonic() - training.began}), flush=True)
        self.last = time.monotonic()
        return found


def train_reader(training: Training, drawing: Drawing, seconds: float, batch: int, saver: Saver) -> None:
    """Stage 2: conversations about pages."""
    model, head = training.model.model, training.head
    optimizer = adamw(
        [
            (list(training.language.parameters()), LORA_RATE),
            (list(model.multi_modal_projector.parameters()), CONNECTOR_RATE),
            ([*model.vision_tower.parameters(), *head.parameters()], LATER_RATE),
        ],
        training.device,
    )
    for step, share in steps_until(seconds, optimizer):
        drawing.collect()
        rows = training.pages.sample(batch, training.generator)
        with training.precise():
            features = encoded(training.model, rows["pixels"])
            characters, _ = slot_loss(head(features), rows["slots"])
            chosen = rows["shown"] != NOTHING
            vectors = model.multi_modal_projector(features[chosen])
        shown, tokens = shown_loss(training, vectors, rows["shown"][chosen])
        count = FEW_PATCHES if share < ALL_PATCHES_FROM else GRID**2
        answers, right = answer_loss(training, rows, features, some_patches(training, rows["shown"], count))
        update(optimizer, answers + SLOT_WEIGHT * characters + SHOWN_WEIGHT * shown)
        if step % NOTE_EVERY == 0:
            training.note("reader", step, loss=answers, answers=right, tokens=tokens)
        if saver.due():
            saver.save(step)


@torch.no_grad()
def patch_scores(training: Training, writer: Writer, count: int) -> dict[str, float]:
    """Return the shares of characters and of tokens that are right on new pages: invoices, and text."""
    found = {}
    drawn = {
        "invoices": [draw_page("held out", 4 * n) for n in range(count)],
        "text": [draw_text("held out", n, writer.vocabulary) for n in range(count)],
    }
    for kind, pages in drawn.items():
        pixels = torch.from_numpy(np.stack([page.pixels for page in pages])).to(training.device)
        slots = torch.from_numpy(np.stack([page.slots for page in pages])).to(training.device)
        shown = torch.from_numpy(np.stack([writer.shown(page) for page in pages])).to(training.device)
        with training.precise():
            features = encoded(training.model, pixels)
            found[f"{kind}_characters"] = slot_loss(training.head(features), slots)[1].item()
            vectors = training.model.model.multi_modal_projector(features[shown != NOTHING]).float()
        table = training.embeddings
        nearest = torch.cat([((table**2).sum(-1) - 2 * part @ table.T).argmin(-1) for part in vectors.split(1024)])
        found[f"{kind}_tokens"] = (nearest == shown[shown != NOTHING]).float().mean().item()
    return found


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--encoder-seconds", type=float, default=180)
    parser.add_argument("--reader-seconds", type=float, default=300)
    parser.add_argument("--encoder-batch", type=int, default=64, help="pages a step of stage 1")
    parser.add_argument("--batch", type=int, default=32, help="conversations a step of stage 2")
    parser.add_argument("--processes", type=int, default=12, help="that draw pages")
    parser.add_argument("--capacity", type=int, default=60_000, help="pages to draw; they stay on the device")
    parser.add_argument("--first", type=int, default=2_000, help="pages to wait for before training")
    parser.add_argument("--questions", type=int, default=200, help="of each kind, to score the end")
    parser.add_argument("--save-seconds", type=float, default=45, help="between weights with small scores")
    parser.add_argument("--few-questions", type=int, default=24, help="of each kind, to score these weights")
    return parser.parse_args()


def main() -> None:
    """Train, write the weights and score them."""
    given, began = options(), time.monotonic()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = language_folder(given.base)
    pages = Pages(given.capacity, device)
    with tempfile.TemporaryDirectory(prefix="pages-") as files:
        drawing = Drawing(folder, Path(files), pages, given.processes)
        try:
            train(given, began, folder, drawing)
        finally:
            drawing.stop()


def train(given: argparse.Namespace, began: float, folder: Path, drawing: Drawing) -> None:
    """Train on pages as they are drawn."""
    pages, writer = drawing.pages, Writer(folder)
    model, tokenizer = build(folder)
    model.to(pages.device)
    language = Language(model.model.language_model)
    training = Training(model, tokenizer, language, SlotHead().to(pages.device), pages, writer.space, began)
    model.model.language_model.to(training.kind).requires_grad_(False)
    model.lm_head.to(training.kind)
    asked = held_out(writer.vocabulary, given.few_questions)
    drawing.collect(given.first)
    train_encoder(training, drawing, given.encoder_seconds, given.encoder_batch)
    print(json.dumps({"new pages": patch_scores(training, writer, given.few_questions)}), flush=True)
    saver = Saver(training, given.out, given.base, asked, given.save_seconds)
    train_reader(training, drawing, given.reader_seconds, given.batch, saver)
    drawing.stop()
    saver.asked = {**held_out(writer.vocabulary, given.questions), "receipts": receipts(given.questions)}
    scores = saver.save(-1, read_back=True)
    patches = patch_scores(training, writer, given.few_questions)
    name = torch.cuda.get_device_name() if pages.device.type == "cuda" else "cpu"
    facts = {"pages": pages.ready, "seconds": round(time.monotonic() - began, 1), "device": name}
    facts |= {"scores": scores, "patches": patches, "questions": given.questions}
    (given.out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    with (given.out / "curve.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(dict.fromkeys(name for row in training.rows for name in row)))
        table.writeheader()
        table.writerows(training.rows)
    print(json.dumps(facts), flush=True)


def language_folder(base: str) -> Path:
    """Return the folder of the language model in the layout of transformers."""
    from simfl.models.gguf import converted_folder, find_gguf

    folder = weights_folder(base)
    file = find_gguf(folder, None)
    return folder if file is None else converted_folder(file)


if __name__ == "__main__":
    main()
