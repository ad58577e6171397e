"""Install the wheel, the sdist and each extra into clean environments, and use them: `make test-wheel`.

Packages come from the configured index, in the versions of constraints.txt. A full installation takes minutes and about
a gigabyte. `--extras NAME,…` restricts the extras, `--extras ""` leaves them out.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
DEVELOPMENT = ("clusters", "dev")  # for contributors; CI installs them in the repository
MAX_BYTES = 2_500_000  # of wheel and sdist
SOURCES = ("simfl", "experiments", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # setuptools changes the arguments
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""


def call(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output; exit with its last lines if it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit("\n".join([f"failed: {' '.join(map(str, command))}", *(done.stdout + done.stderr).splitlines()[-15:]]))
    return done.stdout + done.stderr


def build(folder: Path) -> dict[str, Path]:
    """Build sdist and wheel from the committed files; return their paths."""
    source, out = folder / "source", folder / "dist"
    source.mkdir()
    out.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD", *SOURCES], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
    call(sys.executable, "-c", BUILD, out, cwd=source)
    found = {"sdist": next(out.glob("*.tar.gz")), "wheel": next(out.glob("*.whl"))}
    for kind, path in found.items():
        print(f"{kind}: {path.name}, {path.stat().st_size:,} bytes", flush=True)
        if path.stat().st_size > MAX_BYTES:
            sys.exit(f"{path.name} has more than {MAX_BYTES:,} bytes")
    return found


def install(python: Path, requirement: str, folder: Path) -> float:
    """Install a requirement in the pinned versions; return the seconds it took."""
    start = time.monotonic()
    call(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", requirement, cwd=folder)
    return time.monotonic() - start


def use(python: Path, folder: Path) -> None:
    """Write a new experiment with the installed command and run one round of it."""
    simfl = python.with_name("simfl")
    folder.mkdir()
    call(simfl, "new", "first.yaml", "--kind", "experiment", cwd=folder)
    shown = call(simfl, "run", "first.yaml", "--backend", "inline", "--set", "phases.0.rounds=1", cwd=folder)
    if "first: completed after 1 rounds" not in shown:
        sys.exit(f"the run did not complete:\n{shown}")


def check(name: str, path: Path, extras: list[str], folder: Path) -> None:
    """Check one distribution in an environment of its own, and then extras one after another."""
    environment = folder / f"venv-{name}"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    print(f"{name}: installed in {install(python, str(path), folder):.0f} s", flush=True)
    use(python, folder / f"use-{name}")
    print(f"{name}: {call(python.with_name('simfl'), '--version', cwd=folder).strip()} ran an experiment", flush=True)
    for extra in extras:
        seconds = install(python, f"{path}[{extra}]", folder)
        packages = [re.split(r"[=>\[ ]", one)[0] for one in EXTRAS[extra] if not one.startswith("simfl[")]
        call(python, "-m", "pip", "show", "--quiet", *packages, cwd=folder) if packages else None
        print(f"{name}[{extra}]: installed in {seconds:.0f} s", flush=True)


def main() -> None:
    """Parse the options and check all distributions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default=",".join(name for name in EXTRAS if name not in DEVELOPMENT))
    parser.add_argument("--only", choices=("sdist", "wheel"), help="one distribution; default: both")
    given = parser.parse_args()
    extras = [name for name in given.extras.split(",") if name]
    with tempfile.TemporaryDirectory(prefix="simfl-venvs-") as name:
        found = build(Path(name))
        for kind, path in found.items():
            if given.only in (None, kind):
                check(kind, path, extras if kind == "wheel" else [], Path(name))


if __name__ == "__main__":
    main()
