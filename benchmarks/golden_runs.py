"""Hash the results of many small experiments, to show that a change of the code changes no result.

    python benchmarks/golden_runs.py --out before.json        # before the change
    python benchmarks/golden_runs.py --against before.json    # after it; exit code 1 if a hash differs

The hash of a run covers the final global weights, the bytes that were sent, every evaluation and the client states.
Hashes are equal only on the same machine, with the same libraries and the same number of threads (set
OMP_NUM_THREADS=1), so the files are not kept.

The experiments have the current names of experiment keys. For an older version of simfl, which has a package
`simfl.cohort`, `OLD_NAMES` translates them. Only the functions under "Files of a run" depend on the files of a run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import simfl

Settings = dict[str, Any]
Experiments = dict[str, Settings]  # experiments by the name of their run

SEQUENTIAL, VECTORIZED = MODES = ("sequential", "vectorized")
NEWER_METRIC, NEWER_MEAN = "loss", "client:two_step"  # evaluations that version 0.1.0 did not compute
FAILED = "failed"  # start of the result of a run that raised an error


# Names of older versions

# Each row: the path of a key, its old name, the old names of its values
OLD_NAMES: tuple[tuple[str, str, Mapping[Any, Any]], ...] = (
    ("execution", "cohort", {}),
    ("execution.mode", "way", {SEQUENTIAL: "loop", VECTORIZED: "batch"}),
    ("execution.clients_per_batch", "width", {}),
    ("execution.data_parallel", "pieces", {}),
    ("execution.autotune", "probe", {}),
    ("deterministic", "exactness", {True: "strict", False: "fast"}),
    ("evaluate.models", "models", {"global": "generic", "local": "last_local"}),
    ("ledger.tied_weights", "aliases", {}),
    ("model.hidden_sizes", "widths", {}),
    ("model.special_tokens", "marks", {}),
    ("mentor.hidden_sizes", "widths", {}),
    ("phases.centralized", "pooled", {}),
    ("phases.objective.repeat_rate", "recurring", {}),
    ("phases.personal_params", "private", {}),
    ("phases.carry_over", "keep", {"personal_params": "private"}),
    ("phases.codec.*.encode", "of", {"update": "delta"}),
    ("phases.codec.*.positions", "places", {"sent": "paid"}),
    ("phases.*schedule.unit", "unit", {"client_update": "visit"}),
    ("phases.algorithm.embedding_size", "width", {}),
)


def is_old_version() -> bool:
    """Return whether simfl is a version with the old names."""
    return (Path(simfl.__file__).parent / "cohort" / "__init__.py").exists()


def old_names(value: Any, path: str = "", names: Mapping[Any, Any] | None = None) -> Any:
    """Translate a part of an experiment to the old names.

    Args:
        value: The part.
        path: The path of the part in the experiment.
        names: The old names of its values.
    """
    if isinstance(value, Mapping):
        translated = {}
        for key, item in value.items():
            place = f"{path}.{key}" if path else str(key)
            old, values = next((row[1:] for row in OLD_NAMES if fnmatchcase(place, row[0])), (key, {}))
            translated[old] = old_names(item, place, values)
        return translated
    if isinstance(value, list):
        return [old_names(item, path, names) for item in value]
    return names.get(value, value) if names and isinstance(value, (bool, str)) else value


# Files of a run


def newest_checkpoint(folder: Path) -> Path:
    """Return the folder of the last checkpoint of a run."""
    return max((path for path in (folder / "checkpoints").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))


def global_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the final global model by name: those of earlier phases, of the last one, and buffers."""
    (path,) = newest_checkpoint(folder).glob("*.safetensors")
    stored = load_file(path)
    weights: dict[str, Tensor] = {}
    for group in ("base/", "weights/", "buffers/"):
        weights |= {name.removeprefix(group): t for name, t in stored.items() if name.startswith(group)}
    return {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}


def client_states(folder: Path) -> list[list[Tensor]]:
    """Return the tensors of each client's final state, for the clients in order."""
    old, checkpoint = is_old_version(), newest_checkpoint(folder)
    values = json.loads((checkpoint / ("facts.json" if old else "state.json")).read_text())
    digests, states = (values["memory"], "memory") if old else (values["client_states"], "client_states")
    nothing = hashlib.sha256().hexdigest()  # the digest of an empty state, which has no file
    for path in (folder / states).glob("*.pack"):
        unpack(path)
    files = [folder / states / f"{digests[client]}.safetensors" for client in sorted(digests, key=int)]
    return [[] if path.stem == nothing else list(load_file(path).values()) for path in files]


def unpack(path: Path) -> None:
    """Write each state of a pack to a file of its own, as run folders of format 2 have them."""
    from simfl.client_state.packs import Pack

    pack = Pack.open(path)
    for digest in pack.names:
        path.with_name(f"{digest}.safetensors").write_bytes(pack.read(digest))


def ledger_bytes(folder: Path) -> list[int]:
    """Return the sums of payload, logical and charged bytes, first of downloads, then of uploads."""
    table = read_table(folder, "ledger")
    if not table.num_rows:
        return [0] * 6
    direction = np.asarray(column(table, "direction"))
    counts = [np.asarray(column(table, f"{kind}_bytes")) for kind in ("payload", "logical", "charged")]
    return [int(count[direction == way].sum()) for way in ("download", "upload") for count in counts]


def evaluation_values(folder: Path) -> list[float]:
    """Return the values of all evaluations, in their order, without those that older versions did not compute."""
    table = read_table(folder, "evaluations")
    if not table.num_rows:
        return []
    rows = zip(*(column(table, name) for name in ("metric", "by", "value")), strict=True)
    return [float(value) for metric, by, value in rows if metric != NEWER_METRIC and by != NEWER_MEAN]


def read_table(folder: Path, name: str) -> pa.Table:
    """Return a table of a run by its name."""
    return pq.read_table(folder / f"{name}.parquet", partitioning=None)


def column(table: pa.Table, *names: str) -> list[Any]:
    """Return the values of the first of these columns that the table has."""
    found = next((name for name in names if name in table.column_names), None)
    if found is None:
        raise KeyError(f"no column {' or '.join(names)}; there are {', '.join(table.column_names)}")
    return table[found].to_pylist()


# Hashes


def fingerprint(folder: Path) -> str:
    """Return the hash of the results of a run: weights, bytes sent, evaluations and client states."""
    digest = hashlib.sha256()
    weights, states = global_weights(folder), client_states(folder)
    if not weights and not any(states):
        raise ValueError("the last checkpoint has neither global weights nor client states")
    for name in sorted(weights):
        digest.update(f"{name}\n".encode() + raw_bytes(weights[name]))
    digest.update(json.dumps(ledger_bytes(folder)).encode())
    digest.update(np.array(evaluation_values(folder), np.float64).tobytes())
    for tensors in states:
        contents = sorted(raw_bytes(tensor) for tensor in tensors if tensor.numel())
        digest.update(json.dumps([hashlib.sha256(content).hexdigest() for content in contents]).encode())
    return digest.hexdigest()


def raw_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of the values of a tensor."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def result_of(given: Settings) -> str:
    """Run an experiment in a temporary folder and return its hash, or the error that it raised."""
    given = old_names(given) if is_old_version() else given
    with tempfile.TemporaryDirectory(prefix="golden-") as parent:
        folder = Path(parent) / "run"
        try:
            simfl.run(given, backend="inline", out=folder)
            return fingerprint(folder)
        except Exception as error:  # the other runs are still compared
            return f"{FAILED}: {type(error).__name__}: {error}".splitlines()[0]


# Parts of experiments

PROTOTYPES = {"name": "prototypes", "examples": 80, "classes": 5, "shape": [12], "groups": 20, "margin": 3.0}
IMAGES = PROTOTYPES | {"shape": [1, 8, 8]}
DIRICHLET = {"by": "dirichlet", "clients": 5, "alpha": 0.5}
BY_GROUP = {"by": "provider", "column": "group", "clients": 4, "min_groups": 3}
IID = {"by": "iid", "clients": 5}
MLP = {"name": "mlp", "hidden_sizes": [16], "dropout": 0.2}
VIT = {"name": "vit", "size": "tiny", "image_size": 8, "patch_size": 4}
CNN = {"name": "cnn", "channels": [4, 4], "hidden": 8, "dropout": 0.2}
ADAM = {"optimizer": "adam", "learning_rate": 0.01}
MOMENTUM = {"optimizer": {"name": "sgd", "momentum": 0.9}, "learning_rate": 0.05}
EVERY_MODEL = {"models": ["global", "local", "personal"]}
SAMPLING = ("participation", "clients_per_round", "poisson")  # keys of a phase, one of which is given


def phase(algorithm: str | Settings = "fedavg", local: Settings | None = None, **settings: Any) -> Settings:
    """Return a phase of two rounds with four of five clients per round, if the settings have no other values."""
    usual = {} if any(key in settings for key in SAMPLING) else {"participation": 0.8}
    steps = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 8} | (local or {})
    return {"objective": "classification", "algorithm": algorithm, "rounds": 2, "local": steps} | usual | settings


def experiment(
    *phases: Settings, mode: str = SEQUENTIAL, evaluate: Settings | None = None, **settings: Any
) -> Settings:
    """Return an experiment of these phases on a small drawn data set, with two clients per batch."""
    usual = {
        "name": "golden",
        "seed": 1,
        "data": PROTOTYPES,
        "partition": DIRICHLET,
        "model": MLP,
        "execution": {"mode": mode, "clients_per_batch": 2},
        "evaluate": {"every": 1, "models": ["global"]} | (evaluate or {}),
        "phases": list(phases) or [phase()],
    }
    return usual | settings


def in_both_modes(name: str, *phases: Settings, **settings: Any) -> Experiments:
    """Return an experiment in sequential and in vectorized mode."""
    return {f"{name}/{mode}": experiment(*phases, mode=mode, **settings) for mode in MODES}


# Experiments


# Algorithms that need no privacy; they have settings if the defaults are for large models
ALGORITHMS: dict[str, Settings] = {
    "clgecl": {},
    "crd": {"embedding_size": 8, "negatives": 16},
    "ditto": {},
    "dkd": {},
    "fedavg": {},
    "feddc": {},
    "feddyn": {"alpha": 0.1},
    "fedkd": {},
    "fednova": {},
    "fedp3": {"top": 3},
    "fedprox": {},
    "krum": {},
    "median": {},
    "moon": {},
    "scaffold": {},
    "similarity_preserving": {"weight": 10.0},
    "soft_targets": {},
}
# Further settings of algorithms
VARIANTS: dict[str, Settings] = {
    "clgecl_penalty": {"name": "clgecl", "form": "peaceman_rachford", "penalty": 0.1},
    "feddc_sampled": {"name": "feddc", "control": False, "drift": "sampled"},
    "fedp3_divergence": {"name": "fedp3", "preserve": "divergence"},
    "krum_several": {"name": "krum", "keep": 2},
    "scaffold_gradient": {"name": "scaffold", "option": "i"},
}


def algorithms() -> Experiments:
    """Return every algorithm that needs no privacy in both modes; the others are in `privacy`."""
    named = {name: {"name": name, **settings} for name, settings in ALGORITHMS.items()} | VARIANTS
    found: Experiments = {}
    for name, settings in named.items():
        enough: Settings = {"participation": 1.0} if settings["name"] == "krum" else {}  # clients that Krum needs
        found |= in_both_modes(f"algorithm/{name}", phase(settings, rounds=3, **enough), evaluate=EVERY_MODEL)
    return found | feddat() | mentors()


def feddat() -> Experiments:
    """Return FedDAT, which needs adapters and personal heads."""
    heads: Settings = {"train": ["head.*"], "personal_params": ["head.*"]}
    model = MLP | {"adapters": {"kind": "bottleneck", "reduction": 4}}
    evaluate = {"models": ["global", "local", "personal", "client", "dual"]}
    found: Experiments = {}
    for name, settings in (("feddat", {}), ("feddat_joint", {"preset": "code", "form": "joint"})):
        made = phase({"name": "feddat", **settings}, rounds=3, **heads)
        found |= in_both_modes(f"algorithm/{name}", made, model=model, evaluate=evaluate)
    return found


def mentors() -> Experiments:
    """Return FedKD with a second network of another size."""
    mentor = {"name": "mlp", "hidden_sizes": [24, 16]}
    return in_both_modes("algorithm/fedkd_mentor", phase("fedkd"), mentor=mentor, evaluate=EVERY_MODEL)


def privacy() -> Experiments:
    """Return the private algorithms, and the variants of clipping, noise and accounting."""
    group = {"unit": "group", "clip": 0.05, "groups_per_client": 2, "noise_multiplier": 0.7}
    client = {"unit": "client", "clip": 0.05, "noise_multiplier": 0.7}
    record = {"unit": "record", "clip": 0.5, "noise_multiplier": 0.7}
    zero_out = client | {"adjacency": "zero_out"}
    found = private("group_dp", "group_dp", group, modes=MODES)
    found |= private("dp_clgecl", "dp_clgecl", group, modes=MODES)
    found |= private("dp_fedavg", "dp_fedavg", zero_out, modes=MODES)
    found |= private("dp_sgd", "dp_sgd", record)
    found |= private("dp_sgd_adam", "dp_sgd", record, local=ADAM | {"keep_optimizer": True})
    found |= private("client_central_noise", "dp_fedavg", client | {"noise": "central"}, poisson=0.5, rounds=4)
    found |= private("group_central_noise", "group_dp", group | {"noise": "central"})
    found |= private("group_adaptive_clip", "group_dp", group | {"adaptive": {}})
    found |= private("group_poisson", "group_dp", group | {"group_rate": 0.4}, poisson=0.4, rounds=4)
    realised = group | {"group_rate": 0.4, "adjacency": "zero_out", "denominator": "realised"}
    found |= private("group_realised", "group_dp", realised, poisson=0.6)
    codec = {"upload": {"name": "nf4", "error_feedback": True}}
    found |= private("group_codec", "group_dp", group, server={"optimizer": "adam"}, codec=codec)
    budget = {"unit": "client", "clip": 0.3, "epsilon": 8, "noise": "central"}
    drawn, all_take_part = {"poisson": 0.5}, {"participation": 1.0}  # at participation 1, the slow accountants are fast
    accountants: dict[str, Settings] = {"rdp": drawn, "pld": drawn, "rdp_fine": all_take_part, "prv": all_take_part}
    for accountant, sampled in accountants.items():
        found |= private(f"epsilon_{accountant}", "dp_fedavg", budget | {"accountant": accountant}, **sampled)
    found |= private("clip_alone", "fedavg", {"unit": "client", "clip": 0.05})
    return found


def private(
    name: str, algorithm: str, rules: Settings, modes: Iterable[str] = (SEQUENTIAL,), **settings: Any
) -> Experiments:
    """Return an experiment with these privacy settings, on clients with several groups each."""
    local = {"epochs": 2, "batch_size": 3} | settings.pop("local", {})
    made = phase(algorithm, local, weighting="uniform", **settings)
    rules = rules | ({"noise_seed": 0} if rules.get("noise_multiplier") or "epsilon" in rules else {})
    return {f"privacy/{name}/{mode}": experiment(made, mode=mode, partition=BY_GROUP, privacy=rules) for mode in modes}


CODECS: dict[str, Settings] = {
    "float32": {},
    "float16": {},
    "bfloat16": {},
    "int8": {},
    "nf4": {},
    "sign": {},
    "topk": {"keep": 0.2},
    "randomk": {"keep": 0.2},
    "svd": {"energy": 0.7, "final_energy": 0.9},
}
# Further settings of codecs, for uploads alone
UPLOADS: dict[str, Settings] = {
    "int8_channel_zstd": {"name": "int8", "per": "channel", "compress": "zstd"},
    "int8_stochastic": {"name": "int8", "rounding": "stochastic"},
    "nf4_blocks_lz4": {"name": "nf4", "block": 16, "compress": "lz4"},
    "randomk_paid": {"name": "randomk", "keep": 0.3, "positions": "sent", "unbiased": True},
    "sign_feedback": {"name": "sign", "error_feedback": True},
    "svd_feedback": {"name": "svd", "energy": 0.7, "error_feedback": True},
    "topk_feedback": {"name": "topk", "keep": 0.1, "error_feedback": True},
}


def codecs() -> Experiments:
    """Return each codec in both directions, of updates and of weights, and further settings of uploads."""
    found: Experiments = {}
    for encode, mode in (("update", SEQUENTIAL), ("weights", VECTORIZED)):
        for name, settings in CODECS.items():
            codec = {"name": name, "encode": encode, **settings}
            made = phase(codec={"download": codec, "upload": codec}, rounds=3)
            found[f"codec/{name}/{encode}"] = experiment(made, mode=mode)
    for name, upload in UPLOADS.items():
        found |= in_both_modes(f"codec/{name}", phase(codec={"upload": upload}, rounds=3))
    parts = {"control": {"upload": {"name": "int8", "encode": "weights"}, "download": {"name": "float16"}}}
    found["codec/parts"] = experiment(phase("scaffold", codec={"upload": "nf4", "parts": parts}, rounds=3))
    return found


SERVERS: dict[str, Settings] = {
    "sgd": {"learning_rate": 0.5},
    "momentum": {},
    "momentum_sum": {"optimizer": "momentum", "form": "sum", "learning_rate": 0.3},
    "adam": {},
    "adam_corrected": {"optimizer": "adam", "bias_correction": True, "eps_inside_root": True},
    "yogi": {},
    "adagrad": {},
    "cosine": {"optimizer": "sgd", "schedule": {"name": "cosine", "floor": 0.1}},
}
LOCALS: dict[str, Settings] = {
    "adadelta": {"optimizer": "adadelta", "learning_rate": 1.0},
    "adafactor": {"optimizer": "adafactor", "learning_rate": 0.01},
    "adagrad": {"optimizer": "adagrad", "learning_rate": 0.05},
    "adam_amsgrad": {"optimizer": {"name": "adam", "amsgrad": True}, "learning_rate": 0.01},
    "adam_kept": ADAM | {"keep_optimizer": True},
    "adamax": {"optimizer": "adamax", "learning_rate": 0.01},
    "adamw": {"optimizer": {"name": "adamw", "betas": [0.9, 0.98], "weight_decay": 0.05}, "learning_rate": 0.01},
    "momentum_kept": MOMENTUM | {"keep_optimizer": True},
    "nesterov": {"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True}, "learning_rate": 0.05},
    "radam": {"optimizer": "radam", "learning_rate": 0.05},
    "rmsprop": {"optimizer": "rmsprop", "learning_rate": 0.01},
    "shampoo": {"optimizer": {"name": "shampoo", "statistics_every": 1, "roots_every": 2}, "keep_optimizer": True},
    "clipped": {"clip_norm": 0.5, "clip_value": 0.05},
    "epochs": {"epochs": 3, "shuffle": False},
    "steps": {"steps": 5},
}
SCHEDULES: dict[str, Settings] = {
    "constant": {"warmup": 2.0},
    "cosine": {"unit": "client_update", "warmup": 0.2, "floor": 0.1},
    "decay": {"rate": 0.9, "unit": "step"},
    "polynomial": {"unit": "progress", "power": 2.0},
    "steps": {"at": [1.0], "gamma": 0.1},
}


def optimizers() -> Experiments:
    """Return the optimizers of the server and of the clients, and the schedules of learning rates."""
    found: Experiments = {}
    for name, settings in SERVERS.items():
        found[f"server/{name}"] = experiment(phase(server={"optimizer": name, **settings}, rounds=3))
    for name, local in LOCALS.items():
        found |= in_both_modes(f"local/{name}", phase(local=local, rounds=3))
    for name, schedule in SCHEDULES.items():
        local = ADAM | {"schedule": {"name": name, **schedule}}
        found[f"schedule/{name}"] = experiment(phase(local=local, rounds=3), mode=VECTORIZED)
    local = MOMENTUM | {"schedule": {"name": "cosine", "unit": "progress"}}
    found["schedule/fednova"] = experiment(phase("fednova", local, rounds=3))
    return found


def execution() -> Experiments:
    """Return local batches that are divided, modes that simfl chooses itself, and deterministic computation."""
    found: Experiments = {}
    pieces = {"mode": SEQUENTIAL, "clients_per_batch": 2, "data_parallel": 3}
    for name, algorithm, local in (("fedprox", "fedprox", ADAM | {"keep_optimizer": True}), ("moon", "moon", {})):
        made = phase(algorithm, local, clients_per_round=2, rounds=3)
        found[f"execution/data_parallel/{name}"] = experiment(made, execution=pieces)
    found["execution/data_parallel/cnn"] = experiment(execution=pieces, data=IMAGES, model=CNN)
    found["execution/automatic"] = experiment(execution={})
    found["execution/automatic_many"] = experiment(execution={}, partition=IID | {"clients": 40})
    found |= in_both_modes("execution/deterministic", deterministic=True)
    found["execution/not_deterministic"] = experiment(deterministic=False)
    return found


def sampling() -> Experiments:
    """Return ways to choose the clients of a round and to weight them."""
    phases = {
        "ceil_uniform": phase(participation=0.3, rounding="ceil", weighting="uniform"),
        "clients_per_round": phase(clients_per_round=3),
        "poisson": phase(poisson=0.4, rounds=4),
    }
    return {f"sampling/{name}": experiment(made) for name, made in phases.items()}


def partitions() -> Experiments:
    """Return ways to divide the examples among the clients."""
    rules = {
        "dirichlet": DIRICHLET | {"alpha": 0.1},
        "iid": IID,
        "by_column": {"by": "natural", "column": "group"},
        "nested": {"by": "nested", "column": "label", "inner": {"by": "iid", "clients": 2}},
        "provider": BY_GROUP,
        "quantity": {"by": "quantity", "clients": 5},
        "shards": {"by": "shards", "clients": 5},
    }
    found = {f"partition/{name}": experiment(partition=rule, evaluate=EVERY_MODEL) for name, rule in rules.items()}
    official = {"by": "official", "groups": "site"}
    found |= in_both_modes("partition/official", data=own_data(), partition=official, evaluate=EVERY_MODEL)
    return found


def own_data() -> Settings:
    """Return a data set whose clients have between one and 20 examples."""
    random = np.random.default_rng(3)
    centres = random.normal(size=(5, 12))
    splits = {}
    for split, sizes in (("train", (1, 20, 5, 13, 9)), ("valid", (4, 4, 4, 4, 4))):
        labels = random.integers(0, 5, sum(sizes))
        clients = np.repeat(np.arange(len(sizes)), sizes).tolist()
        features = (centres[labels] + random.normal(size=(sum(sizes), 12))).astype(np.float32)
        sites = [f"site {client}.{number % 2}" for number, client in enumerate(clients)]
        splits[split] = {"x": list(features), "y": labels.tolist(), "client": clients, "site": sites}
    return splits


def phases() -> Experiments:
    """Return runs of two phases, personal parameters, and baselines without federated learning."""
    own: Settings = {"personal_params": ["head.*"]}
    kept = ADAM | {"keep_optimizer": True}
    codec = {"upload": {"name": "topk", "keep": 0.3, "error_feedback": True}}
    first = phase("ditto", kept, codec=codec, **own)
    second = first | {"carry_over": ["algorithm", "optimizer", "codec", "personal_params"]}
    tuned = phase(communicate=False, participation=1.0, rounds=1)
    found = in_both_modes("phases/carried_over", first, second, evaluate=EVERY_MODEL)
    found |= in_both_modes("phases/forgotten", first, first, evaluate=EVERY_MODEL)
    found |= in_both_modes("phases/one_part_carried_over", first, first | {"carry_over": ["personal_params"]})
    found |= in_both_modes("phases/fine_tuned", phase(), tuned, evaluate=EVERY_MODEL)
    found |= in_both_modes("phases/trained_parts", phase(train=["head.*"]), phase(frozen=["head.*"]))
    found |= in_both_modes("personal/head", phase(**own), evaluate=EVERY_MODEL)
    biases = phase("scaffold", personal_params=["*.bias"])
    found |= in_both_modes("personal/bias_scaffold", biases, evaluate=EVERY_MODEL)
    found |= in_both_modes("baseline/alone", phase(communicate=False), evaluate=EVERY_MODEL)
    found |= in_both_modes("baseline/centralized", phase(centralized=True, participation=1.0))
    return found


def batch_norm_network() -> nn.Module:
    """Return a small network with batch normalisation, which keeps running statistics."""
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 5))


def models() -> Experiments:
    """Return networks with running statistics, convolutions, attention, hashed weights and adapters."""
    found: Experiments = {}
    own: tuple[Settings, Settings] = {"personal": ["*"]}, {"models": ["personal", "local"]}
    for name, (buffers, evaluate) in {"average": ({}, EVERY_MODEL), "local": own}.items():
        made = phase(local={"batch_size": 4}, buffers=buffers, rounds=3)
        settings: Settings = {"model": batch_norm_network, "partition": IID, "evaluate": evaluate}
        found[f"model/batch_norm/{name}"] = experiment(made, **settings)
    found |= in_both_modes("model/cnn", data=IMAGES, model=CNN)
    found |= in_both_modes("model/cnn_hashed", data=IMAGES, model=CNN | {"hash": "1/4"})
    found |= in_both_modes("model/vit", data=IMAGES, model=VIT)
    found |= in_both_modes("model/digits", phase(clients_per_round=3, local={"steps": 3}), data="digits", partition=IID)
    found |= in_both_modes("model/layer_norm", model=MLP | {"hidden_sizes": [16, 8], "layer_norm": True})
    found |= in_both_modes("model/lora", model=MLP | {"adapters": {"kind": "lora", "rank": 2, "targets": ["linear"]}})
    return found


INVOICES = {
    "name": "provider_invoices",
    "providers": 8,
    "unseen": 1,
    "train": 16,
    "valid": 4,
    "test": 1,
    "unseen_documents": 1,
    "clients": 4,
    "questions": 1,
    "max_lines": 1,
    "image_width": 64,
}
SCENES = {
    "name": "scene_vqa",
    "train": 8,
    "valid": 2,
    "test": 2,
    "test_novel": 1,
    "questions": 2,
    "unseen": ["kitchen", "sea"],
    "grid": 2,
    "fewest": 1,
    "most": 2,
    "image_size": 32,
}
PARTS = {
    "name": "multi_docqa",
    "parts": ["manuals", "tables_lookup"],
    "train": 8,
    "valid": 2,
    "test": 2,
    "unseen": 2,
    "image_size": 64,
}
WORDS = {"name": "word5", "longest": 4, "train": 12, "valid": 2, "test": 2, "test_font": 1}
FEW_STEPS = {"optimizer": "adamw", "learning_rate": 1e-3, "batch_size": 4, "steps": 2}
PROVIDERS = {"by": "provider", "clients": 3}


def documents() -> Experiments:
    """Return questions about documents, with and without self-pretraining."""
    questions = phase(local=FEW_STEPS, objective={"name": "docvqa", "max_tokens": 64, "max_answer": 8})
    invoices: Settings = {"data": INVOICES, "partition": PROVIDERS, "evaluate": {"limit": 4}}
    reader = {"name": "vt5", "weights": "vt5_tiny", "dropout": 0.1}
    adapted = reader | {"adapters": {"kind": "lora", "rank": 2}}
    found = in_both_modes("documents/vt5", questions, model=reader, ledger={"tied_weights": "always"}, **invoices)
    found |= in_both_modes("documents/vt5_lora", questions, model=adapted, **invoices)

    rates = {"text_rate": 0.3, "layout_rate": 0.3, "joint_rate": 0.2, "reading_rate": 0.2, "repeat_rate": 1.0}
    tasks = {"tasks": ["text", "layout", "joint", "reading"], "max_tokens": 64, "max_target": 32}
    server = {"optimizer": "adam", "learning_rate": 1e-3}
    hidden = phase(local=FEW_STEPS, objective={"name": "mixed_modeling", **tasks, **rates}, server=server)
    layout = {"name": "layout_t5", "size": "tiny", "special_tokens": True, "dropout": 0.1}
    found |= in_both_modes("documents/self_pretraining", hidden, questions, model=layout, **invoices)

    parts: Settings = {"data": PARTS, "partition": {"by": "natural", "column": "part"}, "evaluate": {"limit": 4}}
    found["documents/multi_docqa"] = experiment(questions, model=layout, **parts)
    return found


def pictures() -> Experiments:
    """Return questions about images of scenes, and the recognition of words in images."""
    scenes: Settings = {
        "data": SCENES,
        "partition": {"by": "natural", "column": "scene"},
        "evaluate": EVERY_MODEL | {"limit": 8},
    }
    viewer = {"name": "vilt", "weights": "vilt_tiny"}
    adapted = viewer | {"adapters": {"kind": "bottleneck", "reduction": 4}}
    asked = phase(local=FEW_STEPS, objective={"name": "vqa", "by": "task"})
    chances = {"name": "vqa", "criterion": "sigmoid", "by": "scene"}
    heads = phase("feddat", FEW_STEPS, objective=chances, personal_params=["head.*"])
    answers = {"by": "scene", "soft": "any", "answers": ["no", "yes", "0", "1", "2"], "max_answer": 16}
    ranked = phase(local=FEW_STEPS, objective={"name": "ranking", **answers})
    found = in_both_modes("pictures/vilt", asked, model=viewer, **scenes)
    found |= in_both_modes("pictures/vilt_feddat", heads, model=adapted, **scenes)
    found |= in_both_modes("pictures/vault", asked, model={"name": "vault"}, **scenes)
    found |= in_both_modes("pictures/albef", ranked, model={"name": "albef"}, **scenes)

    size = {"height": 32, "width": 100, "max_letters": 8, "beams": 1}
    read = phase(local=FEW_STEPS, objective={"name": "recognition", **size}, clients_per_round=2)
    words: Settings = {"data": WORDS, "partition": {"by": "natural", "column": "source"}, "evaluate": {"limit": 4}}
    plain = {"rectify": False, "context": False, "norm": "group"}
    recogniser = {"name": "aster", "size": "tiny"}
    found |= in_both_modes("pictures/aster_plain", read, model=recogniser | plain, **words)
    found["pictures/aster"] = experiment(read, model=recogniser, **words)
    return found


def all_experiments() -> Experiments:
    """Return every experiment by the name of its run."""
    federated = (algorithms, privacy, codecs, optimizers, execution, sampling, partitions, phases)
    return {name: given for kind in (*federated, models, documents, pictures) for name, given in kind().items()}


# Command line


def run_all(experiments: Experiments) -> Iterator[tuple[str, str]]:
    """Run experiments and yield their names and hashes; data sets are built in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="golden-") as cache:
        os.environ["SIMFL_CACHE"] = cache
        for name, given in experiments.items():
            yield name, result_of(given)


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of runs that differ, failed or are missing on one side."""
    names = sorted(before.keys() | after.keys())
    return [name for name in names if before.get(name) != after.get(name) or failed(after[name])]


def failed(result: str) -> bool:
    """Return whether a run raised an error."""
    return result.startswith(FAILED)


def main() -> int:
    """Run the chosen experiments, print their hashes, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the hashes to this JSON file")
    parser.add_argument("--against", type=Path, help="compare with the hashes in this JSON file")
    parser.add_argument("--only", default="*", help="run those whose name matches this glob")
    options = parser.parse_args()

    chosen = {name: given for name, given in all_experiments().items() if fnmatchcase(name, options.only)}
    if not chosen:
        parser.error(f"no run has a name like {options.only!r}")
    started, results = time.perf_counter(), dict[str, str]()
    print(
        f"simfl from {Path(simfl.__file__).parent}, {'old' if is_old_version() else 'current'} names", file=sys.stderr
    )
    for name, result in run_all(chosen):
        results[name] = result
        print(name, result, flush=True)
    print(f"{len(results)} runs in {time.perf_counter() - started:.0f} s", file=sys.stderr)

    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    if not options.against:
        return int(any(map(failed, results.values())))
    before = json.loads(options.against.read_text())
    wrong = differences({name: h for name, h in before.items() if fnmatchcase(name, options.only)}, results)
    print("\n  ".join([f"{len(wrong)} runs differ", *wrong]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
