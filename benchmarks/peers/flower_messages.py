"""Run a work with the message API of Flower: `python -m benchmarks.peers.flower_messages FILE RESULT`.

It uses ServerApp, ClientApp, records and run_simulation.
"""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.simulation import run_simulation

from benchmarks.peers.flower_client import CLIENT, FILE, RoundTimer, fit, work

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train the client that the message names; any node can get any client."""
    config = message.content["config"]
    start = message.content["arrays"].to_numpy_ndarrays()
    arrays, examples = fit(config["file"], start, config["round"], config["slot"])
    metrics = MetricRecord({"num-examples": examples})
    content = RecordDict({"arrays": ArrayRecord.from_numpy_ndarrays(arrays), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Scheduled(FedAvg):
    """FedAvg over the client updates of the work."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        """Yield one client update for each sampled node."""
        count = len(work(FILE).rounds[server_round - 1])
        nodes, _ = sample_nodes(grid, count, count)
        for slot, node in enumerate(nodes):
            instructions = ConfigRecord({"file": FILE, "round": server_round - 1, "slot": slot})
            content = RecordDict({"arrays": arrays, "config": instructions})
            yield Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    given = work(FILE)
    timer = RoundTimer(given)
    Scheduled(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord.from_numpy_ndarrays([p.detach().numpy() for p in given.parameters]),
        num_rounds=len(given.rounds),
        evaluate_fn=lambda number, arrays: timer.mark(arrays.to_numpy_ndarrays()),
    )


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=work(FILE).num_clients,
        backend_config={"client_resources": CLIENT},
    )
