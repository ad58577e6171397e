"""Weights & Biases and TensorBoard, from the driver alone: one run for the whole experiment, imported if asked for."""

from __future__ import annotations

import importlib.util
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from simfl import config, files
from simfl.errors import ConfigError
from simfl.experiment import Experiment, Wandb
from simfl.run_context import RunContext
from simfl.tracking.events import AXES, TrackingEvent, metrics
from simfl.tracking.pictures import picture

NOTES = "tracking.json"  # in the run's folder: what a resumed run must know
VARIED = "sweep"  # in W&B's config: what a run has of what its sweep varies


class Tracker(Protocol):
    """Where numbers go."""

    def tell(self, news: TrackingEvent) -> None:
        """Once a round."""

    def end(self, summary: Mapping[str, Any], evaluations: list[dict[str, Any]]) -> None:
        """`evaluations`: all rows of the run."""


def check(experiment: Experiment) -> None:
    """ConfigError if what is asked for is not there."""
    asked = experiment.tracking
    for package, wanted in (("wandb", asked.wandb), ("tensorboard", asked.tensorboard)):
        if wanted and importlib.util.find_spec(package) is None:
            raise ConfigError(f"tracking.{package}: the package is not installed; pip install {package}")
    if asked.wandb is not None and asked.wandb.mode == "online" and not _has_key():
        raise ConfigError("tracking.wandb.mode: online, but no API key is known; run `wandb login`, or give offline")


@contextmanager
def opened(
    experiment: Experiment, setting: RunContext, folder: Path, step: int, say: Callable[[str], None]
) -> Iterator[list[Tracker]]:
    """The trackers that the experiment asks for; `step` is the round a resumed run goes on after."""
    trackers: list[Tracker] = []
    with ExitStack() as stack:
        if experiment.tracking.wandb is not None:
            trackers.append(stack.enter_context(_wandb(experiment, experiment.tracking.wandb, setting, folder, say)))
        if experiment.tracking.tensorboard:
            trackers.append(stack.enter_context(_tensorboard(setting, folder, step)))
        yield trackers


class WandbTracker:
    """One run of Weights & Biases."""

    def __init__(self, run: Any, experiment: Experiment, setting: RunContext, folder: Path) -> None:
        self.run, self.experiment, self.setting, self.folder = run, experiment, setting, folder
        self.artifacts = experiment.tracking.wandb is not None and experiment.tracking.wandb.artifacts
        run.define_metric("round", hidden=True)
        for name in ("rounds", "timings", "busy", "memory", "use", "evaluations", "samples"):
            run.define_metric(f"{name}/*", step_metric="round")
        for prefix, axis in AXES.items():
            run.define_metric(axis, hidden=True)
            run.define_metric(f"{prefix}/*", step_metric=axis)
        if self.artifacts:
            self._keep("partition", folder / "partition.json")

    def tell(self, news: TrackingEvent) -> None:
        row: dict[str, Any] = dict(metrics(news, self.experiment.evaluate.splits[0]))
        for split in dict.fromkeys(sample["split"] for sample in news.samples):
            row[f"samples/{split}"] = self._samples([s for s in news.samples if s["split"] == split])
        self.run.log(row)

    def _samples(self, samples: list[dict[str, Any]]) -> Any:
        import wandb

        pictures = [picture(self.setting.split(s["split"]), s["row"]) for s in samples]
        shown = {} if pictures[0] is None else {"image": [wandb.Image(p) for p in pictures]}
        names = list(dict.fromkeys(name for sample in samples for name in sample))
        texts = {name: [_cell(sample.get(name)) for sample in samples] for name in names}
        columns = shown | texts
        return wandb.Table(columns=list(columns), data=[list(cells) for cells in zip(*columns.values(), strict=True)])

    def end(self, summary: Mapping[str, Any], evaluations: list[dict[str, Any]]) -> None:
        import wandb

        if evaluations:
            names = list(evaluations[0])
            rows = [[row.get(name) for name in names] for row in evaluations]
            self.run.log({"evaluations_table": wandb.Table(columns=names, data=rows)})
        self.run.summary.update({name: value for name, value in summary.items() if name != "folder"})
        if self.artifacts and summary["status"] == "completed":
            newest = max((self.folder / "checkpoints").iterdir())
            self._keep("checkpoint", newest)

    def _keep(self, kind: str, path: Path) -> None:
        """An artifact; files are not copied, since they stay as they are."""
        import wandb

        artifact = wandb.Artifact(f"{self.run.id}-{kind}", type=kind)
        (artifact.add_dir if path.is_dir() else artifact.add_file)(str(path), policy="immutable")
        self.run.log_artifact(artifact)


@contextmanager
def _wandb(
    experiment: Experiment, asked: Wandb, setting: RunContext, folder: Path, say: Callable[[str], None]
) -> Iterator[WandbTracker]:
    """The run of this experiment: a new one, or, in a folder that has one already, the same."""
    import wandb

    mode: Any = asked.mode or os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
    start: dict[str, Any] = {
        "entity": asked.entity,
        "project": asked.project,
        "group": asked.group,
        "tags": list(asked.tags),
        "id": _run_id(folder),
        "name": experiment.name,
        "dir": str(folder),
        "resume": "allow",
        "config": config.to_mapping(experiment) | {VARIED: dict(asked.varied)},
        "settings": wandb.Settings(console="off", silent=True),
    }
    try:
        run = wandb.init(mode=mode, **start)
    except wandb.errors.Error as error:
        say(f"W&B cannot be reached ({str(error).splitlines()[0]}); going on offline")
        mode, run = "offline", wandb.init(mode="offline", **start)
    say(f"W&B: {run.url}" if mode == "online" else f"W&B {mode}: wandb sync {Path(run.dir).parent}")
    code = 1
    try:
        yield WandbTracker(run, experiment, setting, folder)
        code = 0
    finally:
        run.finish(exit_code=code)


def _has_key() -> bool:
    import wandb

    return bool(wandb.login(prompt=False, verify=False))


def _run_id(folder: Path) -> str:
    path = folder / NOTES
    if not path.exists():
        text = json.dumps({"wandb": {"id": uuid.uuid4().hex[:12]}})
        files.write(path, lambda file: file.write(text.encode()))
    return str(json.loads(path.read_text())["wandb"]["id"])


class TensorBoardTracker:
    """Event files for TensorBoard."""

    def __init__(self, writer: Any, setting: RunContext) -> None:
        self.writer, self.setting = writer, setting
        self.first_split = setting.experiment.evaluate.splits[0]

    def tell(self, news: TrackingEvent) -> None:
        for name, value in metrics(news, self.first_split).items():
            by = news.bytes if name.startswith("by_bytes/") else news.step
            self.writer.add_scalar(name, value, by)
        for split in dict.fromkeys(sample["split"] for sample in news.samples):
            samples = [s for s in news.samples if s["split"] == split]
            self.writer.add_text(f"samples/{split}", _markdown(samples), news.step)
            if news.step == 0:
                self._pictures(split, samples)

    def _pictures(self, split: str, samples: list[dict[str, Any]]) -> None:
        import numpy as np

        for sample in samples:
            found = picture(self.setting.split(split), sample["row"])
            if found is not None:
                self.writer.add_image(f"samples/{split}/{sample['row']}", np.asarray(found), 0, dataformats="HWC")

    def end(self, summary: Mapping[str, Any], evaluations: list[dict[str, Any]]) -> None:
        self.writer.add_text("summary", f"```json\n{json.dumps(dict(summary), indent=1)}\n```", summary["rounds"])


@contextmanager
def _tensorboard(setting: RunContext, folder: Path, step: int) -> Iterator[TensorBoardTracker]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder / "tensorboard", purge_step=step + 1 if step else None) as writer:
        yield TensorBoardTracker(writer, setting)


def _markdown(samples: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    lines = [names, ["---"] * len(names), *([_cell(sample.get(name)) for name in names] for sample in samples)]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _cell(value: Any) -> Any:
    return "; ".join(str(item) for item in value) if isinstance(value, list) else value
