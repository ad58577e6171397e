"""Architectures of transformers with tiny random weights, and what is checked of each in experiments from files.

Used by the test of the contract and by docs/make_hugging_face.py, which writes the table of the documentation.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers
from PIL import Image
from ruamel.yaml import YAML

import simfl
from simfl import simulation
from simfl.errors import ConfigError
from simfl.images import read_image
from simfl.models.hf import AUTO_CLASSES
from simfl.session.options import RunOptions

TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}}
QWEN_VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32, "patch_size": 8,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
QUERIES = ("q_proj", "v_proj")
SMALL_PAGES = {"size": {"shortest_edge": 1024, "longest_edge": 2304}}  # pixels of a page that Qwen reads
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}  # which BART draws outside of layers


@dataclass(frozen=True)
class Architecture:
    """A tiny model, and how it is adapted."""

    config: Mapping[str, Any]
    targets: tuple[str, ...] = QUERIES  # of LoRA
    processor: Mapping[str, Any] = field(default_factory=dict)
    objective: Mapping[str, Any] = field(default_factory=lambda: {"name": "chat", "max_answer": 6})
    task: str | None = None


BART: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 128,
    **NO_DROPOUT,
}  # fmt: skip
DAVIT: dict[str, Any] = {
    "embed_dim": [8, 16, 32, 32], "num_heads": [1, 2, 4, 4], "num_groups": [1, 2, 4, 4], "depths": [1, 1, 1, 1],
    "window_size": 2, "projection_dim": 32, "patch_size": [7, 3, 3, 3], "patch_stride": [4, 2, 2, 2],
    "patch_padding": [3, 1, 1, 1], "drop_path_rate": 0.0, "max_temporal_embeddings": 4, "max_position_embeddings": 8,
}  # fmt: skip
CLOSE = 1e-5  # largest difference of a trained value between the modes
SQUARE = {"height": 64, "width": 64}
LABELS = {"name": "text_classification", "text": "text", "max_tokens": 32}
SPANS = {"name": "spans", "max_tokens": 64}
ENCODER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}

ZOO: dict[str, Architecture] = {
    "Florence-2": Architecture(
        {"model_type": "florence2", "text_config": {"model_type": "bart", **BART}, "vision_config": DAVIT},
        processor={"size": SQUARE, "crop_size": SQUARE},
    ),
    "Donut": Architecture(
        {
            "model_type": "vision-encoder-decoder",
            "encoder": {
                "model_type": "donut-swin", "image_size": [32, 32], "patch_size": 4, "embed_dim": 8, "depths": [1, 1],
                "num_heads": [2, 2], "window_size": 4, "drop_path_rate": 0.0,
            },
            "decoder": {"model_type": "mbart", **BART, "d_model": 16},
        },
    ),
    "Pix2Struct": Architecture(
        {
            "model_type": "pix2struct",
            "vision_config": {
                "hidden_size": 32, "patch_embed_hidden_size": 768, "d_ff": 64, "d_kv": 8, "num_hidden_layers": 1,
                "num_attention_heads": 4, "seq_len": 64,
            },
            "text_config": {"hidden_size": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4},
        },
        targets=("query", "value"), processor={"max_patches": 12},
    ),
    "UDOP": Architecture(
        {"model_type": "udop", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "image_size": 32,
         "patch_size": 8},
        targets=("q", "v"),
    ),
    "SmolVLM": Architecture(
        {"model_type": "smolvlm", "vision_config": VISION, "text_config": {"model_type": "llama", **TEXT},
         "scale_factor": 2},
    ),
    "Idefics3": Architecture(
        {"model_type": "idefics3", "vision_config": VISION, "text_config": {"model_type": "llama", **TEXT},
         "scale_factor": 2},
    ),
    "Qwen2.5-VL": Architecture(
        {"model_type": "qwen2_5_vl", "text_config": {**TEXT, **MROPE},
         "vision_config": {**QWEN_VISION, "fullatt_block_indexes": [0], "window_size": 32}},
        processor=SMALL_PAGES,
    ),
    "Qwen3-VL": Architecture(
        {"model_type": "qwen3_vl", "text_config": {**TEXT, **MROPE, "head_dim": 8},
         "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}},
        processor=SMALL_PAGES,
    ),
    "PaliGemma": Architecture(
        {"model_type": "paligemma", "vision_config": {**VISION, "projection_dim": 32}, "projection_dim": 32,
         "text_config": {"model_type": "gemma", "head_dim": 8, **TEXT}},
    ),
    "InternVL": Architecture(
        {"model_type": "internvl", "vision_config": {**VISION, "image_size": [32, 32], "patch_size": [8, 8]},
         "text_config": {"model_type": "qwen2", **TEXT}, "downsample_ratio": 0.5},
        processor={"max_patches": 2},
    ),
    "GOT-OCR2": Architecture(
        {"model_type": "got_ocr2", "text_config": {"model_type": "qwen2", **TEXT}, "image_seq_length": 4,
         "vision_config": {
             "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
             "image_size": 64, "patch_size": 8, "mlp_dim": 64, "window_size": 4, "global_attn_indexes": [0]}},
    ),
    "GraniteDocling": Architecture(
        {"model_type": "granite_docling", "text_config": TEXT,
         "vision_config": {**VISION, "out_hidden_size": 32, "scale_factor": 2, "deepstack_visual_indexes": [0],
                           "use_fine_route": False}},
        processor={"max_patches": 2},
    ),
    "LayoutLMv3": Architecture(
        {"model_type": "layoutlmv3", **ENCODER, "coordinate_size": 3, "shape_size": 2, "input_size": 32,
         "patch_size": 8, "max_position_embeddings": 128, "rel_pos_bins": 8, "max_2d_position_embeddings": 1024},
        targets=("query", "value"), objective=SPANS, task="question_answering",
    ),
    "Llama": Architecture({"model_type": "llama", **TEXT}),
    "Qwen3": Architecture({"model_type": "qwen3", **TEXT, "head_dim": 8}),
    "Gemma": Architecture({"model_type": "gemma", **TEXT, "head_dim": 8, "num_key_value_heads": 1}),
    "GPT-2": Architecture(
        {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 96}, targets=("c_attn",)
    ),
    "T5": Architecture(
        {"model_type": "t5", "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4}, targets=("q", "v")
    ),
    "BERT": Architecture(
        {"model_type": "bert", **ENCODER}, targets=("query", "value"), objective=LABELS, task="sequence_classification"
    ),
}  # fmt: skip


def write_data(root: Path) -> Path:
    """Write questions about pages as the library `datasets` saves them; return the folder."""
    root = root / "pages"
    rng = np.random.default_rng(0)
    pages = []
    for number in range(4):
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (60, 40, 3), dtype=np.uint8)).save(out, "PNG")
        words = ["total", "date", "paid", f"{number}2", "tax"]
        boxes = [[0.1, 0.1 * k, 0.4, 0.1 * k + 0.05] for k in range(len(words))]
        pages.append({"image": {"bytes": out.getvalue(), "path": None}, "words": words, "boxes": boxes})
    for split, count in (("train", 12), ("validation", 6)):
        rows = [
            {"id": f"{split}{n}", "question": f"what is {'abc'[n % 3]} ?", "answers": [f"{n % 4}2"],
             "text": f"the order was {['late', 'good'][n % 2]}", "label": n % 2, "shop": f"s{n % 2}", **pages[n % 4]}
            for n in range(count)
        ]  # fmt: skip
        _save(root / split, rows)
    (root / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation"]}))
    return root


def _save(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(str(folder / "data.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}], "_split": folder.name}))
    labels = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": labels}))


def write_experiment(root: Path, data: Path, one: Architecture, mode: str) -> Path:
    """Write an experiment file and return it."""
    texts = one.objective["name"] == "text_classification"
    columns = ("text", "label") if texts else ("id", "question", "answers", "image", "words", "boxes")
    settings = {
        "name": mode,
        "data": {
            "name": "hf_disk", "path": str(data), "columns": {name: name for name in columns}, "groups": ["shop"],
            **({} if texts else {"image_size": 48}),
        },
        "partition": {"by": "natural", "column": "shop"},
        "model": {
            "name": "hf", "config": dict(one.config), "task": one.task, "processor": dict(one.processor),
            "adapters": {"kind": "lora", "rank": 2, "dropout": 0.1, "targets": list(one.targets)},
        },
        "execution": {"mode": mode},
        "evaluate": {"samples": 6},
        "phases": [
            {"objective": dict(one.objective), "rounds": 2, "clients_per_round": 2,
             "local": {"optimizer": "adamw", "learning_rate": 3e-3, "epochs": 1, "batch_size": 4}}
        ],
    }  # fmt: skip
    file = root / f"{mode}.yaml"
    with file.open("w") as out:
        YAML(typ="safe").dump(settings, out)
    return file


def measure(one: Architecture, root: Path) -> dict[str, str]:
    """Run an architecture from files, and return what was found by name of the check: `yes`, a number, or why not."""
    data = write_data(root)
    file = write_experiment(root, data, one, "sequential")
    run = simfl.run(file, out=root / "whole", backend="inline")
    trained = run.snapshot().server.weights
    moved = max(float(t.abs().max()) for name, t in trained.items() if "lora_B" in name)
    found = {"trains": "yes" if moved > 1e-3 else f"no: moved by {moved:.1e}"}
    found["modes agree"] = _other_mode(root, data, one, trained)
    found["resumes"] = _resumed(root, file, trained)
    found["answers"] = _answers(run, one)
    found["plan is ledger"] = "yes" if str(run.summary["plan"]).startswith("matches") else str(run.summary["plan"])
    found["exports"] = _exported(run, one, root / "exported")
    return found


def _other_mode(root: Path, data: Path, one: Architecture, trained: Mapping[str, torch.Tensor]) -> str:
    try:
        run = simfl.run(write_experiment(root, data, one, "vectorized"), out=root / "vectorized", backend="inline")
    except ConfigError as error:
        return f"refused: {error}"
    other = run.snapshot().server.weights
    largest = max(float((trained[name] - other[name]).abs().max()) for name in trained)
    return "yes" if largest <= CLOSE else f"no: {largest:.0e}"


def _resumed(root: Path, file: Path, trained: Mapping[str, torch.Tensor]) -> str:
    calls = iter(["", "stopped", "stopped", "stopped"])
    simulation.run(simfl.api.experiment_of(file), RunOptions(root / "cut", "inline", until=lambda: next(calls)))
    run = simfl.run(file, out=root / "cut", backend="inline", resume=True)
    again = run.snapshot().server.weights
    return "yes" if all(torch.equal(trained[name], again[name]) for name in trained) else "no"


def _answers(run: simfl.Run, one: Architecture) -> str:
    """Compare the answers of the last round with transformers' own processor and `generate`, example by example."""
    if one.objective["name"] != "chat":
        return "–"
    model: Any = run.model()
    tokenizer = run.experiment.model.tokenizer()
    last = max(row["round"] for row in run.samples().to_pylist())
    rows = [row for row in run.samples().to_pylist() if row["round"] == last and row["split"] == "valid"]
    split = run.experiment.data.load(Path(run.folder) / "cache").splits["valid"]
    wrong = []
    for row in rows:
        example = split.examples.slice(row["row"], 1).to_pylist()[0]
        page = split.documents.slice(example["document"], 1).to_pylist()[0]
        tokens = _alone(model, tokenizer, example["question"], page)
        text = tokenizer.decode([tokens])[0]
        if text != row["predicted_answer"]:
            wrong.append(f"{row['predicted_answer']!r}, not {text!r}")
    return f"no: {wrong[0]}" if wrong else "yes" if rows else "no: there are no samples"


def _alone(model: Any, tokenizer: Any, question: str, page: Mapping[str, Any]) -> list[int]:
    """Return the tokens that transformers generates for one question, without simfl."""
    hf, reader = tokenizer.tokenizer, tokenizer.processor
    options = {"max_new_tokens": 6, "do_sample": False}
    if reader is None:
        given = hf([question], return_tensors="pt", add_special_tokens=False)
        inputs = {name: given[name] for name in ("input_ids", "attention_mask")}
        out = model.generate(**inputs, **options)
        return list(map(int, out[0] if tokenizer.has_encoder else out[0, given["input_ids"].shape[1] :]))
    image = read_image(page["image"], "RGB", "page")
    processor = reader.processor
    if reader.in_decoder:
        start = torch.tensor([[tokenizer.decoder_start, *hf(question, add_special_tokens=False)["input_ids"]]])
        names = {"max_patches": processor.images_kwargs["max_patches"]} if "max_patches" in getattr(
            processor, "images_kwargs", {}) else {}  # fmt: skip
        pixels = processor.image_processor([image], return_tensors="pt", **names)
        return list(map(int, model.generate(**pixels, decoder_input_ids=start, **options)[0, start.shape[1] :]))
    if reader.reads_boxes:
        boxes = (np.array(page["boxes"]).reshape(-1, 4) * 1000 + 0.001).astype(np.int64)
        words = reader.encode_words(question, page["words"], boxes)
        pixels = processor.image_processor([image], return_tensors="pt")
        inputs = {"input_ids": torch.tensor(words["input_ids"])[None], "bbox": torch.tensor(words["bbox"])[None]}
        return list(map(int, model.generate(**inputs, pixel_values=pixels["pixel_values"], **options)[0]))
    given = processor(images=[image], text=[reader.text("", question)], return_tensors="pt")
    given.pop("labels", None)
    out = model.generate(**given, **options)
    return list(map(int, out[0] if tokenizer.has_encoder else out[0, given["input_ids"].shape[1] :]))


def _exported(run: simfl.Run, one: Architecture, folder: Path) -> str:
    """Export with adapters, load without simfl, and compare all tensors."""
    run.export(folder)
    model: Any = run.model()
    auto = next(
        kind
        for name in ([one.task] if one.task else AUTO_CLASSES)
        if type(model.config) in (kind := getattr(transformers, AUTO_CLASSES[str(name)]))._model_mapping
    )
    loaded, info = auto.from_pretrained(folder, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"]:
        return f"no: {[*info['missing_keys'], *info['unexpected_keys']][:3]}"
    theirs = dict(loaded.named_parameters())
    for name, tensor in run.snapshot().server.weights.items():
        if not torch.equal(theirs[name], tensor):
            return f"no: {name} differs"
    return "yes"
