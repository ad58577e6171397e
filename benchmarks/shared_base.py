"""Measure clients that share one frozen base on a GPU: `python -m benchmarks.shared_base`.

A vision-language model of published shape and random weights (Qwen2.5-VL, 3B or 7B) is written to a folder once. Eight
clients fine-tune it by LoRA (r = 16, queries and values) on pages that were drawn, and the same is done by a loop over
clients with peft alone, one after the other. Each row is a process of its own.

peft          one client after the other: transformers, peft, AdamW, the model's own loss
sequential    simfl, one client after the other
vectorized    simfl, all clients as one pass over the shared base
nf4           as sequential, with a base of 4 bits
parallel      simfl over two GPUs (execution.model_parallel: 2)

Peaks are torch's allocations from the first round on; examples/s are those of the later rounds, in whole seconds of a
round. Results go to benchmarks/latest_shared_base.json.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

LATEST = Path(__file__).parent / "latest_shared_base.json"
TARGETS = ("q_proj", "v_proj")
RATE, RANK = 2e-4, 16
PROMPT, MAX_ANSWER = "{question} Answer with a single value.", 16
TOKENS = 28 * 28  # pixels of a page that become a token
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "text": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "mrope": [1, 1, 2]},
        "vision": {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4},
        "tied": True,
    },
    "3b": {
        "text": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
                 "num_key_value_heads": 2, "vocab_size": 151936, "mrope": [16, 24, 24]},
        "vision": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
        "tied": True,
    },
    "7b": {
        "text": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
                 "num_key_value_heads": 4, "vocab_size": 152064, "mrope": [16, 24, 24]},
        "vision": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
        "tied": False,
    },
}  # fmt: skip


def config_of(shape: str) -> dict[str, Any]:
    """Return the configuration of a shape, as `model.config` takes it."""
    text, vision = dict(SHAPES[shape]["text"]), SHAPES[shape]["vision"]
    rope = {"rope_type": "default", "mrope_section": text.pop("mrope"), "rope_theta": 1e6}
    return {
        "model_type": "qwen2_5_vl", "tie_word_embeddings": SHAPES[shape]["tied"],
        "text_config": {**text, "rope_parameters": rope, "tie_word_embeddings": SHAPES[shape]["tied"]},
        "vision_config": {**vision, "out_hidden_size": text["hidden_size"]},
    }  # fmt: skip


def write_weights(folder: Path, shape: str, device: str) -> None:
    """Write a model of random weights with its tokenizer and processor, as a folder of the hub has them."""
    from simfl.models.hf import HuggingFace
    from simfl.models.meta_device import build_on_meta
    from simfl.models.own import release
    from simfl.protocol import Task

    model = HuggingFace(config=config_of(shape), dtype="bfloat16")
    module: Any = release(build_on_meta(model, Task(0))).to_empty(device=device)
    for name, parameter in module.named_parameters():
        torch.nn.init.ones_(parameter) if "norm" in name else torch.nn.init.normal_(parameter, std=0.02)
    module.tie_weights()
    module.save_pretrained(folder)
    tokenizer = model.tokenizer()
    assert tokenizer.processor is not None
    tokenizer.processor.save(folder)


def questions(count: int, clients: int, pixels: int) -> list[dict[str, Any]]:
    """Return questions about drawn pages of equal size, `count` for each client."""
    side = round(pixels**0.5 / 28) * 28
    found = []
    for number in range(count * clients):
        page = Image.new("RGB", (side, side), "white")
        pen = ImageDraw.Draw(page)
        pen.text((side // 2, 10), f"page {number}", fill="black")  # no page is that of two clients
        for line in range(8):
            pen.text((10, 10 + line * side // 9), f"field {line}: {(number * 7 + line) % 97}", fill="black")
        out = io.BytesIO()
        page.save(out, "PNG")
        question = f"What is field {number % 8}?"
        answers = [str((number * 7 + number % 8) % 97)]
        found.append(
            {"question": question, "answers": answers, "client": f"c{number % clients}", "image": out.getvalue()}
        )
    return found


def memory(device: int = 0) -> int:
    """Return the peak of torch's allocations on a GPU in bytes; 0 without one."""
    return torch.cuda.max_memory_allocated(device) if torch.cuda.is_available() else 0


def reset() -> None:
    """Count peaks from now on."""
    for device in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        torch.cuda.reset_peak_memory_stats(device)


def wait() -> float:
    """Wait for the GPU; return the time in seconds."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def simfl_row(given: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Run rounds of all clients by simfl."""
    from simfl import simulation
    from simfl.api import experiment_of
    from simfl.session.options import RunOptions

    rows = questions(given.steps * given.batch, given.clients, given.pixels)
    model = {
        "name": "hf", "weights": str(given.weights), "dtype": "bfloat16", "checkpointing": given.checkpointing,
        "base": "nf4" if kind == "nf4" else "none", "processor": {"size": page_size(given.pixels)},
        "adapters": {"kind": "lora", "rank": RANK, "alpha": RANK, "dropout": 0.0, "targets": list(TARGETS)},
    }  # fmt: skip
    mode = "vectorized" if kind == "vectorized" else "sequential"
    phase = {
        "objective": {"name": "chat", "prompt": PROMPT, "max_answer": MAX_ANSWER}, "rounds": given.rounds,
        "clients_per_round": given.clients,
        "local": {"optimizer": "adamw", "learning_rate": RATE, "epochs": 1, "batch_size": given.batch},
    }  # fmt: skip
    experiment = experiment_of(
        {
            "name": kind, "data": {"train": rows, "valid": rows[:1]}, "model": model, "phases": [phase],
            "partition": {"by": "natural", "column": "client"}, "checkpoint": {"rounds": given.rounds},
            "evaluate": {"every": 0, "limit": 1, "batch_size": 1, "loss": False, "samples": 0},
            "execution": {
                "mode": mode, "clients_per_batch": given.clients if mode == "vectorized" else 1,
                "program": given.program, "autotune": "never", "threads": given.threads,
                "model_parallel": 2 if kind == "parallel" else 1,
            },
        }
    )  # fmt: skip
    rounds: list[float] = []

    def note() -> str:
        rounds.append(wait())
        if len(rounds) == 1:
            reset()
        return ""

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        simulation.run(experiment, RunOptions(Path(folder) / "run", "inline", until=note))
        log = [json.loads(line) for line in (Path(folder) / "run" / "log.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in log if "timings" in line]
    messages = [line["message"] for line in log if "captured" in str(line.get("message"))]
    peaks = [memory(device) for device in range(2 if kind == "parallel" else 1)]
    return {
        "seconds": seconds, "peak_bytes": peaks, "total_seconds": time.perf_counter() - began, "messages": messages,
        **base_bytes(given, kind),
    }  # fmt: skip


def base_bytes(given: argparse.Namespace, kind: str) -> dict[str, int]:
    """Return the bytes of the frozen tensors of the model, by building it on the meta device."""
    from simfl.models.hf import HuggingFace
    from simfl.models.lora import Lora
    from simfl.models.meta_device import build_on_meta
    from simfl.protocol import Task

    model = HuggingFace(
        weights=str(given.weights),
        dtype="bfloat16",
        base="nf4" if kind == "nf4" else "none",
        adapters=Lora(rank=RANK, targets=TARGETS),
    )
    module = build_on_meta(model, Task(0))
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {"base_bytes": sum(t.nbytes for name, t in tensors if "lora_" not in name)}


def page_size(pixels: int) -> dict[str, int]:
    """Return the size of pages as the processor takes it: exactly these pixels."""
    return {"shortest_edge": pixels, "longest_edge": pixels + 28 * 28}


def peft_row(given: argparse.Namespace) -> dict[str, Any]:
    """Run rounds of all clients by transformers and peft alone: each client starts from the average of the last round.

    Inputs are processed before, as by simfl.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, batches = _peft_model(given, device), _peft_batches(given)
    names = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    start: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in names.items()}
    model.train()
    seconds: list[float] = []
    reset()
    for _ in range(given.rounds):
        began, total = wait(), {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        for client in range(given.clients):
            with torch.no_grad():
                for name, parameter in names.items():
                    parameter.copy_(start[name])
            optimizer = torch.optim.AdamW(names.values(), lr=RATE)
            for batch in batches[client]:
                out = model(**{name: tensor.to(device) for name, tensor in batch.items()})
                out.loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            for name, parameter in names.items():
                total[name] += parameter.detach() / given.clients
        start = total
        seconds.append(wait() - began)
    return {"seconds": seconds, "peak_bytes": [memory()]}


def _peft_model(given: argparse.Namespace, device: str) -> Any:
    """Load the model with float32 adapters, as simfl has them."""
    import peft
    import transformers

    model = transformers.AutoModelForImageTextToText.from_pretrained(given.weights, dtype=torch.bfloat16).to(device)
    layers = rf".*language_model.*\.({'|'.join(TARGETS)})"
    found = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=layers))
    if given.checkpointing:
        found.gradient_checkpointing_enable({"use_reentrant": False})
    return found


def _peft_batches(given: argparse.Namespace) -> list[list[dict[str, Tensor]]]:
    """Return the batches of each client, as the model's own processor makes them."""
    from simfl.models.hf import HuggingFace

    tokenizer = HuggingFace(weights=str(given.weights), processor={"size": page_size(given.pixels)}).tokenizer()
    reader = tokenizer.processor
    assert reader is not None
    rows = questions(given.steps * given.batch, given.clients, given.pixels)
    found: list[list[dict[str, Tensor]]] = []
    for client in range(given.clients):
        own = [row for row in rows if row["client"] == f"c{client}"]
        found.append([_peft_batch(reader, own[k : k + given.batch]) for k in range(0, len(own), given.batch)])
    return found


def _peft_batch(reader: Any, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    processor = reader.processor
    images = [Image.open(io.BytesIO(row["image"])) for row in rows]
    prompts = [reader.text("", PROMPT.format(question=row["question"])) for row in rows]
    texts = [prompt + row["answers"][0] for prompt, row in zip(prompts, rows, strict=True)]
    found = dict(processor(images=images, text=texts, return_tensors="pt", padding=True))
    labels = found["input_ids"].clone()
    lengths = [len(ids) for ids in processor(images=images, text=prompts)["input_ids"]]
    for row, length in enumerate(lengths):
        labels[row, :length] = -100
    labels[found["attention_mask"] == 0] = -100
    return {**found, "labels": labels}


def measure(given: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Measure one row in this process."""
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_num_threads(given.threads)
    found = peft_row(given) if kind == "peft" else simfl_row(given, kind)
    later = found["seconds"][1:] or found["seconds"]
    examples = given.clients * given.steps * given.batch
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "row": kind, "shape": given.shape, "batch": given.batch, "clients": given.clients, "pixels": given.pixels,
        "checkpointing": given.checkpointing, "program": given.program,
        "examples_per_second": examples / float(np.median(later)), **found, "gpu": name, "torch": torch.__version__,
    }  # fmt: skip


def as_line(row: Mapping[str, Any]) -> str:
    """Format a row for a terminal."""
    peaks = " + ".join(f"{peak / 1e9:.2f}" for peak in row["peak_bytes"])
    base = f"  base {row['base_bytes'] / 1e9:.2f} GB" if "base_bytes" in row else ""
    return (
        f"{row['shape']} {row['row']:10} batch {row['batch']} checkpointing {row['checkpointing']!s:5}"
        f" {row['program']:5} {row['examples_per_second']:8.1f} examples/s  peak {peaks} GB{base}"
        f"  seconds {[round(s, 2) for s in row['seconds']]} {' '.join(row.get('messages', []))}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shared_base", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rows", nargs="+", default=["peft", "sequential", "vectorized", "nf4"])
    parser.add_argument("--shape", default="3b", choices=list(SHAPES))
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1, help="examples of a local step")
    parser.add_argument("--steps", type=int, default=4, help="local steps of a client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pixels", type=int, default=256 * TOKENS, help="of a page")
    parser.add_argument("--checkpointing", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--program", default="eager", choices=["auto", "eager", "graph"])
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--weights", type=Path, help="a folder of weights; written if it does not exist")
    parser.add_argument("--out", type=Path, default=LATEST)
    parser.add_argument("--one", action="store_true", help="measure the only row in this process")
    return parser


def main() -> None:
    """Measure the rows, each in a process of its own, print them and add them to a file."""
    given = _parser().parse_args()
    if given.one:
        print(json.dumps(measure(given, given.rows[0])))
        return
    with tempfile.TemporaryDirectory() as temporary:
        given.weights = given.weights or Path(temporary) / given.shape
        if not given.weights.exists():
            write_weights(given.weights, given.shape, "cuda" if torch.cuda.is_available() else "cpu")
        for kind in given.rows:
            _measure_apart(given, kind)


def _measure_apart(given: argparse.Namespace, kind: str) -> None:
    """Measure a row in a process of its own and add it to the file; print why where that fails."""
    options = [
        f"--{name}={getattr(given, name)}" for name in ("shape", "clients", "batch", "steps", "rounds", "pixels")
    ]
    options += [f"--program={given.program}", f"--threads={given.threads}", f"--weights={given.weights}"]
    options += ["--checkpointing" if given.checkpointing else "--no-checkpointing", "--one", "--rows", kind]
    command = [sys.executable, "-m", "benchmarks.shared_base", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if done.returncode:
        print(kind, "failed:", *done.stderr.strip().splitlines()[-12:], sep="\n", flush=True)
        return
    row = json.loads(done.stdout.strip().splitlines()[-1])
    print(as_line(row), flush=True)
    rows = json.loads(given.out.read_text()) if given.out.exists() else []
    given.out.write_text(json.dumps([*rows, row], indent=1) + "\n")


if __name__ == "__main__":
    main()
