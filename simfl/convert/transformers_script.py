"""Scripts that use transformers: models, adapters of peft, and the arguments of Trainer and of trl."""

from __future__ import annotations

import ast
from typing import Any

from simfl.convert.draft import Draft
from simfl.convert.script import UNKNOWN, Call, Script

OBJECTIVES = {  # end of the name of a class -> objective
    "ForSequenceClassification": "text_classification",
    "ForCausalLM": "chat",
    "LMHeadModel": "chat",
    "ForSeq2SeqLM": "chat",
    "ForConditionalGeneration": "chat",
    "ForVision2Seq": "chat",
    "ForImageTextToText": "chat",
    "ForQuestionAnswering": "spans",
    "ForTokenClassification": "word_labels",
    "ForImageClassification": "classification",
}
ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")
TRAINERS = ("Trainer", "Seq2SeqTrainer", "SFTTrainer")
OPTIMIZERS = {
    "adafactor": "adafactor", "adagrad": "adagrad", "adamw_hf": "adamw", "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw", "rmsprop": "rmsprop", "sgd": "sgd",
}  # fmt: skip
DTYPES = ("bfloat16", "float16", "float32")
IGNORED = (  # arguments that simfl does in its own way, or that change no result
    "dataloader_num_workers", "dataloader_pin_memory", "ddp_find_unused_parameters", "disable_tqdm", "do_eval",
    "do_train", "eval_accumulation_steps", "eval_steps", "eval_strategy", "evaluation_strategy", "group_by_length",
    "log_level", "logging_dir", "logging_steps", "logging_strategy", "output_dir", "overwrite_output_dir",
    "per_device_eval_batch_size", "predict_with_generate", "remove_unused_columns", "run_name", "save_steps",
    "save_strategy", "save_total_limit", "dataset_text_field", "packing", "report_to",
)  # fmt: skip


def read_transformers(script: Script, draft: Draft) -> bool:
    """Read the model and the arguments of a trainer into the draft; return whether the script has such a model."""
    found = [call for call in script.named("from_pretrained") if _objective(call.name)]
    if not found:
        return False
    model = found[-1]
    _read_model(script, model, draft)
    for call in script.named("LoraConfig"):
        _read_lora(script, call, draft)
    for call in script.calls:
        if (
            call.name.startswith("peft.")
            and call.last.endswith("Config")
            and call.last not in ("LoraConfig", "PeftConfig")
        ):
            draft.leave(call.line, f"{call.last}: adapters of this kind; see `simfl list adapters`")
    for call in script.named(*ARGUMENTS):
        _read_arguments(script, call, draft)
    for call in script.named(*TRAINERS):
        _read_trainer(call, draft)
    if any(call.last == "Trainer" or call.last.endswith("Trainer") for call in script.calls):
        draft.optimizer.setdefault("name", "adamw")
        draft.local.setdefault("clip_norm", 1.0)
        draft.local.setdefault("learning_rate", 5e-5)
        draft.local.setdefault("batch_size", 8)
        draft.epochs = draft.epochs or 3
    return True


def _objective(name: str) -> str:
    kind = name.rpartition(".")[0]
    return next((objective for end, objective in OBJECTIVES.items() if kind.endswith(end)), "")


def _read_model(script: Script, call: Call, draft: Draft) -> None:
    objective = _objective(call.name)
    weights = script.value(call.argument("pretrained_model_name_or_path", 0))
    if weights is UNKNOWN:
        draft.leave(call.line, "the weights are computed by the script; give model.weights")
        weights = "FOLDER"
    is_image = objective == "classification"
    draft.model = {"name": "vit" if is_image else "hf", "weights": weights}
    draft.objective = {"name": objective}
    draft.carry(call.line, f"model.weights: {weights}, objective {objective}")
    if is_image and "vit" not in str(weights).lower():
        draft.leave(call.line, f"{weights}: simfl's `vit` reads vision transformers alone; another one needs a module")
    for given in call.node.keywords:
        _read_model_argument(script, given, draft, call.line)


def _read_model_argument(script: Script, given: ast.keyword, draft: Draft, line: int) -> None:
    value, text = script.value(given.value), ast.unparse(given.value)
    if given.arg in ("torch_dtype", "dtype"):
        kind = next((one for one in DTYPES if text.endswith(one)), None)
        if kind is None:
            draft.leave(line, f"{given.arg}={text}: give model.dtype, one of {', '.join(DTYPES)}")
        elif draft.model["name"] == "hf":
            draft.model["dtype"] = kind
            draft.carry(line, f"model.dtype: {kind}")
    elif (
        given.arg in ("load_in_4bit", "load_in_8bit")
        or "BitsAndBytesConfig" in text
        or given.arg == "quantization_config"
    ):
        source = text + "".join(ast.unparse(call.node) for call in script.named("BitsAndBytesConfig"))
        draft.model["base"] = "nf4" if "4bit" in source or given.arg == "load_in_4bit" else "int8"
        draft.carry(line, f"model.base: {draft.model['base']} (simfl's own quantization of the frozen layers)")
    elif given.arg == "attn_implementation":
        if value in ("sdpa", "eager"):
            draft.model["attention"] = value
        else:
            draft.leave(line, f"attn_implementation={text}: model.attention is sdpa or eager")
    elif given.arg in ("num_labels", "id2label", "label2id"):
        draft.carry(line, f"{given.arg}: the classes are those of the data")
    elif given.arg not in (
        "device_map",
        "trust_remote_code",
        "cache_dir",
        "use_cache",
        "ignore_mismatched_sizes",
        "token",
    ):
        draft.leave(line, f"{given.arg}={text} of the model")


def _read_lora(script: Script, call: Call, draft: Draft) -> None:
    adapter: dict[str, Any] = {"kind": "lora", "rank": 8, "alpha": 8, "dropout": 0.0}
    names = {"r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}
    for given in call.node.keywords:
        value = script.value(given.value)
        if given.arg in names and isinstance(value, (int, float)):
            adapter[names[str(given.arg)]] = value
        elif given.arg == "target_modules" and isinstance(value, (list, str)) and value != "all-linear":
            adapter["targets"] = [f"*{one}" for one in ([value] if isinstance(value, str) else value)]
        elif given.arg == "target_modules" and value == "all-linear":
            adapter["targets"] = ["*"]
            draft.leave(call.line, "target_modules='all-linear': targets ['*'] names every linear layer, heads too")
        elif not (given.arg in ("task_type", "inference_mode") or (given.arg == "bias" and value == "none")):
            draft.leave(
                call.line, f"{given.arg}={ast.unparse(given.value)} of LoraConfig; from Python, peft's own is taken"
            )
    draft.model["adapters"] = adapter
    draft.carry(call.line, f"model.adapters: LoRA of rank {adapter['rank']}")


def _read_arguments(script: Script, call: Call, draft: Draft) -> None:
    given = {one.arg: one.value for one in call.node.keywords if one.arg}
    values = {name: script.value(node) for name, node in given.items()}
    for name, node in given.items():
        if values[name] is UNKNOWN and name not in IGNORED:
            draft.leave(call.line, f"{name}={ast.unparse(node)}: its value is not known before the script runs")
    known = {name: value for name, value in values.items() if value is not UNKNOWN and value is not None}
    read = _numbers(known, draft) | _choices(known, draft, call.line)
    for name in sorted(known.keys() - read - set(IGNORED)):
        draft.leave(call.line, f"{name}={known[name]!r} of {call.last}")
    if read:
        draft.carry(call.line, f"{call.last}: {', '.join(sorted(read))}")
    if given.keys() & {"output_dir"} and known.get("report_to") == "wandb":
        draft.wandb = True


def _numbers(known: dict[str, Any], draft: Draft) -> set[str]:
    """Read learning rate, batch, epochs, steps, weight decay, clip and seed; return the names that were read."""
    batch = known.get("per_device_train_batch_size", 8) * known.get("gradient_accumulation_steps", 1)
    draft.local |= {"learning_rate": float(known.get("learning_rate", 5e-5)), "batch_size": batch}
    draft.local["clip_norm"] = float(known.get("max_grad_norm", 1.0))
    if known.get("max_steps", -1) > 0:
        draft.local["steps"] = known["max_steps"]
        draft.epochs = 1
    else:
        draft.epochs = max(1, round(known.get("num_train_epochs", 3)))
    draft.seed = known.get("seed", 42)
    if known.get("weight_decay"):
        draft.optimizer["weight_decay"] = known["weight_decay"]
    names = {
        "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "max_grad_norm", "max_steps",
        "num_train_epochs", "seed", "weight_decay",
    }  # fmt: skip
    return names & known.keys()


def _choices(known: dict[str, Any], draft: Draft, line: int) -> set[str]:
    """Read optimizer, schedule, precision, checkpointing and lengths; return the names that were read."""
    read = set()
    optimizer = OPTIMIZERS.get(str(known.get("optim", "adamw_torch")))
    draft.optimizer = {"name": optimizer or "adamw"} | draft.optimizer
    if "optim" in known and optimizer is not None:
        read.add("optim")
    kind = known.get("lr_scheduler_type", "linear")
    if kind in ("linear", "cosine", "constant"):
        schedule = {"linear": "polynomial", "cosine": "cosine"}.get(kind)
        if schedule is not None:
            draft.local["schedule"] = {"name": schedule, "unit": "progress"}
        read |= {"lr_scheduler_type"} & known.keys()
    for name in ("warmup_steps", "warmup_ratio"):
        if known.get(name):
            draft.leave(line, f"{name}={known[name]}: give schedule.warmup in rounds of the experiment")
            read.add(name)
    if known.get("gradient_checkpointing"):
        draft.model |= {"checkpointing": True} if draft.model.get("name") == "hf" else {}
        read.add("gradient_checkpointing")
    for name in ("max_seq_length", "max_length"):
        if isinstance(known.get(name), int):
            draft.objective["max_tokens"] = known[name]
            read.add(name)
    for name in ("fp16", "bf16"):
        if known.get(name):
            draft.leave(line, f"{name}=True: mixed precision; model.dtype: bfloat16 stores the frozen weights in half")
            read.add(name)
    return read


def _read_trainer(call: Call, draft: Draft) -> None:
    for given in call.node.keywords:
        if given.arg == "compute_metrics":
            draft.leave(call.line, f"compute_metrics: the objective {draft.objective['name']} has metrics of its own")
        elif given.arg in (
            "callbacks",
            "optimizers",
            "compute_loss",
            "model_init",
            "formatting_func",
            "preprocess_logits_for_metrics",
        ):
            draft.leave(call.line, f"{given.arg}={ast.unparse(given.value)} of {call.last}")
