"""A Ray that a run starts on its machine listens on loopback alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json
import os
from pathlib import Path
from simfl.runtime.ray import cluster

def listening():
    found = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                found[rest[5]] = local.rpartition(":")[0]
    return found

def own(session):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                for file in (folder / "fd").iterdir():
                    target = os.readlink(file)
                    if target.startswith("socket:["):
                        yield target[8:-1]
        except OSError:
            pass

with cluster.started(None):
    cluster.connect(None)
    addresses = listening()
    print(json.dumps(sorted({addresses[inode] for inode in own(os.getsid(0)) if inode in addresses})))
"""
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


@pytest.mark.ray
@pytest.mark.parametrize("plain", ["", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc")
def test_ray_of_a_run_listens_on_loopback_alone(plain: str, tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_ADDRESS": "", "SIMFL_PLAIN_RAY": plain, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=environment,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found, done.stderr
    assert set(found) <= set(LOOPBACK)
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
