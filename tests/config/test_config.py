"""Reading of experiment files; a mistake is one line with the path, the value and what is allowed."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from simfl import config
from simfl.algorithms.base import Algorithm
from simfl.algorithms.fedprox import FedProx
from simfl.config.fields import build, written
from simfl.config.registries import REGISTRIES
from simfl.errors import ConfigError

DESIGN = """
name: track1_lora
seed: 42
data: pfl_docvqa
partition: {by: official, clients: 10}
model: {name: vt5, size: base, adapters: {kind: lora, rank: 6, alpha: 16, targets: [q, v]}, precision: bf16}
execution: {clients_per_batch: auto, mode: auto}
deterministic: false
ledger: {tied_weights: once}
phases:
  - objective: docvqa
    algorithm: fedavg
    server: {optimizer: sgd, learning_rate: 1.0}
    rounds: 7
    participation: 0.2
    weighting: uniform
    train: ["spatial_embedding.*", "visual_projection.*"]
    frozen: []
    personal_params: []
    local: {epochs: 1, batch_size: 16, shuffle: true, optimizer: adamw, learning_rate: 2e-4}
    codec: {download: float32, upload: float32}
privacy: null
evaluate: {every: 1, splits: [valid], models: [global]}
checkpoint: {rounds: 1, seconds: 30}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(DESIGN.replace("pfl_docvqa", "prototypes"))
    return path


def error_of(file: Path, *overrides: str) -> str:
    """Return the one-line error for these overrides of the sample."""
    with pytest.raises(ConfigError) as caught:
        config.load(file, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_complete_experiment_file_is_read(file: Path) -> None:
    file.write_text(DESIGN)
    experiment = config.load(file, ["data.path=/a/download"])
    assert asdict(experiment.data)["path"] == "/a/download"
    phase = experiment.phases[0]
    assert (experiment.name, experiment.seed, experiment.partition.clients) == ("track1_lora", 42, 10)
    assert phase.local.learning_rate == 2e-4
    assert phase.local.optimizer.name == "adamw"
    assert phase.train == ("spatial_embedding.*", "visual_projection.*")
    assert experiment.privacy is None


def test_a_dumped_experiment_is_read_back_equal(file: Path) -> None:
    experiment = config.load(file, ["phases.0.local.optimizer={name: adam, betas: [0.5, 0.99], weight_decay: 1e-5}"])
    assert config.parse(config.to_mapping(experiment)) == experiment
    file.write_text(config.dump(experiment))
    assert config.load(file) == experiment


def test_a_resolved_experiment_keeps_the_order_of_its_keys(file: Path) -> None:
    keys = [line.partition(":")[0] for line in config.dump(config.load(file)).splitlines() if re.match(r"\w", line)]
    assert keys == list(config.to_mapping(config.load(file)))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("seed", "99999999999999999999", "99999999999999999999 is not a whole number from 0 to 2**63 - 1"),
        ("phases.0.local.batch_sise", "8", "unknown key (given 8); did you mean 'batch_size'?"),
        ("phases.0.algorithm", "fedproxx", "unknown 'fedproxx'; did you mean 'fedprox'?"),
        ("phases.0.algorithm.mew", "1", "fedavg has no key 'mew' (given 1)"),
        ("phases.0.local.batch_size", "'16'", "'16' is not a whole number of at least 1"),
        ("phases.0.local.batch_size", "0", "0 is not a whole number of at least 1"),
        (
            "phases.0.local.batch_size",
            "100000000000000000000",
            "100000000000000000000 is not a whole number of at least 1",
        ),
        ("evaluate.splits", "[]", "the list is empty; give at least one"),
        ("evaluate.models", "[]", "the list is empty; give at least one"),
        ("evaluate.splits", "[valid, train, valid]", "['valid', 'train', 'valid'] contains a duplicate"),
        ("phases.0.local.batch_size", "1.5", "1.5 is not a whole number of at least 1"),
        ("phases.0.local.batch_size", "true", "true is not a whole number of at least 1"),
        ("phases.0.rounds", "null", "null is not a whole number of at least 1"),
        ("phases.0.local.learning_rate", "-1", "-1 is not a number of at least 0"),
        ("phases.0.local.learning_rate", ".inf", "inf is not a number of at least 0"),
        ("phases.0.local.learning_rate", ".nan", "nan is not a number of at least 0"),
        ("phases.0.participation", "1.2", "1.2 is not a number above 0 and at most 1"),
        ("phases.0.weighting", "exmples", "'exmples' is not one of examples, uniform"),
        ("phases.0.rounding", "down", "'down' is not one of floor, round, ceil"),
        ("phases.0.communicate", "1", "1 is not true or false"),
        ("phases.0.train", "head.*", "'head.*' is not a list"),
        ("phases.0.local", "3", "3 is not a mapping of keys to values"),
        ("phases.0", "[]", "[] is not a mapping of keys to values"),
        ("phases", "[]", "the list is empty; give at least one"),
        ("privacy.unit", "provider", "'provider' is not one of record, group, client"),
        ("execution.clients_per_batch", "3", "3 is not a power of two or auto"),
        ("execution.clients_per_batch", "wide", "'wide' is not a power of two or auto"),
        ("name", "a/b", "'a/b' is not letters, digits, '.', '_' and '-', not beginning with '.'"),
        ("name", "2020-01-01", "datetime.date(2020, 1, 1) is not letters"),
        ("phases.0.local.optimizer", "adamx", "unknown 'adamx'; did you mean"),
        ("phases.0.local.optimizer.momentum", ".9", "adamw has no key 'momentum' (given 0.9)"),
        ("phases.0.local.optimizer.weight_decay", "much", "'much' is not a finite number"),
        ("phases.0.local.optimizer.betas", "[.9]", "[0.9] is not a list of 2"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_and_what_is_allowed(
    file: Path, path: str, value: str, expected: str
) -> None:
    assert error_of(file, f"{path}={value}").startswith(f"{path}: {expected}")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.adapters.kind=lorra", "model.adapters: unknown 'lorra'; did you mean 'lora'?"),
        ("partition={clients: 3}", "partition.by: null is not a name; write {by: NAME, setting: value}"),
        ("phases.0.algorithm={mu: 1}", "phases.0.algorithm.name: null is not a name; write {name: NAME"),
        ("phases.0.algorithm={name: fedprox, nu: 1}", "phases.0.algorithm.nu: fedprox has no key 'nu' (given 1)"),
        ("phases.0.codec.upload={name: nf4, block: x}", "phases.0.codec.upload.block: 'x' is not a whole number"),
        ("phases.0.local.optimizer.weight_decay=-1", "phases.0.local.optimizer: adamw: Invalid weight_decay value: -1"),
        ("phases.0.server.optimizer=adm", "phases.0.server: unknown 'adm'; did you mean 'adam'?"),
        ("phases.0.train=[a, 1]", "phases.0.train.1: 1 is not text"),
    ],
)
def test_a_wrong_value_in_a_component_or_list_is_refused_with_its_path(
    file: Path, override: str, expected: str
) -> None:
    assert error_of(file, override).startswith(expected)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["clients_per_round=2"], "participation: give exactly one of participation, clients_per_round, poisson"),
        (["participation=null"], "participation: give exactly one of participation, clients_per_round, poisson"),
        (["participation=null", "clients_per_round=11"], "clients_per_round: 11 is more than partition.clients, "),
        (["participation=null", "poisson=.2", "rounding=ceil"], "rounding: 'ceil' has no effect without participation"),
        (["local.epochs=2", "local.steps=5"], "local.steps: 5 given, but local.epochs is 2"),
        (["local.optimizer=sgd", "local.keep_optimizer=true"], "local.keep_optimizer: true has no effect"),
        (["algorithm=scaffold"], "local.optimizer: 'adamw' given; scaffold is correct only with plain sgd"),
        (["algorithm=scaffold", "local.optimizer={name: sgd, momentum: .9}"], "local.optimizer.momentum: 0.9 given"),
        (["algorithm=scaffold", "local.optimizer=sgd", "local.clip_norm=1"], "local.clip_norm: 1.0 given; scaffold"),
        (["frozen=[a.*]", "train=[a.*]"], "frozen: 'a.*' is also in train"),
        (["weighting=examples", "communicate=false", "codec.upload=nf4"], "codec: has no effect with communicate:"),
        (
            ["weighting=examples", "communicate=false", "personal_params=[h.*]"],
            "personal_params: has no effect with communicate:",
        ),
        (["codec.upload.error_feedback=true"], "codec.upload.error_feedback: Float32 is lossless"),
        (["carry_over=[algorithm]"], "carry_over: ['algorithm'] given, but this is the first phase"),
    ],
)
def test_contradictory_settings_and_settings_without_effect_are_refused(
    file: Path, overrides: list[str], expected: str
) -> None:
    assert error_of(file, *(f"phases.0.{line}" for line in overrides)).startswith(f"phases.0.{expected}")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("cohort.way=loop", "--set cohort: renamed to execution"),
        ("execution={way: auto}", "execution.way: renamed to mode"),
        ("execution={width: 4}", "execution.width: renamed to clients_per_batch"),
        ("execution={pieces: 2}", "execution.pieces: renamed to data_parallel"),
        ("execution={probe: never}", "execution.probe: renamed to autotune"),
        ("execution.mode=loop", "execution.mode: 'loop' was renamed to sequential"),
        ("execution.mode=batch", "execution.mode: 'batch' was renamed to vectorized"),
        ("exactness=strict", "--set exactness: renamed to deterministic"),
        ("deterministic=strict", "deterministic: 'strict' was renamed to true"),
        ("deterministic=fast", "deterministic: 'fast' was renamed to false"),
        ("phases.0.private=[]", "phases.0.private: renamed to personal_params"),
        ("phases.0.keep=[]", "phases.0.keep: renamed to carry_over"),
        ("phases.0.pooled=true", "phases.0.pooled: renamed to centralized"),
        ("ledger.aliases=once", "ledger.aliases: renamed to tied_weights"),
        ("privacy={aliases: once}", "privacy.aliases: renamed to tied_weights"),
        ("phases.0.codec.upload={name: nf4, of: delta}", "phases.0.codec.upload.of: renamed to encode"),
        ("phases.0.codec.upload={name: nf4, encode: delta}", "phases.0.codec.upload.encode: 'delta' was renamed to up"),
        ("model={name: mlp, widths: [4]}", "model.widths: renamed to hidden_sizes"),
        ("evaluate.models=[generic]", "evaluate.models: 'generic' was renamed to global"),
        ("evaluate.models=[last_local]", "evaluate.models: 'last_local' was renamed to local"),
    ],
)
def test_a_renamed_key_or_value_is_refused_with_the_new_one(file: Path, override: str, expected: str) -> None:
    assert error_of(file, override).startswith(expected)


def test_a_renamed_key_in_a_file_is_refused_with_the_new_one(file: Path) -> None:
    file.write_text(file.read_text().replace("execution:", "cohort:"))
    assert error_of(file) == "cohort: renamed to execution"


def test_scaffold_with_plain_sgd_is_accepted(file: Path) -> None:
    overrides = ["phases.0.algorithm=scaffold", "phases.0.local.optimizer={name: sgd, momentum: 0}"]
    assert config.load(file, overrides).phases[0].algorithm.supported_sgd_settings() == ()


def test_privacy_refuses_weights_that_reveal_client_sizes(file: Path) -> None:
    overrides = ["privacy={unit: group, clip: 1}", "phases.0.weighting=examples"]
    assert error_of(file, *overrides).startswith(
        "phases.0.weighting: 'examples' reveals how many examples a client has"
    )
    assert config.load(file, overrides[:1]).privacy.clip == 1.0


def test_privacy_without_effect_is_refused(file: Path) -> None:
    assert error_of(file, "privacy={unit: client}").startswith("privacy: has no effect")
    line = error_of(file, "privacy={unit: client, clip: 1, groups_per_client: 3}")
    assert line.startswith("privacy.groups_per_client: 3 has no effect")


def test_a_missing_key_is_reported_with_its_type(file: Path) -> None:
    given: Any = config.read_yaml(file)
    del given["phases"][0]["rounds"], given["model"]
    with pytest.raises(ConfigError, match=r"^model: missing; give one of .*vt5"):
        config.parse(given)
    with pytest.raises(ConfigError, match=r"^phases.0.rounds: missing; give a whole number of at least 1$"):
        config.parse({**given, "model": "vt5"})


def test_an_override_path_may_start_at_a_key_of_the_only_phase(file: Path) -> None:
    phase = config.load(file, ["rounds=2", "local.batch_size=3"]).phases[0]
    assert (phase.rounds, phase.local.batch_size) == (2, 3)


def test_an_override_changes_one_value_and_copies_the_rest(file: Path) -> None:
    given = config.read_yaml(file)
    before = deepcopy(given)
    changed = config.override(given, "phases.0.rounds", 2)
    assert changed["phases"][0]["rounds"] == 2
    assert given == before
    changed["phases"][0]["rounds"] = 7
    assert changed == before


def test_an_override_adds_a_setting_to_a_component_given_by_name(file: Path) -> None:
    overrides = ["phases.0.algorithm=fedprox", "phases.0.algorithm.mu=0.5", "partition=iid", "partition.clients=3"]
    experiment = config.load(file, overrides)
    assert experiment.phases[0].algorithm == FedProx(mu=0.5)
    assert REGISTRIES["partitioners"].name_of(type(experiment.partition)) == "iid"
    assert (
        config.load(file, ["phases.0.server=sgd", "phases.0.server.learning_rate=0.5"]).phases[0].server.learning_rate
        == 0.5
    )


def test_an_override_creates_a_null_section(file: Path) -> None:
    assert config.load(file, ["privacy.clip=0.5"]).privacy.clip == 0.5


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("phases.1.rounds=2", "--set phases.1: '1' is not an index of the list; allowed: 0 to 0"),
        ("phases.first.rounds=2", "--set phases.first: 'first' is not an index of the list; allowed: 0 to 0"),
        ("seed.x=2", "--set seed.x: seed is 42, which has no settings"),
        ("seed", "--set seed: write path=value, for example phases.0.rounds=2"),
        ("seed=[1", "--set seed:1:3: "),
        ("sead=1", "--set sead: neither an experiment nor a phase has the key 'sead'; did you mean 'seed'?"),
        ("=1", "--set =1: write path=value"),
        (".=1", "--set .: neither an experiment nor a phase has the key ''; allowed: algorithm, asynchronous, "),
    ],
)
def test_a_wrong_override_is_refused_with_the_reason(file: Path, override: str, expected: str) -> None:
    assert error_of(file, override).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nname: b\n", r"experiment.yaml:2:1: duplicate key 'name'$"),
        ("name: [a\nseed: 1\n", r"experiment.yaml:2:\d+: "),
        ("", r"experiment.yaml: the file is empty; simfl new --list shows experiments to start from"),
        ("- a\n", r"experiment.yaml: \['a'\] is not a mapping"),
        (
            "a: 1\n---\nb: 2\n",
            r"experiment.yaml:2:1: expected a single document in the stream, but found another document",
        ),
    ],
)
def test_invalid_yaml_is_refused_with_its_position(file: Path, text: str, expected: str) -> None:
    file.write_text(text)
    assert re.search(expected, error_of(file))


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    assert error_of(tmp_path / "none.yaml").endswith("none.yaml: No such file or directory")
    assert error_of(tmp_path).endswith(": Is a directory")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert error_of(tmp_path / "bytes.yaml").endswith("not a text file in UTF-8")


def test_values_are_parsed_as_yaml_1_2(file: Path) -> None:
    file.write_text("a: 2e-4\nb: on\nc: 1e5\nd: no\n")
    assert config.read_yaml(file) == {"a": 2e-4, "b": "on", "c": 1e5, "d": "no"}


@dataclass(frozen=True)
class Mine(Algorithm):
    """An algorithm defined outside of simfl."""

    strength: float = 1.0


class Undecorated(Algorithm):
    """An algorithm without the decorator, whose settings would be lost."""

    strength: float = 1.0


def test_a_component_may_be_defined_outside_of_simfl(file: Path) -> None:
    name = f"{Mine.__module__}:Mine"
    experiment = config.load(file, [f"phases.0.algorithm={{name: '{name}', strength: 2}}"])
    assert experiment.phases[0].algorithm == Mine(2.0)
    assert config.parse(config.to_mapping(experiment)) == experiment


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere_at_all.mine:FedMine", "no module 'nowhere_at_all' for"),
        (f"{__name__}:Mime", f"{__name__} has no 'Mime'; did you mean 'Mine'?"),
        ("pathlib:Path", "'pathlib:Path' is not a simfl.algorithms.base:Algorithm"),
        (f"{__name__}:Undecorated", "needs the decorator @dataclass(frozen=True)"),
    ],
)
def test_an_unusable_outside_component_is_refused_with_the_reason(file: Path, name: str, expected: str) -> None:
    assert expected in error_of(file, f"phases.0.algorithm='{name}'")


def test_components_may_be_python_objects(file: Path) -> None:
    given = config.override(config.read_yaml(file), "phases.0.algorithm", Mine(3.0))
    assert config.parse(given).phases[0].algorithm == Mine(3.0)


REQUIRED = {  # a value for each setting without a default, by its name
    "path": "somewhere",
    "of": "some.where:it",
    "columns": {"x": "pixels"},
    "parts": {"a": "provider_invoices"},
    "answers": ["yes", "no"],
    "address": "auto",
}


NO_DEFAULTS = ("word_labels",)  # components whose defaults alone are refused


@pytest.mark.parametrize("shelf", REGISTRIES)
def test_every_component_is_read_back_from_its_settings(shelf: str) -> None:
    for name, component in REGISTRIES[shelf].components.items():
        example = getattr(component, "example", {})
        missing = [f.name for f in fields(component) if f.default is f.default_factory is MISSING]
        required = {one: REQUIRED[one] if one in REQUIRED else example[one] for one in missing}
        made = build(component, required | dict(example if name in NO_DEFAULTS else {}), shelf, name)
        settings = written(made)
        assert settings.pop(REGISTRIES[shelf].key) == name
        assert build(component, settings, shelf, name) == made, name


def test_all_problems_of_a_file_are_reported_together_one_line_each() -> None:
    given = {
        "name": "many",
        "data": "digitss",
        "modl": "mlp",
        "partition": "iid",
        "execution": {"way": "batch"},
        "phases": [{"algorithm": "fedavg", "objective": "classification", "rounds": -2, "codec": "int8", "local": {}}],
    }
    with pytest.raises(ConfigError) as caught:
        config.parse(given)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "modl",  # which is meant for `model`, so that no line says that the model is missing
        "data",
        "execution.way",
        "phases.0.rounds",
        "phases.0.codec",
        "phases.0.local.optimizer",
        "phases.0.local.learning_rate",
    ]
    assert lines[4].startswith("phases.0.codec: 'int8' is not a mapping of keys to values (keys: ")
