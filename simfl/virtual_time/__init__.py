"""Virtual time: devices, networks, availability and the schedule of rounds, as pure functions of seed and names.

Instants and durations are whole nanoseconds (int64), so that the order of events does not depend on a machine. Events
at the same instant are ordered by the number of the client. Measured time is in `simfl.timing`.
"""

from simfl.registry import Registry
from simfl.virtual_time.availability import Availability
from simfl.virtual_time.selection import Selection

AVAILABILITIES: Registry[Availability] = Registry(
    {
        "always": "simfl.virtual_time.availability:Always",
        "diurnal": "simfl.virtual_time.availability:Diurnal",
        "intervals": "simfl.virtual_time.availability:Intervals",
        "trace": "simfl.virtual_time.traces:Trace",
    }
)

SELECTIONS: Registry[Selection] = Registry(
    {
        "uniform": "simfl.virtual_time.selection:Uniform",
        "tiers": "simfl.virtual_time.selection:Tiers",
        "oort": "simfl.virtual_time.selection:Oort",
    }
)

__all__ = ["AVAILABILITIES", "SELECTIONS", "Availability", "Selection"]
