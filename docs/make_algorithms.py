"""Write docs/reference/algorithms.md from the registries: `python docs/make_algorithms.py`; `--check` compares.

The script imports the simfl of its own repository. Messages, client state and passes of an algorithm are measured with
one client update of a small model.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from simfl.algorithms import ALGORITHMS  # noqa: E402
from simfl.algorithms.base import Algorithm  # noqa: E402
from simfl.config.catalogue import Entry, entry  # noqa: E402
from simfl.config.fields import shown  # noqa: E402
from simfl.objectives import OBJECTIVES  # noqa: E402
from simfl.optimizers import SCHEDULES, SERVER_OPTIMIZERS  # noqa: E402
from simfl.protocol import EXTRA, ClientUpdate, ModelInfo, Outputs, Parts, Server, State, Task  # noqa: E402

FILE = ROOT / "docs/reference/algorithms.md"
D = 1009  # values of the model: a prime, so that its multiples differ from other numbers
HEAD = """# Algorithms

This page is written by `python docs/make_algorithms.py` from the registries; a test checks that it is current. Where
papers and published codes disagree, [fidelity.md](../explanation/fidelity.md) states what simfl does.

Every algorithm works with every server optimizer, codec, partition and adapter kind, and in both execution modes
(`sequential`, `vectorized`); a model with running statistics is trained in `sequential` mode. Each model that a method
runs (personal models, mentors, received and earlier models) has its own running statistics; see
[your own module](../how-to/own_module.md#state-besides-parameters). Combinations without a meaning
are refused before the run (`simfl/config/rules.py`).

The columns of the table:

- **download**, **upload**, **client state**: parts and their numbers of values. *d* is the number of values that FedAvg
  communicates: all trained tensors without the personal ones. Other numbers are those of a model with 4 features and a
  client with 3 examples.
- **local step**: forward passes and gradients per batch.
- **local optimizer**: "any", or the settings of SGD that the method supports.
- **models**: models that can be evaluated. The model `local`, a client's model at the end of its last update, can be
  evaluated for every algorithm.
- **is FedAvg**: the settings or rounds in which the global model is bit-identical to FedAvg's. `tests/test_contract.py`
  tests it.

## Methods without an algorithm of their own

Some methods are settings of a phase:

- **Centralized training**: `centralized: true` trains on the examples of a round's clients, with as many steps as these
  clients would take.
- **Local training**: `communicate: false` trains every client alone and sends nothing, running statistics included.
  Fine-tuning after the last round is a second phase with `communicate: false` and `participation: 1.0`.
- **FedPer** (Arivazhagan et al. 2019, "Federated learning with personalization layers"): the head stays on the client.
  [experiments/personal/fedper.yaml](../../experiments/personal/fedper.yaml)

  ```yaml
  phases:
    - algorithm: fedavg
      personal_params: ["head.*"]
  ```
- **FedBN** (Li et al. 2021, "FedBN: federated learning on non-IID features via local batch normalization"): scale,
  shift and running statistics of batch normalization stay on the client. List the names of the model's layers.
  [experiments/personal/fedbn.yaml](../../experiments/personal/fedbn.yaml)

  ```yaml
  phases:
    - algorithm: fedavg
      personal_params: ["*bn*"]
      buffers: {personal: ["*"]}
  ```

## Low-rank adapters

The mean of the clients' A and the mean of their B is not the mean of their products B A. `fedit`, `fedex_lora`,
`flora`, `ffa_lora`, `rolora`, `fedsa_lora`, `flexlora`, `hetlora`, `lora_fair`, `rbla` and `slora` see both factors of
a layer; they work with `adapters: {kind: lora}`, with `{kind: peft, method: lora}`, and with adapters on models of
transformers.

| you want | take | bytes of a client and round, FedIT = 1 | what it costs |
|---|---|---|---|
| a baseline | `fedit` | 1 | the mean of A and B is not the mean of B A (`deviation`) |
| few bytes, or differential privacy | `ffa_lora` | 1/2 | A stays random: less expressive |
| few bytes, with A trained | `rolora` | 1/2, at full participation | each factor rests in every second round |
| the exact mean, adapters kept | `fedex_lora` | 1 + (K − 1)/2 | downloads grow with K, the clients of a round |
| the exact mean, any ranks | `flora` | (K + 1)/2 | as above; adapters start again in every round |
| clients of different ranks | `flexlora` | by rank | a decomposition on the server in every round; `sgd` at rate 1 |
| the same, without a decomposition | `rbla`, `hetlora` | by rank | means of factors, as in `fedit` |
| closer to the mean without bytes | `lora_fair` | 1 | a small linear system on the server |
| a model for each client | `fedsa_lora` | 1/2 | evaluate `personal`; there is no global model |
| a better start for adapters | `slora` | sparse weights first, then 1 | a first stage |

[Measured side by side](../../experiments/lora/README.md) with ten clients and five seeds: after equal rounds no rule
differs significantly from `fedit`; after equal bytes `fedex_lora` and `flora` are behind.

- **Exact rules**: `fedex_lora` adds the residual to the frozen weights, `flora` merges every round into them, `rolora`
  and `ffa_lora` keep one factor fixed in each round. After every round the model is W₀ + Σ p_k B_k A_k to 1e-6.
- **Changes of the frozen weights** are the part `base` of the next download, counted in plan and ledger: as factors of
  their rank, or whole where that is shorter; for a client that missed rounds, all changes since, or the whole.
- **Ranks per client**: `algorithm: {name: flexlora, rank: {4: 0.5, 16: 0.3, 64: 0.2}}` gives half of the clients rank
  4; `rank: [4, 16, …]` lists them; `rank: device_rank` reads a column of the data that has one value per client; and
  `rank: {phone_low: 4, laptop: 64}` goes by the devices of [`clients.profile`](../explanation/time.md). The rank of the
  model's adapters is the largest.

  Plan and ledger count the bytes of each client; all ranks train as one program,
  since rows beyond a client's rank are zero and stay zero. (Programs for groups of similar rank took 1.44
  times the time of equal ranks on an H200, padding 1.23 times: `python -m benchmarks.client_ranks`.)
- **Deviation**: the metric `deviation` is ‖Σ p_k B_k A_k − B̄ Ā‖ / ‖Σ p_k B_k A_k‖, as a mean and for each layer; the
  report draws it. It is not computed under privacy or secure aggregation, where the server sees no single upload.
- **Privacy**: rules that multiply uploads of single clients are refused. `ffa_lora` is the one for differential
  privacy: with A fixed, the update is linear in B, so that noise is not multiplied by noise. With `fedit` and `rolora`
  the guarantee holds as well, but noise on A and on B enters the product.
- **Secure aggregation** needs sums alone: `fedit`, `ffa_lora`, `rolora` and `fedsa_lora` with equal ranks.
- **Server optimizers**: any, with moments that rest while a tensor is not trained (`rolora`). `flexlora` and `slora`
  set weights and take `sgd` at rate 1 alone; `fedex_lora` is exact with it.
- **Codecs**: uploads of any kind, encoded per factor at the client's rank. Downloads that are cut to a rank are
  float32, or float16 and bfloat16 with `encode: weights`; those of `slora`, of some values of a tensor, are float32,
  float16 or bfloat16.

## Overview
"""


def main() -> None:
    """Write the page, or with `--check` exit with an error if it is not current."""
    text = document()
    if "--check" in sys.argv:
        sys.exit(0 if FILE.read_text(encoding="utf-8") == text else f"{FILE} is not current; run {Path(__file__).name}")
    FILE.write_text(text, encoding="utf-8")


def document() -> str:
    """Return the whole page."""
    rows = [
        "| name | download | upload | client state | local step | local optimizer | models | is FedAvg |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [f"| [{name}](#{name}) | " + " | ".join(_cells(_example(kind))) + " |" for name, kind in ALGORITHMS.items()]
    parts = [HEAD, "\n".join(rows) + "\n", *(_section(name, kind) for name, kind in ALGORITHMS.items())]
    parts += ["## Server optimizers\n", *(_settings(entry(n, k, "optimizer"), 3) for n, k in SERVER_OPTIMIZERS.items())]
    parts += ["## Learning-rate schedules\n", *(_settings(entry(name, kind), 3) for name, kind in SCHEDULES.items())]
    parts += ["## Objectives\n", *(_settings(entry(name, kind), 3) for name, kind in OBJECTIVES.items())]
    return "\n".join([*parts])


def _example(kind: type[Algorithm]) -> Algorithm:
    """Return the algorithm with its default settings, or with those of its example where it has no defaults."""
    try:
        return kind()
    except TypeError:
        settings = {path.removeprefix("algorithm."): value for path, value in kind.example.items()}
        return kind(**{name: value for name, value in settings.items() if name in kind.__dataclass_fields__})


def _section(name: str, kind: type[Algorithm]) -> str:
    paper = (inspect.getdoc(inspect.getmodule(kind)) or "").partition("\n")[0]
    rest = (inspect.getdoc(kind) or "").partition("\n")[2].strip()
    return _settings(entry(name, kind), 2, f"*{paper.rstrip('.')}.*\n\n", f"{rest}\n\n" if rest else "")


def _settings(found: Entry, level: int, before: str = "", after: str = "") -> str:
    lines = [f"{'#' * level} {found.name}\n", f"{before}{found.summary}\n"]
    lines += [after.rstrip("\n") + "\n"] if after else []
    if found.settings:
        lines += ["| setting | default | meaning |", "|---|---|---|"]
        lines += [f"| `{s.name}` | {_default(s)} | {s.meaning.replace('|', 'or')} |" for s in found.settings]
        lines += [""]
    return "\n".join(lines)


def _default(setting: object) -> str:
    value = setting.default  # type: ignore[attr-defined]
    if setting.required:  # type: ignore[attr-defined]
        return "required"
    return f"`{value.get('name') if isinstance(value, dict) else shown(value).strip(chr(39))}`"


def _cells(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the cells of one row of the overview."""
    received, sent, state = _one_update(algorithm)
    steps = algorithm.micro_steps()
    num_passes = sum(len(step.forwards) for step in steps)
    passes = f"{num_passes} pass{'es' if num_passes > 1 else ''}, {len(steps)} gradient{'s' if len(steps) > 1 else ''}"
    allowed = algorithm.supported_sgd_settings()
    optimizer = "any" if allowed is None else " ".join(["plain sgd", *(f"+ `{key}`" for key in allowed)])
    kept = [_sizes(state), *(f"parameters `{glob}`" for glob in algorithm.personal_params)]
    client_state = ", ".join(cell for cell in kept if cell) or "none"
    models = ", ".join(algorithm.eval_models)
    return _sizes(received), _sizes(sent), client_state, passes, optimizer, models, algorithm.fedavg_limit or "–"


def _sizes(parts: Parts | State) -> str:
    """Return the groups with their numbers of values, as multiples of d where they are."""
    return ", ".join(f"{name} {_size(sum(t.numel() for t in group.values()))}" for name, group in parts.items())


def _size(values: int) -> str:
    times, rest = divmod(values, D)
    return ("*d*" if times == 1 else f"{times}·*d*") if times and not rest else str(values)


def _one_update(algorithm: Algorithm) -> tuple[Parts, Parts, State]:
    """Return the download, the upload and the new state of a client, for a model of D values and 3 examples."""
    weights = {"w": torch.zeros(D)}
    server = Server(weights, algorithm.init_server(weights, Task(0, num_classes=2, shape=(4,))))
    received, ones = algorithm.download(server), torch.ones(())
    integers = ("client", "key", "round", "step", "rank")
    update = ClientUpdate(*(ones.to(torch.int64) if name in integers else ones for name in ClientUpdate._fields))
    update = update._replace(num_examples=3 * ones)
    state = algorithm.prepare_state(received, algorithm.init_client(received, update), update)
    outputs = Outputs(torch.zeros(1, 2), torch.zeros(1, 4))
    trained = dict(weights)
    extra = algorithm.extra_params(ModelInfo(outputs, weights, outputs, weights), received, state, update)
    for group, tensors in extra.items():
        trained |= {f"{EXTRA}/{group}/{name}": tensor for name, tensor in tensors.items()}
    sent = algorithm.upload(trained, received, state, update)
    return received, sent, algorithm.update_state(sent, trained, received, state, update)


if __name__ == "__main__":
    main()
