"""Settings of a sweep without effect, because others of the same sweep override them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from simfl import config
from simfl.errors import ConfigError

NAME = "name"  # of the experiment: each run has the name of its values instead


def check_paths(given: Mapping[str, object], where: str, paths: Sequence[str]) -> None:
    """Refuse a path that sets what a later one sets too, such as `local.steps` and `phases.0.local.steps`.

    Args:
        given: The experiment.
        where: The part of the sweep file that the paths are in, for error messages.
        paths: Dotted paths, in the order in which they are set.

    Raises:
        ConfigError: A path has no effect, or is the name of the experiment.
    """
    for number, path in enumerate(paths):
        refuse_name(path, f"{where}.")
        for later in paths[number + 1 :]:
            if is_hidden(given, path, [later]):
                raise ConfigError(f"{where}.{path}: has no effect, because {where}.{later} sets the same")


def refuse_name(path: str, where: str) -> None:
    """Raise ConfigError for the path of the experiment's name; `where` stands before it."""
    if path == NAME:
        raise ConfigError(f"{where}{NAME}: has no effect, because each run is named by its values of what varies")


def is_hidden(given: Mapping[str, object], path: str, later: Iterable[str]) -> bool:
    """Return whether later paths set all that a path sets: the same setting, or the section that it is in."""
    above = [whole for other in later for whole in _whole(given, other)]
    return all(any(own == one or own.startswith(f"{one}.") for one in above) for own in _whole(given, path))


def _whole(given: Mapping[str, object], path: str) -> list[str]:
    """Return the full paths that a short path stands for; itself if it stands for none, which is refused later."""
    try:
        return config.resolve(given, path)
    except ConfigError:
        return [path]
