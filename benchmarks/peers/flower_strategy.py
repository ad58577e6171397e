"""Flower's older API: NumPyClient, a FedAvg strategy, start_simulation. Run with FILE RESULT."""

from __future__ import annotations

from typing import Any

import flwr
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg
from flwr.simulation import start_simulation

from benchmarks.peers.flower_client import CLIENT, FILE, Rounds, fit, work


class Client(flwr.client.NumPyClient):
    """A visit; which one is said in the instructions, since any node may be asked."""

    def fit(self, parameters: Any, config: Any) -> Any:
        arrays, examples = fit(config["file"], parameters, config["round"], config["slot"])
        return arrays, examples, {}


def client_fn(context: Any) -> Any:
    """A client."""
    return Client().to_client()


class Scheduled(FedAvg):
    """FedAvg over the visits of the work."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(fraction_evaluate=0.0, **settings)
        self.here = work(FILE)
        self.rounds = Rounds(self.here)

    def evaluate(self, server_round: int, parameters: Any) -> None:
        """Called before the first round and after each."""
        self.rounds.mark(parameters_to_ndarrays(parameters))

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """One visit for each sampled client."""
        count = len(self.here.rounds[server_round - 1])
        clients = client_manager.sample(num_clients=count, min_num_clients=count)
        return [
            (client, FitIns(parameters, {"file": FILE, "round": server_round - 1, "slot": slot}))
            for slot, client in enumerate(clients)
        ]


def main() -> None:
    """Run the simulation."""
    here = work(FILE)
    first = ndarrays_to_parameters([p.detach().numpy() for p in here.parameters])
    start_simulation(
        client_fn=client_fn,
        num_clients=here.num_clients,
        client_resources=CLIENT,
        config=flwr.server.ServerConfig(num_rounds=len(here.rounds)),
        strategy=Scheduled(initial_parameters=first),
    )


if __name__ == "__main__":
    main()
