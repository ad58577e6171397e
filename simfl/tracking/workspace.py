"""A workspace of Weights & Biases for a sweep: its charts laid out, its runs filtered and grouped by what varies."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simfl.errors import ConfigError
from simfl.tracking.trackers import VARIED

HIGH, WIDE = 9, 8  # of a chart, in the site's grid of 24 columns


@dataclass(frozen=True)
class Shown:
    """A sweep, as its workspace shows it."""

    name: str  # of the sweep: its runs' group
    project: str
    entity: str | None  # null: the account's own
    axes: tuple[str, ...]  # what varies, but the seed, in the order of the file
    scores: tuple[str, ...]  # headline scores as `split/model/metric`
    private: bool = False  # whether epsilon is spent


def shown(name: str, runs: Sequence[dict[str, Any]], experiments: Sequence[Any]) -> Shown:
    """From `sweep.json`'s runs and their experiments; ConfigError where none is told to W&B."""
    first = next((one for one in experiments if one.tracking.wandb is not None), None)
    if first is None:
        raise ConfigError(f"{name}: no run of it is told to W&B; set tracking: {{wandb: {{}}}} in its file")
    axes = dict.fromkeys(key for run in runs for key in run["shown"] if key != "seed")
    varies = [key for key in axes if len({json.dumps(run["shown"].get(key)) for run in runs}) > 1]
    metric, asked = first.phases[-1].objective.metric, first.evaluate
    scores = [f"{split}/{model}/{metric}" for split in asked.splits for model in asked.models]
    tracked = first.tracking.wandb
    return Shown(
        tracked.group or name, tracked.project, tracked.entity, tuple(varies), tuple(scores),
        any(one.privacy is not None for one in experiments),
    )  # fmt: skip


def workspace(sweep: Shown) -> Any:
    """The workspace, which is sent by its `save`; ConfigError where the package for it is missing."""
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise ConfigError("simfl dashboard needs the package wandb-workspaces; pip install 'simfl[dashboard]'")
    import wandb_workspaces.workspaces as ws

    varied: list[Any] = [ws.Config(f"{VARIED}.{axis}") for axis in sweep.axes]
    return ws.Workspace(
        entity=sweep.entity or _entity(),
        project=sweep.project,
        name=sweep.name,
        sections=_sections(sweep),
        runset_settings=ws.RunsetSettings(filters=[ws.Metric("Group") == sweep.name], groupby=varied),
    )


def _entity() -> str:
    """The account's own user or team, which the site knows."""
    import wandb

    if not wandb.login(prompt=False, verify=False):
        raise ConfigError("--entity: not given, and no API key is known that would tell; run `wandb login`")
    return str(wandb.Api().default_entity)


def _sections(sweep: Shown) -> list[Any]:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    lines = [_line(f"evaluations/{score}", "round") for score in sweep.scores]
    losses = [_line("rounds/loss", "round")]
    spent = [("by_bytes", "bytes"), *([("by_epsilon", "epsilon")] if sweep.private else [])]
    headline = [sweep.scores[0].split("/")[-1]]
    costs = [_line(f"{prefix}/{score}", axis) for prefix, axis in spent for score in headline]
    ends = [wr.SummaryMetric(f"evaluations/{score}") for score in sweep.scores]
    axes = [wr.ParallelCoordinatesPlotColumn(wr.Config(f"{VARIED}.{a}"), display_name=a) for a in sweep.axes]
    all_axes = wr.ParallelCoordinatesPlot(
        columns=[*axes, *map(wr.ParallelCoordinatesPlotColumn, ends)], layout=_place(0, 24), title="every run"
    )
    bars = [
        wr.BarPlot(
            title=f"{sweep.scores[0]} by {axis}", metrics=[ends[0]], groupby=wr.Config(f"{VARIED}.{axis}"),
            groupby_aggfunc="mean", groupby_rangefunc="stddev", orientation="v", layout=_place(i),
        )
        for i, axis in enumerate(sweep.axes)
    ]  # fmt: skip
    return [
        ws.Section("What varies", [all_axes, *bars], is_open=True),
        ws.Section("Learning", lines + losses, is_open=True),
        ws.Section("Cost", costs, is_open=True),
        ws.Section("Time", [_line(f"timings/{name}", "round") for name in ("train", "queue", "transfer", "commit")]),
    ]


def _line(metric: str, axis: str) -> Any:
    import wandb_workspaces.reports.v2 as wr

    return wr.LinePlot(title=metric, x=axis, y=[metric], groupby_rangefunc="minmax", smoothing_factor=0.0)


def _place(number: int, width: int = WIDE) -> Any:
    import wandb_workspaces.reports.v2 as wr

    return wr.Layout(x=number * width % 24, y=HIGH * (number * width // 24), w=width, h=HIGH)


def as_json(found: Any) -> str:
    """What would be sent to the site, as JSON."""
    return str(json.dumps(found._to_model().model_dump(mode="json", by_alias=True, exclude_none=True), indent=1))
