"""Scripts with a training loop of their own: module, optimizer, schedule, loss, epochs."""

from __future__ import annotations

import ast

from simfl.convert.data_script import loaders
from simfl.convert.draft import Draft
from simfl.convert.script import UNKNOWN, Call, Script
from simfl.convert.slices import function_source, sliced, without_device
from simfl.optimizers.local import LOCAL_OPTIMIZERS, LocalOptimizer

LOSSES = {"CrossEntropyLoss": "classification", "cross_entropy": "classification"}
OTHER_LOSSES = (
    "MSELoss",
    "mse_loss",
    "BCEWithLogitsLoss",
    "BCELoss",
    "NLLLoss",
    "nll_loss",
    "L1Loss",
    "SmoothL1Loss",
    "CTCLoss",
)
SCHEDULES = {"CosineAnnealingLR": "cosine", "LinearLR": "polynomial", "PolynomialLR": "polynomial"}
SEEDS = ("manual_seed", "set_seed", "seed_everything")
PRECISION = ("autocast", "GradScaler")
EPOCHS = ("epoch", "ep", "e", "epoch_idx", "i_epoch")


def read_loop(script: Script, draft: Draft) -> None:
    """Read what a training loop of plain torch says about local training."""
    _read_optimizer(script, draft)
    _read_loss(script, draft)
    _read_epochs(script, draft)
    if (train := loaders(script).get("train")) is not None:
        _read_loader(script, train, draft)
    for call in script.named("clip_grad_norm_", "clip_grad_value_"):
        name = "clip_norm" if call.last == "clip_grad_norm_" else "clip_value"
        value = script.value(call.argument("max_norm" if name == "clip_norm" else "clip_value", 1))
        if isinstance(value, (int, float)):
            draft.local[name] = float(value)
            draft.carry(call.line, f"local.{name}: {value}")
    for call in script.named(*SEEDS):
        value = script.value(call.argument("seed", 0))
        if isinstance(value, int):
            draft.seed = value
    _read_schedule(script, draft)
    for call in script.named(*PRECISION):
        draft.leave(call.line, f"{call.last}: mixed precision; see model.precision and model.dtype")
    if any(call.name.startswith("wandb.") for call in script.calls):
        draft.wandb = True


def _read_optimizer(script: Script, draft: Draft) -> None:
    found = [call for call in script.calls if call.last.lower() in LOCAL_OPTIMIZERS and "optim" in call.name.lower()]
    if not found:
        return
    call, name = found[0], found[0].last.lower()
    allowed, known = LocalOptimizer(name).allowed_settings(), {"name": name}
    rate = script.value(call.argument("lr", 1))
    if isinstance(rate, (int, float)):
        draft.local["learning_rate"] = float(rate)
    elif call.argument("lr", 1) is not None:
        draft.leave(call.line, f"lr={ast.unparse(call.argument('lr', 1) or call.node)}: its value is not known")
    for given in call.node.keywords:
        value = script.value(given.value)
        if given.arg in allowed and value is not UNKNOWN:
            known[str(given.arg)] = value
        elif given.arg not in ("lr", "params"):
            draft.leave(call.line, f"{given.arg}={ast.unparse(given.value)} of {call.last}")
    first = call.argument("params", 0)
    if isinstance(first, ast.List) and any(isinstance(one, ast.Dict) for one in first.elts):
        draft.leave(call.line, "groups of parameters with rates of their own: simfl has one learning rate")
    draft.optimizer = known
    draft.carry(call.line, f"local.optimizer: {name}, learning rate {draft.local.get('learning_rate')}")
    for other in found[1:]:
        draft.leave(other.line, f"a second optimizer, {other.last}")


def _read_loss(script: Script, draft: Draft) -> None:
    for call in script.named(*LOSSES):
        draft.objective.setdefault("name", LOSSES[call.last])
        for given in call.node.keywords:
            if given.arg in ("weight", "label_smoothing", "ignore_index"):
                draft.leave(
                    call.line, f"{given.arg} of {call.last}: the objective has none; write an objective of your own"
                )
    for call in script.named(*OTHER_LOSSES):
        draft.leave(call.line, f"{call.last}: no objective has this loss; see docs/how-to/own_objective.md")
    draft.objective.setdefault("name", "classification")


def _read_epochs(script: Script, draft: Draft) -> None:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call):
            target, call = node.target.id.lower(), Call(script.name_of(node.iter.func), node.iter)
            inner = call.node.args[0] if call.last in ("tqdm", "trange") and call.node.args else node.iter
            if target in EPOCHS and isinstance(inner, ast.Call) and script.name_of(inner.func) in ("range", "trange"):
                bounds = [script.value(one) for one in inner.args]
                numbers = [one for one in bounds if isinstance(one, int)]
                if bounds and len(numbers) == len(bounds):
                    draft.epochs = numbers[0] if len(numbers) == 1 else numbers[1] - numbers[0]
                    draft.carry(node.lineno, f"rounds: {draft.epochs}, one epoch of every client in each")
                    return
                draft.leave(node.lineno, f"epochs {ast.unparse(inner)}: give phases.0.rounds")


def _read_loader(script: Script, call: Call, draft: Draft) -> None:
    size = script.value(call.argument("batch_size", 1))
    if isinstance(size, int):
        draft.local["batch_size"] = size
        draft.carry(call.line, f"local.batch_size: {size}")
        if script.value(call.argument("drop_last")) is True:
            draft.local["drop_last"] = True
    for name in ("sampler", "batch_sampler", "collate_fn"):
        node = call.argument(name)
        if node is not None:
            draft.leave(call.line, f"{name}={ast.unparse(node)} of DataLoader")


def _read_schedule(script: Script, draft: Draft) -> None:
    for call in script.calls:
        if "lr_scheduler" not in call.name and not call.last.startswith("get_"):
            continue
        if call.last in SCHEDULES:
            draft.local["schedule"] = {"name": SCHEDULES[call.last], "unit": "progress"}
            draft.carry(call.line, f"local.schedule: {SCHEDULES[call.last]}")
        elif call.last == "StepLR":
            every, factor = script.value(call.argument("step_size", 1)), script.value(call.argument("gamma", 2))
            factor = 0.1 if factor is UNKNOWN else factor
            if isinstance(every, int):
                draft.local["schedule"] = {"name": "decay", "every": every, "factor": factor}
        elif call.last.endswith("LR") or call.last.endswith("_schedule_with_warmup"):
            draft.leave(call.line, f"{call.last}: see `simfl list schedules`")


def read_module(script: Script, draft: Draft, parts: str) -> bool:
    """Add a function that builds the script's module; return whether one was found."""
    call = next(
        (one for one in script.calls if one.last.lower() in LOCAL_OPTIMIZERS and "optim" in one.name.lower()), None
    )
    first = call.argument("params", 0) if call is not None else None
    name = next((n.id for n in ast.walk(first) if isinstance(n, ast.Name)), None) if first is not None else None
    statements = script.assigned(name) if name else []
    if not (name and statements and call):
        return False
    body, missing = sliced(script, {name}, call.line)
    if missing:
        draft.leave(call.line, f"the module needs {', '.join(sorted(missing))}, which the script computes")
    draft.functions.append(function_source("model", "Build the module.", body, name))
    draft.model = {"name": "own", "of": f"{parts}:model"}
    draft.carry(statements[0].lineno, f"model: {ast.unparse(without_device(statements[0].value))}")
    return True
