"""Objectives by name."""

from __future__ import annotations

from simfl.objectives.base import Objective
from simfl.objectives.classification import Classification
from simfl.objectives.docvqa import DocVqa
from simfl.objectives.ranking import Ranking
from simfl.objectives.recognition import Recognition
from simfl.objectives.self_pretraining import LayoutModeling, MixedModeling, TextLayoutModeling, TextModeling
from simfl.objectives.vqa import Vqa

OBJECTIVES: dict[str, type[Objective]] = {
    "classification": Classification,
    "docvqa": DocVqa,
    "layout_modeling": LayoutModeling,
    "mixed_modeling": MixedModeling,
    "ranking": Ranking,
    "recognition": Recognition,
    "text_layout_modeling": TextLayoutModeling,
    "text_modeling": TextModeling,
    "vqa": Vqa,
}
