"""Questions about composed pictures of six scenes: a benchmark that builds itself."""

from simfl.data.benchmarks.scene_vqa.benchmark import SceneVqa

__all__ = ["SceneVqa"]
