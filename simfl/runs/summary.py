"""Summary of a run that has ended: the content of `summary.json`, and the same as text."""

from __future__ import annotations

from pathlib import Path

from simfl.formatting import format_bytes, format_duration
from simfl.runs.folder import SUMMARY, JsonObject, read_json

COMPLETED = "completed"
ENDED = (COMPLETED, "stopped")  # statuses of runs that are not repeated


def read_summary(folder: Path) -> JsonObject | None:
    """Read the summary of a run; None while there is none. DamagedFile if it was altered."""
    path = folder / SUMMARY
    return read_json(path) if path.exists() else None


def summary_lines(summary: JsonObject) -> list[str]:
    """Format a summary in a few lines: status, scores with baselines, bytes of each direction, and the run folder."""
    rows = []
    for metric, value in summary["final"].items():
        initial, clients = summary["initial"].get(metric), summary.get("scored_clients", {}).get(metric)
        remarks = [] if clients is None else [f"mean over {clients} of {summary['clients']} clients"]
        remarks += [] if initial is None else [f"before the first round {initial:.4f}"]
        rows.append((metric, f"{value:.4f}" + (f" ({', '.join(remarks)})" if remarks else "")))
    rows += [(f"baseline {name}", f"{value:.4f}") for name, value in summary["baselines"].items()]
    rows += [(direction, _bytes(summary, direction)) for direction in ("download", "upload", "total")]
    if "virtual_seconds" in summary:
        rows.append(("virtual time", format_duration(summary["virtual_seconds"])))
    if summary.get("plan"):
        rows.append(("plan", summary["plan"]))
    if "privacy" in summary:
        rows.append(("privacy", _privacy(summary["privacy"])))
    rows.append(("results in", summary["folder"]))
    if summary["status"] == "interrupted":
        rows.append(("resume with", "the same command and --resume"))
    width = max(len(name) for name, _ in rows)
    seconds = format_duration(summary["seconds"]["total"])
    title = f"{summary['name']}: {summary['status']} after {summary['rounds']} rounds in {seconds}"
    return [title, *(f"  {name:<{width}}  {value}" for name, value in rows)]


def _privacy(spent: JsonObject) -> str:
    limit = "" if spent["limit"] is None else f" of {spent['limit']:g}"
    if "deployment" in spent:
        return (
            f"estimate for a deployment with {spent['deployment']['clients_per_round']:,} of"
            f" {spent['deployment']['clients']:,} clients per round: epsilon {spent['deployment_epsilon']:.4g}{limit}"
            f" at delta {spent['delta']:g}; nothing is claimed for the data of this run; explained in privacy.md"
        )
    view, formula = spent["view"], ""
    if view == "formula":  # not a bound on what an observer learns
        view, formula, limit = "averages", f"; the formula gives {spent['epsilon']:.4g}{limit}", ""
    bound = f"epsilon {spent[f'epsilon_{view}']:.4g}{limit} at delta {spent['delta']:g}"
    return f"{bound} ({spent['adjacency'].replace('_', '-')}){formula}; explained in privacy.md"


def _bytes(summary: JsonObject, direction: str) -> str:
    sent, charged = summary["bytes"][direction], summary["charged"][direction]
    return format_bytes(sent) + ("" if sent == charged else f" (charged {format_bytes(charged)})")
