"""The privacy statement of a run (`privacy.md`), for the people in the data.

It names, in this order: the adjacency with epsilon and delta, the unit, what is public, what is not covered, and who
must be trusted. Then it describes the mechanism, other views of the same run, and the randomness.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict

from simfl.experiment import Privacy
from simfl.privacy.budget import Budget
from simfl.privacy.randomness import KEY_FILE

UNITS = {
    "record": "A single training example.",
    "group": "A group of a client's data (such as all documents of one provider), as a whole.",
    "client": "A client, with all its data.",
}
ADJACENCY = {
    "add_remove": ("adding or removing the data of one unit", "one contains the unit's data and the other does not"),
    "zero_out": (
        "zeroing out the data of one unit (zero-out adjacency: the number of units is public)",
        "in one, the unit's data are replaced by an empty slot, whose update is zero",
    ),
}
NOT_HIDDEN = {
    "client": "the number of clients is visible in the release; privacy.min_clients, with clients_per_round or poisson,"
    " hides it",
    "record": "sampling rate and number of local steps follow the number of examples; privacy.min_examples makes them"
    " public",
}
OBSERVERS = {
    "averages": "The server, which sees single messages and knows which clients it samples. The guarantee holds against"
    " an observer of all models that clients receive and of the final model. A client knows its own noise and could"
    " subtract it from an average to which it contributed; clients are trusted not to.",
    "messages": "The clients, to follow the protocol. The guarantee also holds against the server, which sees every"
    " message and knows which clients it samples.",
}
SECURE_SERVER = (
    "The server, to follow the protocol: it is honest but curious, and sees the sum of a round's uploads and no single"
    " one. The clients, to add their share of the noise and not to give theirs to the server: each client that works"
    " with the server takes its share out of the noise, and as many of them as the threshold can unmask single"
    " uploads. The noise accounted for is that of the fewest survivors of a round, {survivors}. This run simulates the"
    " protocol and is no cryptographic implementation: its keys and masks protect nothing."
)
NOT_COVERED = (
    "Choices that were made by looking at these data outside of this run, such as learning rates, rounds and clip norms"
    " that were tuned on them, and other runs on the same data. The budgets of several runs add up.",
    "Information other than updates: which clients were sampled and when, numbers of examples, groups and local steps,"
    " sizes of messages under a codec of variable length, durations. The tables of the run (losses, scores, samples)"
    " are the simulator's view and must not be published as if they were private.",
    "That a run ended with an error: a client update that raises one (other than values that are not finite, which"
    " count as zero) ends the run, and its message may name the data at fault.",
    "Knowledge of the initial model: its weights, and a tokenizer or vocabulary, if private text was used for them.",
    "Facts about a unit that follow from the data of others, such as a layout that many providers share.",
    "Two units that belong to one person, or one unit at two clients: the guarantee is for each unit separately.",
)
FOR_TESTS = (
    "**For tests.** This run claims nothing: its noise follows from `privacy.noise_seed`, which is in its settings, and"
    " whoever reads these can remove it. What follows is what the same run would guarantee with a secret key."
)
ESTIMATE = (
    "**Estimate.** This is an estimate for a deployment with a cohort of {clients_per_round:,} of {clients:,} clients"
    " in each round, and no epsilon is claimed for the data of this run. The run trains fewer clients per round and"
    " adds the noise of the deployment's average to theirs, so its models may reveal its data. What follows is what"
    " the deployment would guarantee."
)
NONE = (
    "**None.** No noise is added to what the observers of this statement see, so epsilon is infinite: no data are"
    " protected, with or without clipping."
)
UNKNOWN = (
    "**None.** The accountant {accountant!r} finds no finite epsilon for this noise at delta {delta:g}, so nothing is"
    " claimed."
)


def statement(budget: Budget, charged: Mapping[int, int], ahead: bool = False) -> str:
    """Return the statement as Markdown.

    Args:
        budget: The privacy budget.
        charged: Charged rounds by phase.
        ahead: Whether these rounds are still to come.
    """
    privacy, rounds = budget.privacy, sum(charged.values())
    spent = budget.epsilon(charged, budget.claimed_view) if budget.noise_multiplier else math.inf
    when = (
        f"all {rounds} rounds, once they are finished" if ahead else f"the {rounds} round{'s' * (rounds != 1)} so far"
    )
    not_covered = ["**Not covered.**", "\n".join(_item(text) for text in NOT_COVERED)]
    paragraphs = ["# Privacy"]
    if privacy.deployment is not None:
        paragraphs.append(ESTIMATE.format(**asdict(privacy.deployment)))
    if privacy.adds_noise and privacy.noise_seed is not None:
        paragraphs.append(FOR_TESTS)
    if math.isfinite(spent):
        paragraphs += [_guarantee(budget, spent, when), f"**Unit.** {UNITS[privacy.unit]}", _public(budget)]
        paragraphs += [*not_covered, f"**Trusted.** {_trusted(budget)}{_key_holders(privacy)}"]
        paragraphs += [_mechanism(budget), _other_views(budget, charged), _randomness(privacy)]
    else:
        unknown = UNKNOWN.format(accountant=privacy.accountant, delta=privacy.delta)
        paragraphs += [unknown if budget.noise_multiplier else NONE, *not_covered]
    wrapped = [text if text.startswith(("#", "- ")) else textwrap.fill(text, 100) for text in paragraphs]
    return "\n\n".join(wrapped) + "\n"


def _guarantee(budget: Budget, spent: float, when: str) -> str:
    privacy, adjacency = budget.privacy, budget.scheme.adjacency
    change, difference = ADJACENCY[adjacency]
    limit = "" if privacy.epsilon is None or budget.view == "formula" else f", of a budget of {privacy.epsilon:g}"
    reason = (
        f" Adding and removing units is not claimed: {NOT_HIDDEN[privacy.unit]}."
        if adjacency != privacy.adjacency
        else ""
    )
    who, does = ("the run", "is") if privacy.deployment is None else ("the deployment", "would be")
    return (
        f"**Adjacency.** For {change}, {who} {does} ({spent:.4g}, {privacy.delta:g})-differentially private for"
        f" {when}{limit}. Compare two data sets that are equal except that {difference}. What {who} releases changes"
        f" the odds between the two by a factor of at most exp(epsilon) = {math.exp(min(spent, 700)):.3g}, except with"
        f" probability {privacy.delta:g}.{reason}"
    )


def _public(budget: Budget) -> str:
    """Name what the guarantee assumes to be known, and where it comes from."""
    privacy, population = budget.privacy, budget.scheme.population
    facts = ["all settings of the experiment but the key of the noise"]
    if privacy.min_clients is not None:
        declared = "min_clients" if privacy.deployment is None else "deployment.clients"
        facts.append(f"that there are at least {privacy.min_clients} clients (privacy.{declared})")
    else:
        facts.append(f"the number of clients ({population.num_clients})")
    if privacy.unit == "group" and privacy.group_rate is None and population.groups:
        declared = "privacy.min_groups" if privacy.min_groups is not None else "of the data"
        facts.append(f"the smallest number of groups of a client ({min(population.groups)}, {declared})")
    if privacy.unit == "record" and population.examples:
        if privacy.min_examples is not None:
            facts.append(f"that each client has at least {privacy.min_examples} examples (privacy.min_examples)")
        else:
            facts.append("the number of examples of each client")
    text = "; ".join(facts)
    return f"**Public.** {text[0].upper()}{text[1:]}."


def _trusted(budget: Budget) -> str:
    if not budget.scheme.discrete:
        return OBSERVERS[budget.claimed_view]
    fewest = ", ".join(str(one.survivors) for one in dict.fromkeys(budget.scheme.discrete))
    return SECURE_SERVER.format(survivors=fewest)


def _key_holders(privacy: Privacy) -> str:
    if privacy.secure or privacy.noise_seed is not None:
        return ""
    return f" Whoever can read `{KEY_FILE}` in the run folder: its keys remove the noise."


def _other_views(budget: Budget, charged: Mapping[int, int]) -> str:
    views = {"averages": "an observer of the models", "messages": "an observer of each client's messages"}
    values = [
        f"{views[view]}: {_epsilon(budget.epsilon(charged, view))}" for view in views if view != budget.claimed_view
    ]
    if budget.privacy.factorization is not None:
        return f"**Other views of the same run.** Epsilon for {'; for '.join(values)}."
    value, rate = _epsilon(budget.epsilon(charged, "formula")), budget.rate(budget.phases[0])
    formula = (
        f"The formula of PFL-DocVQA (Tito et al. 2024, theorem B.9) gives {value} for q = (K/N)·M/min|G| = {rate:.6g}."
        " This is a number to compare with published ones, and no guarantee: it assumes that units are sampled"
        " independently, but the units of a client are sampled together, so the contributions of its other units can"
        " reveal that the client was sampled."
    )
    bound = f"upper bounds by the accountant {budget.privacy.accountant!r}"
    return f"**Other views of the same run.** Epsilon for {'; for '.join(values)} ({bound}). {formula}"


def _epsilon(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite"


def _mechanism(budget: Budget) -> str:
    privacy, multipliers = budget.privacy, budget.scheme.multipliers(budget.noise_multiplier)
    clip = f"{privacy.clip:g} (then adapted to a quantile)" if privacy.adaptive else f"{privacy.clip:g}"
    what = "gradient" if privacy.unit == "record" else "whole update"
    where = "once by the server" if privacy.noise == "central" and privacy.unit != "record" else "by each client"
    if budget.scheme.discrete:
        return _integer_mechanism(budget)
    return (
        f"**Mechanism.** The unit's {what} is clipped to the norm {clip} and summed with others, and noise is added"
        f" {where}, before encoding. Noise multipliers (standard deviation over the largest change by one unit): of a"
        f" client's message {_epsilon(multipliers['message_multiplier'])}, of the released average"
        f" {_epsilon(multipliers['average_multiplier'])}.{_leaving(budget)}{_parts(privacy)}{_correlation(budget)}"
    )


def _leaving(budget: Budget) -> str:
    """Describe the noise of an average where clients may leave a round of secure aggregation."""
    secure = budget.scheme.secure
    if secure is None or secure.dropout == 0.0:
        return ""
    fewest = min(map(budget.scheme.fewest_uploads, budget.phases))
    return f" Clients may leave a round: that of the average is the noise of the fewest accepted uploads, {fewest}."


def _parts(privacy: Privacy) -> str:
    """Describe how the parts of an upload share one mechanism."""
    if not privacy.parts:
        return ""
    clips = ", ".join(
        f"{part!r} (clip norm {one.clip:g}{'' if one.share is None else f', share {one.share:g}'})"
        for part, one in privacy.parts.items()
    )
    separate = any(one.share is not None for one in privacy.parts.values())
    rule = "each part on its own, with noise by its share of the budget" if separate else "all parts together"
    return (
        f" Uploads have further parts: {clips}. The parts are one release with these multipliers: updates are clipped,"
        f" {rule}, after each part is divided by its clip norm (McMahan et al. 2018, arXiv 1812.06210)."
    )


def _correlation(budget: Budget) -> str:
    """Describe the factorization of each phase and the participation that the guarantee relies on."""
    factorization = budget.privacy.factorization
    if factorization is None:
        return ""
    phases = [budget.scheme.correlation(index) for index in range(len(budget.phases))]
    limits = "; ".join(
        f"{f'phase {index}: ' if len(phases) > 1 else ''}at most {one.participation.participations} of"
        f" {one.participation.rounds} rounds, at least {one.participation.separation} rounds apart"
        for index, one in enumerate(phases)
    )
    text = (
        " The noise of a round is correlated with that of the rounds before it, so that a part of it cancels in later"
        f" models: it is a row of C⁻¹Z, where C is the factorization {type(factorization).__name__.lower()!r} and Z"
        " independent. The noise multiplier is that of Z for one participation. Clients take turns, which sampling"
        f" enforces and the guarantee relies on. A client takes part in {limits}."
    )
    if all(one.amplified_by_sampling(budget.privacy.unit) for one in phases):
        return (
            f"{text} Sampling amplifies privacy (Choquette-Choo et al. 2023, theorem 5): every client belongs to one"
            " bin at random, and each round samples the clients of one bin independently, at a rate of"
            f" {max(one.bin_rate or 0.0 for one in phases):.4g}."
        )
    return f"{text} No amplification by sampling is claimed."


def _integer_mechanism(budget: Budget) -> str:
    privacy, noises = budget.privacy, dict.fromkeys(budget.scheme.discrete)
    grids = ", ".join(
        f"{one.sensitivity / one.levels:.6g} times the clip norm ({one.levels:,} steps, {one.dimension:,} coordinates)"
        for one in noises
    )
    return (
        f"**Mechanism.** The whole update of a client is clipped to the norm {privacy.clip:g}, rotated, and rounded to"
        f" integers whose norm is at most {grids}. Each client adds {privacy.mechanism.replace('_', ' ')} noise before"
        f" its upload is masked. Standard deviation of the noise in the sum over the clip norm: at least"
        f" {_epsilon(budget.noise_multiplier)}. The account is the published bound of this noise, rounding included."
    )


def _randomness(privacy: Privacy) -> str:
    if privacy.secure:
        return (
            "**Randomness.** Noise and sampling (of clients, groups and records) come from the system's random source"
            " and cannot be repeated. Noise is added in floating point, where theorems about real numbers hold"
            " approximately."
        )
    source = (
        "`privacy.noise_seed`; samples follow from the experiment's seed"
        if privacy.noise_seed is not None
        else f"a key of 256 bits from the system's random source, which `{KEY_FILE}` in the run folder holds and which"
        " must stay secret"
    )
    if privacy.noise == "distributed":
        return (
            f"**Randomness.** Noise and sampling of clients are derived from {source}. The generator (Philox) is not a"
            " cryptographic one. Discrete Gaussian noise is sampled exactly; Skellam noise comes from numpy's Poisson"
            " sampler, which computes in floating point."
        )
    return (
        f"**Randomness.** Noise and sampling (of clients, groups and records) are derived from {source}. The generator"
        " (Philox) is not a cryptographic one, and noise is added in floating point, where theorems about real numbers"
        " hold approximately. `secure: true` draws everything from the system's random source."
    )


def _item(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="- ", subsequent_indent="  ")
