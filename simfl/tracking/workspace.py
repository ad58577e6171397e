"""A Weights & Biases workspace for a sweep: its charts laid out, its runs filtered and grouped by the settings varied.

`wandb_workspaces` ships no types, so its objects are `Any` here.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simfl.errors import ConfigError
from simfl.experiment import Experiment
from simfl.runs.folder import JsonObject
from simfl.tracking.events import AXES
from simfl.tracking.trackers import SWEEP_SETTINGS

HEIGHT, WIDTH = 9, 8  # of a chart, in W&B's grid of 24 columns


@dataclass(frozen=True)
class WorkspaceSpec:
    """The content of a sweep's workspace."""

    name: str  # of the sweep, and of the group of its runs
    project: str
    entity: str | None  # None: the account's default
    axes: tuple[str, ...]  # settings that vary, except the seed, in the order of the file
    scores: tuple[str, ...]  # headline scores as `split/model/metric`
    budgets: tuple[str, ...] = ()  # names of the epsilons that are spent: `epsilon`, `deployment_epsilon`
    has_time: bool = False  # true: a run has virtual time


def workspace_spec(name: str, runs: Sequence[JsonObject], experiments: Sequence[Experiment]) -> WorkspaceSpec:
    """Return the spec of a sweep's workspace.

    Args:
        name: The name of the sweep.
        runs: The runs in `sweep.json`.
        experiments: The experiments of the runs.

    Raises:
        ConfigError: No experiment logs to W&B.
    """
    first = next((one for one in experiments if one.tracking.wandb is not None), None)
    if first is None or first.tracking.wandb is None:
        raise ConfigError(f"{name}: none of its runs logs to W&B; set tracking: {{wandb: {{}}}} in its file")
    axes = dict.fromkeys(key for run in runs for key in run["varied"] if key != "seed")
    varied = [key for key in axes if len({json.dumps(run["varied"].get(key)) for run in runs}) > 1]
    metric, evaluate = first.phases[-1].objective.metric, first.evaluate
    scores = [f"{split}/{model}/{metric}" for split in evaluate.splits for model in evaluate.models]
    wandb, private = first.tracking.wandb, [one.privacy for one in experiments if one.privacy is not None]
    timed = any(one.clients.profile is not None for one in experiments)
    budgets = tuple(dict.fromkeys("epsilon" if one.deployment is None else "deployment_epsilon" for one in private))
    return WorkspaceSpec(wandb.group or name, wandb.project, wandb.entity, tuple(varied), tuple(scores), budgets, timed)


def build_workspace(spec: WorkspaceSpec) -> Any:
    """Build the workspace; its `save` sends it to the site. ConfigError without the package `wandb-workspaces`."""
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise ConfigError("simfl dashboard needs the package wandb-workspaces; pip install 'simfl[dashboard]'")
    import wandb_workspaces.workspaces as ws

    varied: list[Any] = [ws.Config(f"{SWEEP_SETTINGS}.{axis}") for axis in spec.axes]
    return ws.Workspace(
        entity=spec.entity or _default_entity(),
        project=spec.project,
        name=spec.name,
        sections=_sections(spec),
        runset_settings=ws.RunsetSettings(filters=[ws.Metric("Group") == spec.name], groupby=varied),
    )


def workspace_json(workspace: Any) -> str:
    """Return what `save` would send to the site, as JSON."""
    content = workspace._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)
    return str(json.dumps(content, indent=1))


def _default_entity() -> str:
    """Return the account's own user or team."""
    import wandb

    if not wandb.login(prompt=False, verify=False):
        raise ConfigError("--entity: not given, and there is no API key to look it up; run `wandb login`")
    return str(wandb.Api().default_entity)


def _sections(spec: WorkspaceSpec) -> list[Any]:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    scores = [_line_plot(f"evaluations/{score}", "round") for score in spec.scores]
    losses = [_line_plot("rounds/loss", "round")]
    budgets = [("by_bytes", "bytes"), *((f"by_{name}", name) for name in spec.budgets)]
    budgets += [("by_time", AXES["by_time"])] if spec.has_time else []
    headline = spec.scores[0].split("/")[-1]
    costs = [_line_plot(f"{prefix}/{headline}", axis) for prefix, axis in budgets]
    final = [wr.SummaryMetric(f"evaluations/{score}") for score in spec.scores]
    axes = [
        wr.ParallelCoordinatesPlotColumn(wr.Config(f"{SWEEP_SETTINGS}.{axis}"), display_name=axis) for axis in spec.axes
    ]
    all_axes = wr.ParallelCoordinatesPlot(
        columns=[*axes, *map(wr.ParallelCoordinatesPlotColumn, final)], layout=_layout(0, 24), title="every run"
    )
    bars = [
        wr.BarPlot(
            title=f"{spec.scores[0]} by {axis}", metrics=[final[0]], groupby=wr.Config(f"{SWEEP_SETTINGS}.{axis}"),
            groupby_aggfunc="mean", groupby_rangefunc="stddev", orientation="v", layout=_layout(i),
        )
        for i, axis in enumerate(spec.axes)
    ]  # fmt: skip
    timings = [_line_plot(f"timings/{name}", "round") for name in ("train", "queue", "transfer", "save")]
    return [
        ws.Section("Settings", [all_axes, *bars], is_open=True),
        ws.Section("Learning", scores + losses, is_open=True),
        ws.Section("Cost", costs, is_open=True),
        ws.Section("Time", timings),
    ]


def _line_plot(metric: str, axis: str) -> Any:
    import wandb_workspaces.reports.v2 as wr

    return wr.LinePlot(title=metric, x=axis, y=[metric], groupby_rangefunc="minmax", smoothing_factor=0.0)


def _layout(number: int, width: int = WIDTH) -> Any:
    import wandb_workspaces.reports.v2 as wr

    return wr.Layout(x=number * width % 24, y=HEIGHT * (number * width // 24), w=width, h=HEIGHT)
