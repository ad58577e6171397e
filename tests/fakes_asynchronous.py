"""Small asynchronous experiments, shared by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes import experiment

from simfl.experiment import Asynchronous, Clients, Evaluate, Experiment
from simfl.runs import tables
from simfl.virtual_time.devices import Device, Network
from simfl.virtual_time.profiles import Profile

UNEQUAL = Profile(devices={"phone_low": 0.5, "laptop": 0.5}, networks="3g", device_spread=2.0, jitter=0.5)
EQUAL = Profile(  # every update takes three nanoseconds
    devices="fast",
    networks="fast",
    own_devices={"fast": Device(1e30)},
    own_networks={"fast": Network(1e30, 1e30)},
)
QUIET = Evaluate(every=0, batch_size=60)


def case(algorithm: str = "fedavg", profile: Profile = UNEQUAL, **settings: Any) -> Experiment:
    """Return an asynchronous experiment; `settings` are fields of `Asynchronous` too."""
    names = Asynchronous.__dataclass_fields__
    own = {"concurrency": 5, "buffer": 3} | {key: settings.pop(key) for key in list(settings) if key in names}
    usual: dict[str, Any] = {"rounds": 5, "evaluate": QUIET, "clients": Clients(profile)}
    return experiment(algorithm, participation=None, asynchronous=Asynchronous(**own), **usual | settings)


def rows(folder: Path, name: str = "rounds") -> list[dict[str, Any]]:
    """Return the rows of a table of a run."""
    found: list[dict[str, Any]] = tables.read(folder / f"{name}.parquet").to_pylist()
    return found
