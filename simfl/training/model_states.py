"""State of the models that a client update runs, besides their trained parameters: each model has its own.

Passes of one step may run several models through the same layers: the trained one, a personal one, the received one, a
mentor. Passes with equal sources and branch run one model (`Forward.model`). A model's state follows its first pass in
training mode of each local step; further passes of the step, such as those at perturbed weights, read it and leave it.

    model            state at the start of a client update                      at its end
    main             averaged tensors: received; personal ones: the client's    uploaded; stored
    received         that of `main`                                             dropped; its passes change nothing
    state:<key>      that of `main` at the end of the client's last update      -
    any other        the client's own; at first the initial one of the phase,   stored by the client
                     or that of `main` if the algorithm has `start: received`
    of the mentor    the client's own; at first that of the mentor network      stored by the client
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from simfl.protocol import Forward, Parts, State, Weights
from simfl.stacking import select_namespace
from simfl.training.context import PhaseContext
from simfl.transport.upload import BUFFERS

NAMESPACE = "model_state"  # of what a client stores of models other than `main`
LAST = "last"  # state of `main` at the end of the client's last update
RECEIVED, STORED = "received", "state:"  # beginnings of sources


@dataclass(frozen=True)
class PassState:
    """State that one pass of a model runs with. `followed`: what the pass leaves is the model's new state."""

    tensors: Weights = field(default_factory=dict)
    followed: bool = False

    def keep(self, replaced: Weights) -> None:
        """Take over the tensors that a pass has put in place of others; the others it may have changed in place."""
        for name, tensor in replaced.items():
            if tensor.data_ptr() != self.tensors[name].data_ptr():
                self.tensors[name].copy_(tensor)


NO_STATE = PassState()


@dataclass
class ModelStates:
    """The states of one client's models while it trains.

    Attributes:
        context: The phase.
        states: State by model; tensors are changed in place or replaced.
        moved: Models whose state has followed a pass of the current local step.
    """

    context: PhaseContext
    states: dict[str, Weights]
    moved: set[str] = field(default_factory=set)

    @property
    def main(self) -> Weights:
        """The state of the model that is uploaded."""
        return self.states[self.context.main_model]

    def begin_step(self) -> None:
        """Let each model's state follow its next pass in training mode."""
        self.moved.clear()

    def of(self, forward: Forward, perturbed: bool) -> PassState:
        """Return the state that a pass runs with.

        `perturbed`: the pass runs at weights that the model does not keep.
        """
        state = self.states[forward.model]
        if not state or not forward.train:
            return PassState(state)
        if perturbed or forward.model in self.moved:
            return PassState(_copied(state))
        self.moved.add(forward.model)
        return PassState(state, followed=True)


def has_states(context: PhaseContext) -> bool:
    """Return whether a network has tensors that follow the model from step to step."""
    networks = (context.network, context.mentor)
    return any(network is not None and network.carried for network in networks)


def initial_states(context: PhaseContext, received: Parts, client_state: State) -> dict[str, Weights]:
    """Return the states of all models of a client at the start of its update; no tensor is shared or changed later."""
    main = main_state(context, received, client_state)
    found = {context.main_model: _copied(main)}
    for forward in context.phase.algorithm.forwards().values():
        if forward.model not in found:
            found[forward.model] = _copied(state_of(context, forward, main, client_state))
    return found


def main_state(context: PhaseContext, received: Parts, client_state: State) -> Weights:
    """Return the state of the model `main`: received tensors, the client's own, and the network's initial ones."""
    stored = select_namespace(client_state, "buffers").get("weights", {})
    network = context.network
    return {**network.tensors(network.carried), **received.get(BUFFERS, {}), **stored}


def state_of(context: PhaseContext, forward: Forward, main: Weights, client_state: State) -> Weights:
    """Return the state of the model of a pass, before an update or for evaluation."""
    network, stored = context.network_of(forward), select_namespace(client_state, NAMESPACE)
    if network is not context.network:
        return stored.get(forward.model) or network.tensors(network.carried)
    if forward.model in (context.main_model, RECEIVED):
        return main
    if forward.model.startswith(STORED):
        return stored.get(LAST) or main
    begins_received = getattr(context.phase.algorithm, "start", "") == RECEIVED
    return stored.get(forward.model) or (main if begins_received else network.tensors(network.carried))


def stored_states(context: PhaseContext, states: Mapping[str, Weights]) -> State:
    """Return what the client stores of the states at the end of an update, by group of its namespace."""
    found: State = {}
    forwards = context.phase.algorithm.forwards().values()
    if needs_last(context):
        found[LAST] = states[context.main_model]
    for forward in forwards:
        if forward.train and forward.model not in (context.main_model, RECEIVED):
            found[forward.model] = states[forward.model]
    return {f"{NAMESPACE}:{name}": tensors for name, tensors in found.items() if tensors}


def needs_last(context: PhaseContext) -> bool:
    """Return whether the client keeps the state with which its update ended."""
    previous = any(one.model.startswith(STORED) for one in context.phase.algorithm.forwards().values())
    return bool(context.network.carried) and (previous or context.keeps_local_model)


def _copied(tensors: Mapping[str, Tensor]) -> Weights:
    return {name: t.detach().clone() for name, t in tensors.items()}
