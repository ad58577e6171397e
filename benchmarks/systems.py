"""Systems to time, each a command that runs a work in a separate process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = Path(__file__).parent / "peers" / "envs"
SETUP = "benchmarks/peers/setup.sh"


@dataclass(frozen=True)
class System:
    """A module of this package and its arguments, in which `{file}`, `{work}` and `{result}` are replaced."""

    arguments: tuple[str, ...]
    environment: str = ""  # name of another simulator's environment; empty: that of simfl

    @property
    def python(self) -> Path:
        """Return the Python interpreter of the environment."""
        return ENVIRONMENTS / self.environment / "bin" / "python" if self.environment else Path(sys.executable)

    @property
    def installed(self) -> bool:
        """Return whether the system is installed."""
        return self.python.exists()

    def command(self, work: str, file: Path, result: Path) -> list[str]:
        """Return the command line."""
        given = {"work": work, "file": str(file), "result": str(result)}
        return [str(self.python), "-m", *(argument.format(**given) for argument in self.arguments)]


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m")
REFERENCE = "bare loop, 2 processes"
SYSTEMS = {
    REFERENCE: System(("benchmarks.bare", "{file}", "{result}", "2")),
    "bare loop, 1 process": System(("benchmarks.bare", "{file}", "{result}", "1")),
    "simfl, inline sequential": System(("benchmarks.engine", "{work}", "{result}", "inline", "1", "sequential")),
    "simfl, inline vectorized": System(("benchmarks.engine", "{work}", "{result}", "inline", "1", "vectorized")),
    "simfl, Ray, 2 workers": System(("benchmarks.engine", "{work}", "{result}", "ray", "2")),
    "pfl-research, 1 process": System(("benchmarks.peers.pfl_research", "{file}", "{result}"), "pfl"),
    "pfl-research, 2 processes": System((*TORCHRUN, "benchmarks.peers.pfl_research", "{file}", "{result}"), "pfl"),
    "Flower, strategy API": System(("benchmarks.peers.flower_strategy", "{file}", "{result}"), "flower"),
    "Flower, message API": System(("benchmarks.peers.flower_messages", "{file}", "{result}"), "flower"),
}


def surroundings(first_step: Path) -> dict[str, str]:
    """Return the environment variables of all systems: one thread per process, no telemetry, simfl on the path."""
    from benchmarks.result import FIRST

    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        FIRST: str(first_step),
    }
