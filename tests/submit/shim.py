"""Fake Slurm commands for one machine, to be put on PATH.

A job is a process, and its state is a file. `squeue` prints RUNNING until the process has ended.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

SBATCH = """#!/bin/bash
# sbatch --parsable, the script on standard input
cat > "$SHIM/job.sh"
grep '^#SBATCH' "$SHIM/job.sh" > "$SHIM/options"
value() { sed -n "s/^#SBATCH --$1=//p" "$SHIM/options"; }
export SLURM_JOB_ID=$((4000 + RANDOM % 5000)) SLURM_NNODES=$(value nodes) SLURMD_NODENAME=node0
export SLURM_CPUS_ON_NODE=1
log=$(value output | sed "s/%j/$SLURM_JOB_ID/")
cd "$(value chdir)"
setsid bash "$SHIM/job.sh" >> "$log" 2>&1 < /dev/null &
echo $! > "$SHIM/pid.$SLURM_JOB_ID"
echo "$SLURM_JOB_ID;cluster"
"""

SQUEUE = """#!/bin/bash
while [ "$#" -gt 1 ]; do [ "$1" = --jobs ] && job=$2; shift; done
kill -0 "$(cat "$SHIM/pid.$job")" 2>/dev/null && echo "RUNNING|$job|None"
true
"""


def lay(folder: Path) -> dict[str, str]:
    """Write the commands to a folder, and return the environment that contains it."""
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SHIM": str(folder)}
