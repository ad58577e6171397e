"""Run a work with the strategy API of Flower: `python -m benchmarks.peers.flower_strategy FILE RESULT`.

It uses NumPyClient, a FedAvg strategy and start_simulation.
"""

from __future__ import annotations

from typing import Any

import flwr
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg
from flwr.simulation import start_simulation

from benchmarks.peers.flower_client import CLIENT, FILE, RoundTimer, fit, work


class Client(flwr.client.NumPyClient):
    """Client that trains as the client that the instructions name; any node can get any client."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train and return the weights and the number of examples."""
        arrays, examples = fit(config["file"], parameters, config["round"], config["slot"])
        return arrays, examples, {}


def client_fn(context: Any) -> Any:
    """Build a client."""
    return Client().to_client()


class Scheduled(FedAvg):
    """FedAvg over the client updates of the work."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(fraction_evaluate=0.0, **settings)
        self.work = work(FILE)
        self.timer = RoundTimer(self.work)

    def evaluate(self, server_round: int, parameters: Any) -> None:
        """Record the time; Flower calls this before the first round and after each."""
        self.timer.mark(parameters_to_ndarrays(parameters))

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Return one client update for each sampled client."""
        count = len(self.work.rounds[server_round - 1])
        clients = client_manager.sample(num_clients=count, min_num_clients=count)
        return [
            (client, FitIns(parameters, {"file": FILE, "round": server_round - 1, "slot": slot}))
            for slot, client in enumerate(clients)
        ]


def main() -> None:
    """Run the simulation."""
    given = work(FILE)
    first = ndarrays_to_parameters([p.detach().numpy() for p in given.parameters])
    start_simulation(
        client_fn=client_fn,
        num_clients=given.num_clients,
        client_resources=CLIENT,
        config=flwr.server.ServerConfig(num_rounds=len(given.rounds)),
        strategy=Scheduled(initial_parameters=first),
    )


if __name__ == "__main__":
    main()
