"""Trackers of a run, opened by the driver and imported if requested: Weights & Biases, TensorBoard, Prometheus."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image

from simfl import config
from simfl.data.base import Split
from simfl.errors import ConfigError
from simfl.experiment import Experiment, Wandb
from simfl.run_context import RunContext
from simfl.runs.environment import commit_of_simfl
from simfl.runs.folder import CHECKPOINTS, PARTITION, JsonObject, read_json, write_json
from simfl.runs.tables import TableRow
from simfl.safe_text import mask_secrets
from simfl.tracking import prometheus
from simfl.tracking.events import AXES, TrackingEvent, metrics
from simfl.tracking.prometheus import MetricSource, RunMetrics

if TYPE_CHECKING:
    import wandb
    from torch.utils.tensorboard import SummaryWriter

STATE_FILE = "tracking.json"  # in the run folder: what a resumed run needs to continue the tracked run
SWEEP_SETTINGS = "sweep"  # in W&B's config: the run's values of the settings that its sweep varies
SUMMARY = "run"  # prefix of the values of summary.json, some of which have the names of metrics (bytes, rounds)
IMAGE_PIXELS = 512  # longest side of a logged image


class Tracker(Protocol):
    """A receiver of the metrics of a run."""

    def log(self, event: TrackingEvent) -> None:
        """Log the results of a round."""

    def finish(self, summary: JsonObject, evaluations: list[TableRow]) -> None:
        """Log the summary and all evaluation rows of the run."""


def check(experiment: Experiment, joined: bool = False) -> None:
    """Check that the requested trackers are installed and can log in.

    Args:
        experiment: The experiment.
        joined: Whether this process has joined a cluster of Ray that exports metrics.

    Raises:
        ConfigError: A package or an API key is missing, or an address cannot be used.
    """
    requested = experiment.tracking
    for package, wanted in (("wandb", requested.wandb), ("tensorboard", requested.tensorboard)):
        if wanted and importlib.util.find_spec(package) is None:
            raise ConfigError(f"tracking.{package}: the package is not installed; pip install {package}")
    if requested.wandb is not None and requested.wandb.mode == "online" and not _has_key():
        raise ConfigError("tracking.wandb.mode: online, but there is no API key; run `wandb login`, or set offline")
    if requested.prometheus is not None:
        prometheus.check(requested.prometheus, joined)


@contextmanager
def opened(
    context: RunContext, folder: Path, step: int, source: MetricSource, on_message: Callable[[str], None]
) -> Iterator[list[Tracker]]:
    """Open the trackers that the experiment requests for the block.

    Args:
        context: The experiment and its data.
        folder: The run folder.
        step: Finished rounds of a resumed run; what was logged after them is replaced.
        source: Source of metrics that events do not hold.
        on_message: Receives messages for the user.
    """
    experiment, trackers = context.experiment, list[Tracker]()
    with ExitStack() as stack:
        if experiment.tracking.wandb is not None:
            run = stack.enter_context(_wandb(experiment.tracking.wandb, experiment, folder, on_message))
            trackers.append(WandbTracker(run, context, folder))
        if experiment.tracking.tensorboard:
            trackers.append(stack.enter_context(_tensorboard(context, folder, step)))
        if experiment.tracking.prometheus is not None:
            values = RunMetrics(experiment, folder.name, step, source.load)
            trackers.append(
                stack.enter_context(prometheus.opened(experiment.tracking.prometheus, values, source.push, on_message))
            )
        yield trackers


class WandbTracker:
    """A run of Weights & Biases."""

    def __init__(self, run: wandb.Run, context: RunContext, folder: Path) -> None:
        """Declare the axes of the metrics, and log the partition as an artifact."""
        self.run, self.context, self.folder = run, context, folder
        settings = context.experiment.tracking.wandb
        self.artifacts = settings is not None and settings.artifacts
        run.define_metric("round", hidden=True)
        for name in ("rounds", "timings", "busy", "memory", "use", "evaluations", "samples"):
            run.define_metric(f"{name}/*", step_metric="round")
        for prefix, axis in AXES.items():
            run.define_metric(axis, hidden=True)
            run.define_metric(f"{prefix}/*", step_metric=axis)
        if self.artifacts:
            self._log_artifact("partition", folder / PARTITION)

    def log(self, event: TrackingEvent) -> None:
        """Log metrics, and sample predictions as a table per split."""
        row: dict[str, Any] = dict(metrics(event, self.context.experiment.evaluate.splits[0]))
        for split, samples in _by_split(event.samples).items():
            row[f"samples/{split}"] = self._sample_table(samples)
        self.run.log(row)

    def _sample_table(self, samples: Sequence[TableRow]) -> wandb.Table:
        import wandb

        images = [example_image(self.context.split(s["split"]), s["row"]) for s in samples]
        image_column = {} if images[0] is None else {"image": [wandb.Image(image) for image in images]}
        columns = image_column | {name: [_cell(sample.get(name)) for sample in samples] for name in _columns(samples)}
        return wandb.Table(columns=list(columns), data=[list(cells) for cells in zip(*columns.values(), strict=True)])

    def finish(self, summary: JsonObject, evaluations: list[TableRow]) -> None:
        """Log the evaluation table, the summary and, of a completed run, the last checkpoint."""
        import wandb

        if evaluations:
            names = list(evaluations[0])
            rows = [[row.get(name) for name in names] for row in evaluations]
            self.run.log({"evaluations_table": wandb.Table(columns=names, data=rows)})
        self.run.summary.update({f"{SUMMARY}/{name}": value for name, value in summary.items() if name != "folder"})
        if self.artifacts and summary["status"] == "completed":
            newest = max((self.folder / CHECKPOINTS).iterdir())
            self._log_artifact("checkpoint", newest)

    def _log_artifact(self, kind: str, path: Path) -> None:
        """Log a file or a folder, without a copy: it does not change any more."""
        import wandb

        artifact = wandb.Artifact(f"{self.run.id}-{kind}", type=kind)
        (artifact.add_dir if path.is_dir() else artifact.add_file)(str(path), policy="immutable")
        self.run.log_artifact(artifact)


@contextmanager
def _wandb(
    requested: Wandb, experiment: Experiment, folder: Path, on_message: Callable[[str], None]
) -> Iterator[wandb.Run]:
    """Open a W&B run, or continue the one that the run folder names."""
    import wandb

    mode: Any = requested.mode or os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
    arguments: dict[str, Any] = {
        "entity": requested.entity,
        "project": requested.project,
        "group": requested.group,
        "job_type": requested.job_type,
        "notes": requested.notes,
        "tags": list(requested.tags),
        "id": _run_id(folder),
        "name": experiment.name,
        "dir": str(folder),
        "resume": "allow",
        "config": _config(experiment, dict(requested.varied)),
        "settings": wandb.Settings(console="off", silent=True),
    }
    with _masked_command_line():
        try:
            run = wandb.init(mode=mode, **arguments)
        except wandb.errors.Error as error:
            on_message(f"W&B cannot be reached ({str(error).splitlines()[0]}); the run is tracked offline")
            mode, run = "offline", wandb.init(mode="offline", **arguments)
    on_message(f"W&B: {run.url}" if mode == "online" else f"W&B {mode}: wandb sync {Path(run.dir).parent}")
    code = 1
    try:
        yield run
        code = 0
    finally:
        run.finish(exit_code=code)


def log_afterwards(
    experiment: Experiment,
    folder: Path,
    axis: str,
    rows: Sequence[Mapping[str, float]],
    on_message: Callable[[str], None],
) -> None:
    """Add metrics to the W&B run of a run that has ended, if there is one.

    Args:
        experiment: The experiment of the run.
        folder: Its folder.
        axis: Name of the metric that is the axis of the others, `PREFIX/NAME`; all have this prefix.
        rows: Metrics by name, one row for each value of the axis.
        on_message: Receives messages for the user.
    """
    requested = experiment.tracking.wandb
    if requested is None or not (folder / STATE_FILE).exists():
        return
    with _wandb(requested, experiment, folder, on_message) as run:
        run.define_metric(axis, hidden=True)
        run.define_metric(f"{axis.partition('/')[0]}/*", step_metric=axis)
        for row in rows:
            run.log(dict(row))


@contextmanager
def _masked_command_line() -> Iterator[None]:
    """Hide passwords of URLs in the command line within the block: W&B stores its words when a run starts."""
    before = sys.argv
    sys.argv = [mask_secrets(word) for word in before]
    try:
        yield
    finally:
        sys.argv = before


def _config(experiment: Experiment, varied: JsonObject) -> JsonObject:
    """Return W&B's config: the experiment with its phases by number, since W&B filters by keys and not by positions."""
    mapping = config.to_mapping(experiment)
    phases = {str(number): phase for number, phase in enumerate(mapping["phases"])}
    commit, dirty = commit_of_simfl()
    return mapping | {"phases": phases, SWEEP_SETTINGS: varied, "simfl": {"commit": commit, "dirty": dirty}}


def _has_key() -> bool:
    import wandb

    return bool(wandb.login(prompt=False, verify=False))


def _run_id(folder: Path) -> str:
    """Return the id of the tracked run, kept in the run folder. DamagedFile if the file was altered."""
    path = folder / STATE_FILE
    if not path.exists():
        write_json(path, {"wandb": {"id": uuid.uuid4().hex[:12]}})
    return str(read_json(path)["wandb"]["id"])


class TensorBoardTracker:
    """Event files for TensorBoard. Steps are rounds; of `by_bytes/…`, bytes."""

    def __init__(self, writer: SummaryWriter, context: RunContext) -> None:
        """Take an open writer."""
        self.writer, self.context = writer, context
        self.first_split = context.experiment.evaluate.splits[0]

    def log(self, event: TrackingEvent) -> None:
        """Log metrics, sample predictions as text and, before the first round, the images of the samples."""
        for name, value in metrics(event, self.first_split).items():
            step = event.bytes if name.startswith("by_bytes/") else event.step
            self.writer.add_scalar(name, value, step)
        for split, samples in _by_split(event.samples).items():
            self.writer.add_text(f"samples/{split}", _markdown(samples), event.step)
            if event.step == 0:
                self._log_images(split, samples)

    def _log_images(self, split: str, samples: Sequence[TableRow]) -> None:
        import numpy as np

        for sample in samples:
            image = example_image(self.context.split(split), sample["row"])
            if image is not None:
                self.writer.add_image(f"samples/{split}/{sample['row']}", np.asarray(image), 0, dataformats="HWC")

    def finish(self, summary: JsonObject, evaluations: list[TableRow]) -> None:
        """Log the summary as text."""
        self.writer.add_text("summary", f"```json\n{json.dumps(dict(summary), indent=1)}\n```", summary["rounds"])


@contextmanager
def _tensorboard(context: RunContext, folder: Path, step: int) -> Iterator[TensorBoardTracker]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder / "tensorboard", purge_step=step + 1 if step else None) as writer:
        yield TensorBoardTracker(writer, context)


def example_image(split: Split, row: int) -> Image.Image | None:
    """Return an example's image, or the page that it asks about, scaled to at most 512 x 512 pixels; None without."""
    table, index = split.examples, row
    if split.documents is not None:
        table, index = split.documents, split.examples["document"][row].as_py()
    column = next((name for name in ("image", "image_path") if name in table.column_names), None)
    found = None if column is None else table[column][index].as_py()
    if found is None:
        return None
    image = Image.open(io.BytesIO(found) if isinstance(found, bytes) else found).convert("RGB")
    image.thumbnail((IMAGE_PIXELS, IMAGE_PIXELS))
    return image


def _by_split(samples: Sequence[TableRow]) -> dict[str, list[TableRow]]:
    groups: dict[str, list[TableRow]] = {}
    for sample in samples:
        groups.setdefault(sample["split"], []).append(sample)
    return groups


def _columns(samples: Sequence[TableRow]) -> list[str]:
    return list(dict.fromkeys(name for sample in samples for name in sample))


def _markdown(samples: Sequence[TableRow]) -> str:
    names = _columns(samples)
    rows = [[_cell(sample.get(name)) for name in names] for sample in samples]
    lines: list[list[object]] = [[*names], ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> object:
    return "; ".join(str(item) for item in value) if isinstance(value, list) else value
