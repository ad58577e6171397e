"""Build step that pyproject.toml cannot express: the wheel contains the experiments, as templates for `simfl new`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExperiments(build_py):
    """Copy experiments/**/*.yaml into the built package; an editable install reads them from the repository."""

    def run(self) -> None:
        super().run()
        for path in () if self.editable_mode else sorted(Path("experiments").rglob("*.yaml")):
            target = Path(self.build_lib, "simfl", path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


setup(cmdclass={"build_py": BuildWithExperiments})
