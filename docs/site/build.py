"""Build the documentation site: `python docs/site/build.py`. No network is needed.

Each version has a folder of its own, site/VERSION; site/index.html lists them, the newest first. `--check` builds into
build/site and fails at any warning: links and anchors that lead nowhere, pages that no table of contents has.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

import stage  # noqa: E402

import simfl  # noqa: E402

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>simfl: versions of the documentation</title>
<body style="font: 1rem sans-serif; max-width: 40rem; margin: 4rem auto">
<h1>simfl</h1><p>Documentation of each version:</p><ul>
%s
</ul></body></html>
"""


def build(target: Path, work: Path) -> int:
    """Build one version into a folder, from sources and caches in `work`; every warning is an error."""
    if missing := stage.stage(work / "source"):
        print("links to missing files:\n  " + "\n  ".join(missing), file=sys.stderr)
        return 1
    options = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(HERE), "-d", str(work / "doctrees")]
    return subprocess.run([sys.executable, "-m", "sphinx", *options, str(work / "source"), str(target)]).returncode


def write_versions(site: Path) -> None:
    """Write the page that lists the versions that were built, the newest first."""
    names = [path.parent.name for path in site.glob("*/index.html")]
    names.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)], reverse=True)
    items = (f'<li><a href="{name}/index.html">{name}</a></li>' for name in names)
    (site / "index.html").write_text(PAGE % "\n".join(items), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Build the site, or check that it builds without a warning."""
    work = ROOT / "build/site"
    if "--check" in arguments:
        shutil.rmtree(work / "doctrees", ignore_errors=True)  # pages that are read from a cache give no warnings
        return build(work / "html", work)
    site = ROOT / "site"
    if code := build(site / simfl.__version__, work):
        return code
    write_versions(site)
    print(f"site/index.html: documentation of simfl {simfl.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
