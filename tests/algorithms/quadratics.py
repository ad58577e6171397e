"""A plain reference of a federation: clients with quadratic losses, an algorithm's functions, gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.protocol import AggregatedUpdates, ClientUpdate, ModelInfo, Outputs, Parts, Server, State, Task, Weights
from simfl.weights import select_names


@dataclass(frozen=True)
class Client:
    """f(θ) = ½·Σ curvature·(θ − centre)², with this many examples."""

    curvature: Tensor
    centre: Tensor
    examples: float = 1.0

    def outputs(self, theta: Tensor) -> Outputs:
        value = 0.5 * (self.curvature * (theta - self.centre).square()).sum()
        return Outputs(torch.zeros(1, 1), loss_sums=value[None], loss_weights=torch.ones(1, dtype=theta.dtype))


def client(curvature: list[float], centre: list[float], examples: float = 1.0) -> Client:
    return Client(torch.tensor(curvature, dtype=torch.float64), torch.tensor(centre, dtype=torch.float64), examples)


def minimum(clients: Sequence[Client], weighted: bool = False) -> Tensor:
    """Return the minimum of the (weighted) sum of the clients' losses."""
    weights = [c.examples if weighted else 1.0 for c in clients]
    zero = torch.zeros((), dtype=torch.float64)
    top = sum((w * c.curvature * c.centre for w, c in zip(weights, clients, strict=True)), zero)
    return top / sum((w * c.curvature for w, c in zip(weights, clients, strict=True)), zero)


@dataclass
class Federation:
    """A federation of such clients that starts at θ = 0."""

    algorithm: Algorithm
    clients: Sequence[Client]
    steps: int | Sequence[int] = 1  # local steps, of all clients or of each
    rate: float = 0.1
    weighting: str = "uniform"
    client_states: dict[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        zero = {"w": torch.zeros_like(self.clients[0].centre)}
        self.server = Server(zero, self.algorithm.init_server(zero, Task(0)))

    @property
    def weights(self) -> Tensor:
        return self.server.weights["w"]

    def rounds(self, count: int, sampled: Sequence[int] | None = None) -> Federation:
        """Run rounds, each with these clients or all of them."""
        for number in range(count):
            self._round(number, range(len(self.clients)) if sampled is None else sampled)
        return self

    def _round(self, number: int, sampled: Sequence[int]) -> None:
        received = self.algorithm.download(self.server)
        sent = {k: self._update(k, number, len(sampled), received) for k in sampled}
        mass = {k: self.clients[k].examples if self.weighting == "examples" else 1.0 for k in sampled}
        parts: Parts = {}
        for part in sent[sampled[0]]:
            uniform = self.algorithm.reduce.get(part, "weighting") == "clients"
            share = {k: 1.0 if uniform else mass[k] for k in sampled}
            parts[part] = {
                name: torch.stack([share[k] * sent[k][part][name] for k in sampled]).sum(0) / sum(share.values())
                for name in sent[sampled[0]][part]
            }
        aggregated = AggregatedUpdates(parts, {}, len(self.clients), len(sampled), sum(mass.values()))
        delta, state = self.algorithm.aggregate(self.server, aggregated)
        moved = {name: w + delta[name] for name, w in self.server.weights.items()}
        self.server = replace(self.server, weights=moved, state=state)

    def _update(self, k: int, number: int, sampled: int, received: Parts) -> Parts:
        algorithm, own = self.algorithm, self.clients[k]
        steps = self.steps if isinstance(self.steps, int) else self.steps[k]
        mean = sum(c.examples for c in self.clients) / len(self.clients)
        relative = own.examples / mean if self.weighting == "examples" else 1.0
        facts = [
            k,
            0,
            number,
            0,
            steps,
            own.examples,
            relative,
            len(self.clients),
            sampled,
            self.rate,
            steps * self.rate,
            1 << 30,
        ]
        update = ClientUpdate(*(torch.tensor(float(fact), dtype=torch.float64) for fact in facts))
        kept = self.client_states.get(k) or algorithm.init_client(received, update)
        state = algorithm.prepare_state(received, kept, update)
        trained = {name: w.clone() for name, w in received["weights"].items()}
        for group, tensors in algorithm.extra_params(ModelInfo(None, {}), received, state, update).items():
            trained |= {f"extra/{group}/{name}": w.clone() for name, w in tensors.items()}
        for step in range(steps):
            state = self._step(own, trained, received, state, update._replace(step=torch.tensor(step)))
        sent = algorithm.upload(trained, received, state, update)
        self.client_states[k] = algorithm.update_state(sent, trained, received, state, update)
        return sent

    def _step(self, own: Client, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        outputs: dict[str, Outputs] = {}
        seen: list[Weights] = []
        mask = {"mask": torch.ones(1)}
        for micro in self.algorithm.micro_steps():
            moved = {} if micro.at is None else micro.at(trained, tuple(seen), state, update)
            leaf = {name: w.clone().requires_grad_() for name, w in (trained | moved).items()}
            for name in micro.forwards:
                source = self.algorithm.forwards()[name].sources[0][1]
                place = {"trained": "w", "extra:anchor": "extra/anchor/w"}[source]
                outputs[name] = own.outputs(leaf[place])
            total = micro.loss(outputs, mask, leaf, received, state, update).total(mask["mask"])
            names = select_names(leaf, micro.trains, micro.excludes)
            found = torch.autograd.grad(total, [leaf[name] for name in names], materialize_grads=True)
            seen.append(dict(zip(names, found, strict=True)))
            active = micro.steps and (micro.active is None or bool(micro.active(update)))
            for name, gradient in seen[-1].items() if active else ():
                trained[name] -= self.rate * gradient
            outputs = {name: out.detach() for name, out in outputs.items()}
        if not self.algorithm.needs_after_step():
            return state
        return self.algorithm.after_step(outputs, tuple(seen), mask, trained, received, state, update)
