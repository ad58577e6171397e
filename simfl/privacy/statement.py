"""What a run promises and what it does not, in words for those whose data it is."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping

from simfl.experiment import Privacy
from simfl.privacy.budget import Budget

WHO = {
    "record": "every single training example",
    "group": "every group of a client's data (such as all documents of one provider), whole",
    "client": "every client, with all that it holds",
}
ADJACENCY = {
    "add_remove": "The unit's data are in the training data or they are not; all else is the same.",
    "zero_out": "The unit's data are in the training data, or its place is there and its update is nothing; all else"
    " is the same. How many units there are is taken for public.",
}
TRUST = {
    "averages": "It holds against whoever sees the models that clients receive and the final model, every one of them."
    " The server, which sees single messages and knows whom it visits, is trusted. A client knows its own noise and"
    " could take it off an average that it took part in; clients are trusted not to.",
    "messages": "It holds against the server too, which sees every message and knows whom it visits, as long as clients"
    " do what they should.",
    "formula": "It is the figure of the formula of PFL-DocVQA (Tito et al. 2024, theorem B.9) for q = (K/N)·M/min|G|."
    " That formula takes units for sampled one by one. Here a client's units are sampled together, so what its other"
    " units do can give its visit away; the figures of the next paragraph do not assume that it does not.",
}
NOT_COVERED = (
    "Choices made by looking at these data outside of this run: learning rates, rounds and clips that were tuned on"
    " them, and other runs on the same data. Budgets of several runs add up.",
    "What is not an update: who was visited and when, numbers of examples, groups and local steps, sizes of messages"
    " under a codec of varying length, time taken. The run's own tables (losses, scores, samples) are the simulator's"
    " view and must not be handed out as if they were private.",
    "What the model knew before: its initial weights, and a tokenizer or vocabulary, if private text went into them.",
    "Facts about a unit that follow from the data of others, such as a layout that many providers share.",
    "Two units that are one person's, or a unit that is at two clients: the promise is to each unit alone.",
)


def statement(budget: Budget, charged: Mapping[int, int], ahead: bool = False) -> str:
    """The statement as Markdown; `charged`: rounds by phase, so far or, `ahead` of the run, all of them."""
    privacy, rounds = budget.privacy, sum(charged.values())
    spent = budget.epsilon(charged) if budget.noise_multiplier else math.inf
    when = f"all {rounds} rounds, when they are done" if ahead else f"the {rounds} round{'s' * (rounds != 1)} so far"
    paragraphs = ["# Privacy", _promise(privacy, spent, when)]
    if math.isfinite(spent):
        paragraphs += [
            f"**What that means.** {ADJACENCY[privacy.adjacency]} From what the run releases, nobody can tell which of"
            f" the two it was with odds more than exp(epsilon) = {math.exp(min(spent, 700)):.3g} times what they were,"
            f" but with probability {privacy.delta:g}.",
            f"**Against whom.** {TRUST[budget.view]}",
            _others(budget, charged),
            _how(budget),
            _randomness(privacy),
        ]
    paragraphs += ["**Not covered.**", "\n".join(_item(text) for text in NOT_COVERED)]
    wrapped = [text if text.startswith(("#", "- ")) else textwrap.fill(text, 100) for text in paragraphs]
    return "\n\n".join(wrapped) + "\n"


def _promise(privacy: Privacy, spent: float, when: str) -> str:
    if not math.isfinite(spent):
        return (
            "**None.** No noise is added to what this statement is asked about, so epsilon is infinite: nobody's data"
            " are hidden, clipped or not."
        )
    return (
        f"**Who is protected.** {WHO[privacy.unit][0].upper()}{WHO[privacy.unit][1:]}, by"
        f" ({spent:.4g}, {privacy.delta:g})-differential privacy for {when}"
        + (f", of a budget of {privacy.epsilon:g}." if privacy.epsilon is not None else ".")
    )


def _others(budget: Budget, charged: Mapping[int, int]) -> str:
    words = {
        "averages": "who sees the models alone",
        "messages": "who sees each client's messages",
        "formula": "the formula of PFL-DocVQA",
    }
    figures = [f"{words[view]}: {_figure(budget.epsilon(charged, view))}" for view in words if view != budget.view]
    bound = f"upper bounds by the accountant {budget.privacy.accountant!r}"
    return f"**Other views of the same run.** Epsilon for {'; for '.join(figures)} ({bound})."


def _figure(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite"


def _how(budget: Budget) -> str:
    privacy, effective = budget.privacy, budget.scheme.multipliers(budget.noise_multiplier)
    clip = f"{privacy.clip:g} (then adapting to a quantile)" if privacy.adaptive else f"{privacy.clip:g}"
    what = "gradient" if privacy.unit == "record" else "whole update"
    where = "by the server, once" if privacy.noise == "central" and privacy.unit != "record" else "by each client"
    return (
        f"**How.** The unit's {what} is clipped to norm {clip}, summed with others, and noised {where}, before it is"
        f" encoded. Noise multipliers (standard deviation over what one unit can change): of a client's message"
        f" {_figure(effective['message_multiplier'])}, of the average that is released"
        f" {_figure(effective['average_multiplier'])}. Sampling rate by the formula: q ="
        f" {budget.rate(budget.phases[0]):.6g}."
    )


def _randomness(privacy: Privacy) -> str:
    if privacy.secure:
        return (
            "**Randomness.** Noise and sampling come from the system's source and cannot be drawn again. Noise is added"
            " in floating point, where theorems about real numbers hold approximately."
        )
    return (
        "**Randomness.** Noise and sampling follow from the run's seed, so that the run can be repeated: this is a"
        " simulation's guarantee, void against whoever knows the seed. `secure: true` draws from the system's source."
    )


def _item(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="- ", subsequent_indent="  ")
