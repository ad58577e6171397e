"""Options of `simfl submit` that the job passes on. Imports nothing heavy, because the command line needs it first."""

from __future__ import annotations

from dataclasses import dataclass

from simfl.errors import ConfigError


@dataclass(frozen=True)
class ExecutionOptions:
    """Options of `simfl run` and `simfl sweep` that the job passes on."""

    workers: str | None = None  # number of Ray workers, or of concurrent runs; None: auto
    only: tuple[str, ...] = ()  # patterns of names: the runs of a sweep to execute; none: all
    gpus_per_run: float | None = None  # of a sweep
    cpus_per_run: int | None = None  # of a sweep
    trace: bool = False  # write a timeline of each run

    @property
    def arguments(self) -> list[str]:
        """Arguments of `simfl`."""
        numbers = {
            "--workers": self.workers, "--gpus-per-run": self.gpus_per_run, "--cpus-per-run": self.cpus_per_run
        }  # fmt: skip
        found = [part for name, value in numbers.items() if value is not None for part in (name, str(value))]
        found += [part for pattern in self.only for part in ("--only", pattern)]
        return [*found, *(["--profile"] if self.trace else [])]

    def check(self, is_sweep: bool) -> None:
        """Raise ConfigError for an option of sweeps that is given with a run."""
        given = {"--only": self.only, "--gpus-per-run": self.gpus_per_run, "--cpus-per-run": self.cpus_per_run}
        for name, value in given.items() if not is_sweep else ():
            if value not in (None, ()):
                raise ConfigError(f"{name}: has no effect on a run; it selects or places the runs of a sweep")
