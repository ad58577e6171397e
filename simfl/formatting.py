"""Text for people: numbers of bytes, durations and rates."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """Format a number of bytes in decimal units: 1 kB is 1000 B, 1 MB is 1000 kB, and so on."""
    for unit, factor, digits in (("TB", 10**12, 2), ("GB", 10**9, 2), ("MB", 10**6, 1), ("kB", 10**3, 1)):
        if count >= factor:
            return f"{count / factor:.{digits}f} {unit}"
    return f"{count:.0f} B"


def format_duration(seconds: float) -> str:
    """Format a duration: 4.2 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_rate(clients_per_second: float) -> str:
    """Format a rate as clients per second or, below 0.1, as seconds per client."""
    if 0 < clients_per_second < 0.1:
        return f"{1 / clients_per_second:.1f} s/client"
    return f"{clients_per_second:.1f} clients/s"
