"""Objectives: one task, one file."""

from __future__ import annotations

from simfl.objectives.base import Objective
from simfl.registry import Registry

OBJECTIVES: Registry[Objective] = Registry(
    {
        "chat": "simfl.objectives.chat:Chat",
        "classification": "simfl.objectives.classification:Classification",
        "docvqa": "simfl.objectives.docvqa:DocVqa",
        "layout_modeling": "simfl.objectives.self_pretraining:LayoutModeling",
        "mixed_modeling": "simfl.objectives.self_pretraining:MixedModeling",
        "ranking": "simfl.objectives.ranking:Ranking",
        "recognition": "simfl.objectives.recognition:Recognition",
        "spans": "simfl.objectives.spans:Spans",
        "text_classification": "simfl.objectives.text_classification:TextClassification",
        "text_layout_modeling": "simfl.objectives.self_pretraining:TextLayoutModeling",
        "text_modeling": "simfl.objectives.self_pretraining:TextModeling",
        "vqa": "simfl.objectives.vqa:Vqa",
        "word_labels": "simfl.objectives.word_labels:WordLabels",
    }
)
