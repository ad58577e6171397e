"""One thread, no network, one Ray for all tests that want it."""

from __future__ import annotations

import os

os.environ.update(
    {
        "OMP_NUM_THREADS": "1",  # before torch is imported
        "HF_HUB_OFFLINE": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "offline",
    }
)

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
REPOSITORY = Path(__file__).parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use Ray are marked `ray`; those for a GPU are skipped where there is none."""
    for item in items:
        if "ray_session" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove COLUMNS, which parallel workers of pytest have, and which narrows tables."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray with 3 CPUs, started for the first test that asks and shared by all."""
    import ray

    from simfl.runtime.ray import faststart
    from simfl.runtime.ray.faststart.patches import patched

    os.environ.pop("RAY_AUTH_MODE", None)  # a test of submission in this process may have set it
    with patched() if faststart.enabled() else nullcontext():
        ray.init(
            "local",
            num_cpus=3,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=256 * 2**20,
        )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; tests on it are skipped where it is absent."""
    folder = Path(os.environ.get("SIMFL_REAL_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set SIMFL_REAL_DATA")
    return folder
