"""Works to time: a convolutional network, a small MLP over many clients, and a T5 with LoRA.

    work   model                              K        / round   batch   optimizer     rounds
    W1     CNN, 1.2 M parameters, 28×28, 62   1,000    50        10      SGD 0.05      20
    W2     MLP 60-400-62                      10,000   200       10      SGD 0.05      20
    W3     T5, 15 M, LoRA r = 6 on q, v       10       2         8       AdamW 1e-3    3

The number of examples of a client is log-normal with mean 30 in W1 and W2; in W3 each client has 64 examples of 128
input and 32 output tokens. `w1` to `w3` are small versions. The networks have GELU and average pooling: with ReLU and
max pooling, a rounding error of 1e-7 grows to 1e-2 in five rounds, and equality could not be checked.
"""

from __future__ import annotations

from benchmarks.components import T5, LogNormal, Sequences, SequenceToSequence, TimedImageClassification
from benchmarks.networks import LORA_ALPHA, LORA_RANK
from simfl.data.benchmarks.prototypes import Prototypes
from simfl.experiment import Evaluate, Experiment, Local, Phase
from simfl.models.cnn import Cnn
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.optimizers.local import LocalOptimizer

MEAN_SIZE = 30


def cnn(clients: int, sampled: int, rounds: int) -> Experiment:
    """Return W1 with a number of clients, of clients per round and of rounds."""
    return _classification("cnn", Cnn(), (1, 28, 28), clients, sampled, rounds)


def mlp(clients: int, sampled: int, rounds: int) -> Experiment:
    """Return W2 with a number of clients, of clients per round and of rounds."""
    return _classification("mlp", Mlp(hidden_sizes=(400,)), (60,), clients, sampled, rounds)


def _classification(
    name: str, model: Cnn | Mlp, shape: tuple[int, ...], clients: int, sampled: int, rounds: int
) -> Experiment:
    return Experiment(
        name=name,
        data=Prototypes(examples=clients * MEAN_SIZE, classes=62, shape=shape),
        partition=LogNormal(clients=clients),
        model=model,
        phases=(
            Phase(
                objective=TimedImageClassification(shape=shape),
                local=Local(LocalOptimizer("sgd"), learning_rate=0.05, batch_size=10),
                rounds=rounds,
                clients_per_round=sampled,
            ),
        ),
        evaluate=Evaluate(every=0, limit=1),
    )


def t5(sampled: int, rounds: int) -> Experiment:
    """Return W3 with a number of clients per round and of rounds."""
    return Experiment(
        name="t5",
        data=Sequences(),
        partition=LogNormal(clients=10, sigma=0.0),
        model=T5(adapters=Lora(rank=LORA_RANK, alpha=LORA_ALPHA, dropout=0.0)),
        phases=(
            Phase(
                objective=SequenceToSequence(),
                local=Local(LocalOptimizer("adamw"), learning_rate=1e-3, batch_size=8),
                rounds=rounds,
                clients_per_round=sampled,
            ),
        ),
        evaluate=Evaluate(every=0, limit=1),
    )


WORKS: dict[str, Experiment] = {
    "w1": cnn(clients=200, sampled=12, rounds=6),
    "w2": mlp(clients=1000, sampled=100, rounds=12),
    "w3": t5(sampled=2, rounds=1),
    "W1": cnn(clients=1000, sampled=50, rounds=20),
    "W2": mlp(clients=10_000, sampled=200, rounds=20),
    "W3": t5(sampled=2, rounds=3),
}
