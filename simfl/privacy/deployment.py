"""Estimates for deployments with larger cohorts than those that a simulation trains (`privacy.deployment`).

A run trains K clients per round, and the server adds the noise that a deployment with a cohort of C clients would add
to its average: sigma·S / (M·C) in place of sigma·S / (M·K). The models have the noise of the deployment, and the signal
of K clients. Epsilon is that of the deployment, which samples C of N clients as the phase samples: a fixed number or,
with `poisson`, each at the rate C/N. It bounds nothing for the data of the run, whose clients have C/K times the
weight. In pfl-research, the same scaling of the noise is called `noise_cohort_size`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simfl.experiment import Deployment, Phase, Privacy

ESTIMATED = (
    "epsilon is an estimate for a deployment with {clients_per_round:,} of {clients:,} clients per round"
    " (privacy.deployment); none is claimed for the data of this run"
)
PREFIX = "deployment_"  # of columns and metrics with an epsilon that is not that of the run


def deployed_phases(phases: Sequence[Phase], deployment: Deployment | None) -> tuple[Phase, ...]:
    """Return the phases with the cohorts of the deployment; unchanged without one."""
    if deployment is None:
        return tuple(phases)
    count, rate = deployment.clients_per_round, deployment.clients_per_round / deployment.clients
    return tuple(
        replace(phase, poisson=rate)
        if phase.poisson is not None
        else replace(phase, clients_per_round=count, participation=None)
        for phase in phases
    )


def deployed_privacy(privacy: Privacy) -> Privacy:
    """Return the settings by which a deployment is accounted: its number of clients is a public bound."""
    if privacy.deployment is None or privacy.unit != "client" or privacy.adjacency != "add_remove":
        return privacy
    return replace(privacy, min_clients=privacy.deployment.clients)


def prefix(privacy: Privacy) -> str:
    """Return the prefix of every epsilon in tables: that of a deployment is never called `epsilon` alone."""
    return "" if privacy.deployment is None else PREFIX
