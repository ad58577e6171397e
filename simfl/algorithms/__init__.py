"""Federated algorithms: one paper, one file."""

from __future__ import annotations

from simfl.algorithms.base import Algorithm
from simfl.registry import Registry

ALGORITHMS: Registry[Algorithm] = Registry(
    {
        "clgecl": "simfl.algorithms.clgecl:Clgecl",
        "crd": "simfl.algorithms.crd:Crd",
        "ditto": "simfl.algorithms.ditto:Ditto",
        "dkd": "simfl.algorithms.dkd:Dkd",
        "dp_clgecl": "simfl.algorithms.dp_clgecl:DpClgecl",
        "dp_fedavg": "simfl.algorithms.dp_fedavg:DpFedAvg",
        "dp_sgd": "simfl.algorithms.dp_sgd:DpSgd",
        "fedavg": "simfl.algorithms.fedavg:FedAvg",
        "feddat": "simfl.algorithms.feddat:FedDat",
        "feddc": "simfl.algorithms.feddc:FedDC",
        "feddyn": "simfl.algorithms.feddyn:FedDyn",
        "fedexp": "simfl.algorithms.fedexp:FedExP",
        "fedkd": "simfl.algorithms.fedkd:FedKD",
        "fedex_lora": "simfl.algorithms.fedex_lora:FedExLora",
        "fedit": "simfl.algorithms.fedit:FedIT",
        "fednova": "simfl.algorithms.fednova:FedNova",
        "fedp3": "simfl.algorithms.fedp3:FedP3",
        "fedprox": "simfl.algorithms.fedprox:FedProx",
        "fedrep": "simfl.algorithms.fedrep:FedRep",
        "fedsa_lora": "simfl.algorithms.fedsa_lora:FedSaLora",
        "fedsam": "simfl.algorithms.fedsam:FedSam",
        "ffa_lora": "simfl.algorithms.ffa_lora:FfaLora",
        "flexlora": "simfl.algorithms.flexlora:FlexLora",
        "flora": "simfl.algorithms.flora:FLora",
        "group_dp": "simfl.algorithms.group_dp:GroupDp",
        "hetlora": "simfl.algorithms.hetlora:HetLora",
        "krum": "simfl.algorithms.robust:Krum",
        "lora_fair": "simfl.algorithms.lora_fair:LoraFair",
        "median": "simfl.algorithms.robust:Median",
        "moon": "simfl.algorithms.moon:Moon",
        "per_fedavg": "simfl.algorithms.per_fedavg:PerFedAvg",
        "rbla": "simfl.algorithms.rbla:Rbla",
        "rolora": "simfl.algorithms.rolora:RoLora",
        "scaffold": "simfl.algorithms.scaffold:Scaffold",
        "similarity_preserving": "simfl.algorithms.similarity_preserving:SimilarityPreserving",
        "slora": "simfl.algorithms.slora:SLora",
        "soft_targets": "simfl.algorithms.soft_targets:SoftTargets",
    }
)
