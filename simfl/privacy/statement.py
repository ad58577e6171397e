"""The privacy statement of a run (`privacy.md`): what is guaranteed, and what is not, for the people in the data."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping

from simfl.experiment import Privacy
from simfl.privacy.budget import Budget

UNITS = {
    "record": "every single training example",
    "group": "every group of a client's data (such as all documents of one provider), as a whole",
    "client": "every client, with all its data",
}
ADJACENCY = {
    "add_remove": "Compare two data sets that are equal except that one contains the unit's data and the other does"
    " not.",
    "zero_out": "Compare two data sets that are equal except that in one the unit's data are replaced by an empty slot,"
    " whose update is zero. The number of units is assumed to be public.",
}
OBSERVERS = {
    "averages": "The guarantee holds against an observer of all models that clients receive and of the final model."
    " The server, which sees single messages and knows which clients it samples, is trusted. A client knows its own"
    " noise and could subtract it from an average to which it contributed; clients are trusted not to.",
    "messages": "The guarantee also holds against the server, which sees every message and knows which clients it"
    " samples, provided that clients follow the protocol.",
    "formula": "Epsilon is the value of the formula of PFL-DocVQA (Tito et al. 2024, theorem B.9) for"
    " q = (K/N)·M/min|G|. The formula assumes that units are sampled independently. Here, the units of a client are"
    " sampled together, so the contributions of its other units can reveal that the client was sampled; the values in"
    " the next paragraph account for this.",
}
NOT_COVERED = (
    "Choices that were made by looking at these data outside of this run, such as learning rates, rounds and clip norms"
    " that were tuned on them, and other runs on the same data. The budgets of several runs add up.",
    "Information other than updates: which clients were sampled and when, numbers of examples, groups and local steps,"
    " sizes of messages under a codec of variable length, durations. The tables of the run (losses, scores, samples)"
    " are the simulator's view and must not be published as if they were private.",
    "Knowledge of the initial model: its weights, and a tokenizer or vocabulary, if private text was used for them.",
    "Facts about a unit that follow from the data of others, such as a layout that many providers share.",
    "Two units that belong to one person, or one unit at two clients: the guarantee is for each unit separately.",
)


def statement(budget: Budget, charged: Mapping[int, int], ahead: bool = False) -> str:
    """Return the statement as Markdown.

    Args:
        budget: The privacy budget.
        charged: Charged rounds by phase.
        ahead: Whether these rounds are still to come.
    """
    privacy, rounds = budget.privacy, sum(charged.values())
    spent = budget.epsilon(charged) if budget.noise_multiplier else math.inf
    when = (
        f"all {rounds} rounds, once they are finished" if ahead else f"the {rounds} round{'s' * (rounds != 1)} so far"
    )
    paragraphs = ["# Privacy", _guarantee(privacy, spent, when)]
    if math.isfinite(spent):
        paragraphs += [
            f"**Meaning.** {ADJACENCY[privacy.adjacency]} What the run releases changes the odds between the two by a"
            f" factor of at most exp(epsilon) = {math.exp(min(spent, 700)):.3g}, except with probability"
            f" {privacy.delta:g}.",
            f"**Observers.** {OBSERVERS[budget.view]}",
            _other_views(budget, charged),
            _mechanism(budget),
            _randomness(privacy),
        ]
    paragraphs += ["**Not covered.**", "\n".join(_item(text) for text in NOT_COVERED)]
    wrapped = [text if text.startswith(("#", "- ")) else textwrap.fill(text, 100) for text in paragraphs]
    return "\n\n".join(wrapped) + "\n"


def _guarantee(privacy: Privacy, spent: float, when: str) -> str:
    if not math.isfinite(spent):
        return (
            "**None.** No noise is added to what the observers of this statement see, so epsilon is infinite: no data"
            " are protected, with or without clipping."
        )
    return (
        f"**Protected.** {UNITS[privacy.unit][0].upper()}{UNITS[privacy.unit][1:]}, by"
        f" ({spent:.4g}, {privacy.delta:g})-differential privacy for {when}"
        + (f", of a budget of {privacy.epsilon:g}." if privacy.epsilon is not None else ".")
    )


def _other_views(budget: Budget, charged: Mapping[int, int]) -> str:
    views = {
        "averages": "an observer of the models",
        "messages": "an observer of each client's messages",
        "formula": "the formula of PFL-DocVQA",
    }
    values = [f"{views[view]}: {_epsilon(budget.epsilon(charged, view))}" for view in views if view != budget.view]
    bound = f"upper bounds by the accountant {budget.privacy.accountant!r}"
    return f"**Other views of the same run.** Epsilon for {'; for '.join(values)} ({bound})."


def _epsilon(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite"


def _mechanism(budget: Budget) -> str:
    privacy, multipliers = budget.privacy, budget.scheme.multipliers(budget.noise_multiplier)
    clip = f"{privacy.clip:g} (then adapted to a quantile)" if privacy.adaptive else f"{privacy.clip:g}"
    what = "gradient" if privacy.unit == "record" else "whole update"
    where = "once by the server" if privacy.noise == "central" and privacy.unit != "record" else "by each client"
    return (
        f"**Mechanism.** The unit's {what} is clipped to the norm {clip} and summed with others, and noise is added"
        f" {where}, before encoding. Noise multipliers (standard deviation over the largest change by one unit): of a"
        f" client's message {_epsilon(multipliers['message_multiplier'])}, of the released average"
        f" {_epsilon(multipliers['average_multiplier'])}. Sampling rate by the formula: q ="
        f" {budget.rate(budget.phases[0]):.6g}."
    )


def _randomness(privacy: Privacy) -> str:
    if privacy.secure:
        return (
            "**Randomness.** Noise and sampling come from the system's random source and cannot be repeated. Noise is"
            " added in floating point, where theorems about real numbers hold approximately."
        )
    return (
        "**Randomness.** Noise and sampling are derived from the run's seed, so that the run can be repeated: the"
        " guarantee is that of a simulation, and void against anyone who knows the seed. `secure: true` draws from the"
        " system's random source."
    )


def _item(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="- ", subsequent_indent="  ")
