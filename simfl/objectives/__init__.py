"""Objectives by name."""

from __future__ import annotations

from simfl.objectives.base import Objective
from simfl.objectives.classification import Classification
from simfl.objectives.docvqa import DocVqa
from simfl.objectives.ranking import Ranking
from simfl.objectives.recognition import Recognition
from simfl.objectives.vqa import Vqa

OBJECTIVES: dict[str, type[Objective]] = {
    "classification": Classification,
    "docvqa": DocVqa,
    "ranking": Ranking,
    "recognition": Recognition,
    "vqa": Vqa,
}
