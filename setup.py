"""What pyproject.toml cannot say: the experiments at the top of the repository travel in the wheel, for `simfl new`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExperiments(build_py):
    """Copies experiments/**/*.yaml into the package that is built; an editable install reads them where they are."""

    def run(self) -> None:
        super().run()
        for path in () if self.editable_mode else sorted(Path("experiments").rglob("*.yaml")):
            target = Path(self.build_lib, "simfl", path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


setup(cmdclass={"build_py": BuildWithExperiments})
