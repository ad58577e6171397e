"""Ray's start as one machine needs it: what is replaced is put back, and nothing is where Ray is not as it is known."""

from __future__ import annotations

import os

import pytest

from simfl.runtime.ray.faststart.patches import AGENTS, PORTS, lean

parameter = pytest.importorskip("ray._private.parameter")
services = pytest.importorskip("ray._private.services")
utils = pytest.importorskip("ray._private.utils")


def parts() -> list[object]:
    started = [services.start_api_server, services.start_raylet, services.get_node]
    return [parameter.RayParams.__init__, *started, utils.get_dashboard_dependency_error]


def test_what_is_replaced_is_put_back(monkeypatch):
    monkeypatch.delenv("SIMFL_NURSERY", raising=False)
    before = parts()
    with lean("/somewhere"):
        assert not set(map(id, parts())) & set(map(id, before))
        assert os.environ["SIMFL_NURSERY"] == "/somewhere"
    assert parts() == before
    assert "SIMFL_NURSERY" not in os.environ


def test_no_helper_is_asked_for_and_agents_have_ports_of_their_own():
    with lean():
        made = parameter.RayParams()
        assert (made.include_log_monitor, made.no_monitor) == (False, True)
        ports = [getattr(made, f"{agent.lower()}_port") for agent in AGENTS]
        assert len(set(ports)) == len(AGENTS)
        assert all(port in PORTS for port in ports)
        assert made.worker_path is None  # Ray's own
    with lean("/somewhere"):
        assert parameter.RayParams().worker_path.endswith("simfl/runtime/ray/faststart/forked_worker.py")


def test_an_unknown_ray_starts_as_it_does(monkeypatch):
    monkeypatch.delattr(services, "get_node")
    before = parameter.RayParams.__init__
    with lean("/somewhere"):
        assert parameter.RayParams.__init__ is before
