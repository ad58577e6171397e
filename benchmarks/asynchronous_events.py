"""Measure the schedule of asynchronous training: events per second and memory, with many clients in flight.

    python benchmarks/asynchronous_events.py                     # 1,000,000 clients, 10,000 in flight
    python benchmarks/asynchronous_events.py --jitter 0.2        # durations that differ from update to update
    python benchmarks/asynchronous_events.py --diurnal           # clients that come and go

An event is the start of an update or its end. The durations are those of profiles of phones.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from simfl.asynchronous.events import EventSchedule, Pace
from simfl.virtual_time.availability import Always, Diurnal
from simfl.virtual_time.profiles import Profile, client_profiles
from simfl.virtual_time.times import ClientTimes

MESSAGE = 4_000_000  # bytes
FLOPS = 1e9  # of an example


def client_times(clients: int, jitter: float, diurnal: bool) -> ClientTimes:
    """Return the times of clients that train up to 200 examples."""
    profile = Profile(
        devices={"phone_low": 0.3, "phone_mid": 0.4, "phone_high": 0.3},
        networks={"4g": 0.5, "wifi": 0.5},
        device_spread=1.0,
        network_spread=1.0,
        jitter=jitter,
        availability=Diurnal() if diurnal else Always(),
    )
    size = np.full(clients, MESSAGE)
    examples = np.random.default_rng(0).integers(1, 200, clients).astype(np.float64)
    return ClientTimes(
        client_profiles(profile, clients, 42), 0, FLOPS, size, size, np.ones(clients, np.int64), examples
    )


def peak_mib() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(times: ClientTimes, pace: Pace, events: int) -> tuple[float, float, int]:
    """Return events per second of processor time, growth of the peak memory in MiB, and the number of rounds."""
    schedule = EventSchedule(pace, len(times.profiles), times, 42, 0)
    schedule.round(0)  # fills all slots
    before, began = peak_mib(), time.process_time()
    done = number = 0
    while done < events:
        number += 1
        this = schedule.round(number)
        done += len(this.sampled) + len(this.clients)
    return done / (time.process_time() - began), peak_mib() - before, number


def main() -> None:
    """Print a line for each size of the buffer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--concurrency", type=int, default=10_000)
    parser.add_argument("--buffers", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--diurnal", action="store_true")
    options = parser.parse_args()
    times = client_times(options.clients, options.jitter, options.diurnal)
    print(f"{options.clients:,} clients, {options.concurrency:,} in flight; {peak_mib():.0f} MiB before the schedule")
    for buffer in options.buffers:
        speed, growth, rounds = measure(times, Pace(options.concurrency, buffer), options.events)
        print(f"buffer {buffer:5}: {speed:10,.0f} events/s, {growth:5.1f} MiB more over {rounds:,} rounds")


if __name__ == "__main__":
    main()
