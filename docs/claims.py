"""Claims of the five papers: a literal table, which `make_claims.py` compares with stored rows.

A claim states what a paper says, the figure that it prints, and the evidence: two rows of a table of results, or a
figure that `simfl plan` computes. The verdict is never written here; a test named in the evidence computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

NUM_SEEDS = 5  # of a sweep that is run for a claim


@dataclass(frozen=True)
class Better:
    """One setting has a higher score than another.

    Test: with stored scores of examples the hierarchical bootstrap over seeds and examples, with printed means and
    deviations Welch's t-test over seeds; Holm's correction over all such claims.
    """

    sweep: str  # name of stored rows, or marker of a table of the paper's README
    higher: str  # variant
    lower: str  # variant
    metric: str
    lower_metric: str = ""  # empty: the same

    @property
    def metrics(self) -> tuple[str, str]:
        """The score of the higher and of the lower variant."""
        return self.metric, self.lower_metric or self.metric


@dataclass(frozen=True)
class Close:
    """Two settings have scores that differ by less than a margin.

    Test: the 95 % interval of the difference over seeds lies within the margin (holds) or outside (does not hold).
    """

    sweep: str
    one: str  # variant
    other: str  # variant
    metric: str
    margin: float


@dataclass(frozen=True)
class Printed:
    """A printed figure is that of a plan, in a row of the table of docs/explanation/fidelity.md.

    Test: the figures differ by at most one unit of the last printed digit, since some papers cut digits.
    """

    experiment: str  # first column, without backticks
    figure: str  # second column


Evidence = Better | Close | Printed


@dataclass(frozen=True)
class Claim:
    """A claim of a paper."""

    name: str  # unique
    sentence: str
    published: str  # the figures, with the number of the table
    evidence: Evidence
    reason: str = ""  # why it does not hold, or what limits the comparison

    @property
    def paper(self) -> str:
        """Folder of the paper below experiments/."""
        return PAPERS[self.name[:3]]


PAPERS = {"000": "fedocvqa", "001": "pfl_docvqa", "002": "fedocr", "003": "fedvqa", "004": "feddat"}
TITLES = {
    "fedocvqa": "FeDocVQA",
    "pfl_docvqa": "PFL-DocVQA competition",
    "fedocr": "FedOCR",
    "fedvqa": "FedVQA (FedP³)",
    "feddat": "FedDAT",
}
COMMANDS = {  # by paper and name of rows: how they are made
    ("fedocvqa", "bench"): "simfl sweep experiments/fedocvqa/bench.yaml",
    ("pfl_docvqa", "bench"): "simfl sweep experiments/pfl_docvqa/bench.yaml",
    ("pfl_docvqa", "long"): "simfl sweep experiments/pfl_docvqa/long.yaml",
    ("fedocr", "long"): "simfl sweep experiments/fedocr/bench.yaml --set experiment=long.yaml",
    ("fedvqa", "bench"): "simfl sweep experiments/fedvqa/bench.yaml",
    ("feddat", "bench"): "simfl sweep experiments/feddat/bench.yaml",
    ("feddat", "vault"): "simfl sweep experiments/feddat/bench.yaml --set experiment=small_vault.yaml",
    ("feddat", "albef"): "simfl sweep experiments/feddat/bench.yaml --set experiment=small_albef.yaml",
    ("pfl_docvqa", "claims"): "simfl sweep experiments/pfl_docvqa/claims.yaml",
    ("pfl_docvqa", "private"): "–",
    ("fedocr", "claims"): "simfl sweep experiments/fedocr/claims.yaml",
    ("fedvqa", "claims"): "simfl sweep experiments/fedvqa/claims.yaml",
    ("feddat", "claims"): "simfl sweep experiments/feddat/claims.yaml",
    ("fedocvqa", "claims"): "–",
}
MIB = "The printed MB are MiB, about .35 more than weights and running statistics."
HEAD = "The paper counts the head of .62 M, which is personal and never sent."
LOW = "Scores of the small benchmark lie below the most frequent answer."
PRIVATE = "The small benchmark has no private rows that learn."

CLAIMS = (
    Claim(
        "000-partition-10", "Ten clients are divided into 1, 4 and 5 over three data sets", "1 / 4 / 5 (Table 2)",
        Printed("fedocvqa/fedavg_k10", "clients of WTQ / DocVQA / TabFact"),
    ),
    Claim(
        "000-partition-30", "Thirty clients are divided into 2, 13 and 15", "2 / 13 / 15 (Table 2)",
        Printed("fedocvqa/fedavg_k30", "clients of WTQ / DocVQA / TabFact"),
    ),
    Claim(
        "000-size", "The model has the 220 M values of T5-base", "220 M (text)",
        Printed("fedocvqa/fedavg_k10", "trained"),
        "The layout adds patches (.59 M), box tables (1.57 M), a token and distance tables.",
    ),
    Claim(
        "000-self-pretraining", "Federated self-pretraining raises the score", "37.65 against 35.04 (Table 4)",
        Better("bench", "self_pretraining", "fedavg", "anls"), LOW,
    ),
    Claim(
        "000-centralized", "Centralized training is above FedAvg", "53.16 against 46.54 (Table 3)",
        Better("bench", "centralized", "fedavg", "anls"), LOW,
    ),
    Claim(
        "000-more-clients", "FedAvg with 3 clients is above FedAvg with 30", "46.54 against 37.64 (Table 3)",
        Better("claims", "k3", "k30", "anls"),
    ),
    Claim(
        "000-participation", "Three of three clients per round are better than one", "46.54 against 35.04 (Table 3)",
        Better("claims", "k3", "k3_one", "anls"),
    ),
    Claim(
        "000-fedadam", "FedAdam is above FedAvgM in self-pretraining", "43.93 against 40.00, K = 10, C = .35 (Table 6)",
        Better("claims", "fsp_fedadam", "fsp_fedavgm", "anls"),
    ),
    Claim(
        "001-baseline-bytes", "The baseline of Track 1 communicates 44.65 GB", "44.65 GB (Table 2)",
        Printed("pfl_docvqa/track1_baseline", "total"),
    ),
    Claim(
        "001-lora-bytes", "LoRA with 7 rounds communicates 0.38 GB", "0.38 GB (Table 2)",
        Printed("pfl_docvqa/track1_lora", "total"),
    ),
    Claim(
        "001-tuned-bytes", "LoRA with two client updates communicates 55 MB", "55 MB (Table A2)",
        Printed("pfl_docvqa/track1_tuned", "total"),
    ),
    Claim(
        "001-nf4-bytes", "The same with NF4 communicates 7.7 MB", "7.7 MB (Table A2)",
        Printed("pfl_docvqa/track1_nf4", "total"),
    ),
    Claim(
        "001-shampoo-bytes", "FedShampoo communicates 10.01 GB", "10.01 GB (Table 2)",
        Printed("pfl_docvqa/track1_fedshampoo", "total"),
    ),
    Claim(
        "001-track2-bytes", "The baseline of Track 2 communicates 22.32 GB", "22.32 GB (Table 3)",
        Printed("pfl_docvqa/track2_baseline", "total"),
    ),
    Claim(
        "001-sigma-1", "A noise of 1.145 gives epsilon 1", "1.145 (code)",
        Printed("pfl_docvqa/track2_baseline", "sigma, epsilon 1"), "It costs epsilon 1.0057; epsilon 1 needs 1.1477.",
    ),
    Claim(
        "001-sigma-4", "A noise of 0.637 gives epsilon 4", "0.637 (code)",
        Printed("pfl_docvqa/track2_baseline privacy.epsilon=4", "sigma, epsilon 4"),
    ),
    Claim(
        "001-sigma-8", "A noise of 0.468 gives epsilon 8", "0.468 (code)",
        Printed("pfl_docvqa/track2_baseline privacy.epsilon=8", "sigma, epsilon 8"),
    ),
    Claim(
        "001-lora-below", "LoRA is below training of all parameters", ".8566 against .8873 (Table 2)",
        Better("bench", "baseline", "lora", "anls"),
    ),
    Claim(
        "001-tuned-above-lora", "One client and many local epochs are above LoRA with 7 rounds",
        ".8683 against .8566 (Table A2)", Better("bench", "lora_tuned", "lora", "anls"),
    ),
    Claim(
        "001-nf4-free", "NF4 costs less than 0.01 of the score", ".8673 against .8683 (Table A2)",
        Close("bench", "lora_nf4", "lora_tuned", "anls", 0.01),
    ),
    Claim(
        "001-shampoo-above", "FedShampoo is above the baseline", ".8891 against .8873 (Table 2)",
        Better("claims", "fedshampoo", "baseline", "anls"),
    ),
    Claim(
        "001-private-lora", "Under privacy LoRA is above the baseline", ".5854 against .4832, epsilon 1 (Table 3)",
        Better("private", "lora", "baseline", "anls"), PRIVATE,
    ),
    Claim(
        "001-private-clgecl", "DP-CLGECL is above the baseline", ".5724 against .4832, epsilon 1 (Table 3)",
        Better("private", "clgecl", "baseline", "anls"), PRIVATE,
    ),
    Claim(
        "001-private-epsilon", "The baseline's score rises from epsilon 1 to 8", ".4832 to .5132 (Table 3)",
        Better("private", "baseline_epsilon_8", "baseline", "anls"), PRIVATE,
    ),
    Claim(
        "002-aster-values", "ASTER has 20.99 M values", "20.99 M (Table 1)", Printed("fedocr/real_aster", "values"),
    ),
    Claim(
        "002-hash-1-values", "With ShuffleNet it has 13.34 M", "13.34 M (Table 1)",
        Printed("fedocr/real_hash_1", "values"),
    ),
    Claim(
        "002-hash-2-values", "Half of the weights are 6.70 M", "6.70 M (Table 1)",
        Printed("fedocr/real_hash_1_2", "values"),
    ),
    Claim(
        "002-hash-4-values", "A quarter is 3.38 M", "3.38 M (Table 1)", Printed("fedocr/real_hash_1_4", "values"),
    ),
    Claim(
        "002-hash-8-values", "An eighth is 1.72 M", "1.72 M (Table 1)", Printed("fedocr/real_hash_1_8", "values"),
    ),
    Claim(
        "002-aster-bytes", "A message of ASTER has 80.52 MB", "80.52 MB (Table 1)",
        Printed("fedocr/real_aster", "message"), MIB,
    ),
    Claim(
        "002-above-alone", "Federated training is above a client alone", "95.0 against 93.7, IIIT5K (Table 2)",
        Better("claims", "aster", "local", "test.accuracy", "test.local.accuracy"),
    ),
    Claim(
        "002-as-centralized", "Federated training is within 0.02 of centralized training",
        "95.0 and 95.0, IIIT5K (Table 2)", Close("claims", "aster", "centralized", "test.accuracy", 0.02),
    ),
    Claim(
        "002-hash-below", "An eighth of the weights is below all of them", "86.6 against 92.9, IIIT5K (Table 2)",
        Better("long", "hash_1", "hash_1_8", "accuracy"), "Clients by kind of picture; those of the paper are IID.",
    ),
    Claim(
        "003-above-alone", "FedAvg's local models are above models trained alone, on their own scenes",
        "45.67 against 43.50, mean of four (Table 2)",
        Better("bench", "fedavg", "local", "local.accuracy"),
    ),
    Claim(
        "003-centralized", "Centralized training is above FedAvg on the seen scenes",
        "50.84 against 45.67, mean of four (Table 2)", Better("bench", "centralized", "fedavg", "accuracy"),
    ),
    Claim(
        "003-moon", "MOON is above FedAvg on unseen scenes", "33.52 against 32.24, mean of two (Table 2)",
        Better("bench", "moon", "fedavg", "unseen.accuracy"),
    ),
    Claim(
        "003-fedp3-printed", "FedP³ with λ = 1 is above FedAvg on the clients' own scenes",
        "46.67 against 45.67, mean of four (Table 2)", Better("bench", "fedp3", "fedavg", "local.accuracy"),
    ),
    Claim(
        "003-fedp3-unseen-printed", "FedP³ with λ = 1 is above FedAvg on unseen scenes",
        "34.39 against 32.24, mean of two (Table 2)", Better("bench", "fedp3", "fedavg", "unseen.accuracy"),
    ),
    Claim(
        "003-fedp3", "FedP³ with a chosen λ is above FedAvg on the clients' own scenes",
        "46.67 against 45.67, mean of four (Table 2)", Better("claims", "fedp3", "fedavg", "local.accuracy"),
    ),
    Claim(
        "003-fedp3-unseen", "Personal models of FedP³ with a chosen λ are above FedAvg's on unseen scenes",
        "34.39 against 32.24, mean of two (Table 2)", Better("claims", "fedp3", "fedavg", "unseen.local.accuracy"),
    ),
    Claim(
        "004-adapter-values", "A message of adapters (ViLT) has .89 M values", ".89 M (Table 2)",
        Printed("feddat/domain:vilt_adapter", "values per message"),
    ),
    Claim(
        "004-lora-values", "A message of LoRA (ViLT) has .60 M values", ".60 M (Table 2)",
        Printed("feddat/domain:vilt_lora", "values per message"), "LoRA has .59 M, and the biases of q and v.",
    ),
    Claim(
        "004-vault-values", "A message of adapters (VAuLT) has 1.79 M values", "1.79 M (Table 2)",
        Printed("feddat/domain:vault_adapter", "values per message"),
    ),
    Claim(
        "004-albef-values", "A message of adapters (ALBEF) has 2.86 M values", "2.86 M (Table 2)",
        Printed("feddat/domain:albef_adapter", "values per message"), HEAD,
    ),
    Claim(
        "004-feddat-vilt", "FedDAT is above shared adapters (ViLT)", "61.11 against 57.13 (Table 2)",
        Better("bench", "feddat", "adapter", "personal.accuracy"),
        "FedDAT takes two optimizer steps a batch; see the row with equal steps.",
    ),
    Claim(
        "004-feddat-vault", "FedDAT is above shared adapters (VAuLT)", "55.88 against 51.73 (Table 2)",
        Better("vault", "feddat", "adapter", "personal.accuracy"),
    ),
    Claim(
        "004-feddat-albef", "FedDAT is above shared adapters (ALBEF)", "64.36 against 59.81 (Table 2)",
        Better("albef", "feddat", "adapter", "personal.accuracy"),
    ),
    Claim(
        "004-full", "Training of all parameters is above FedDAT (ViLT)", "63.55 against 61.11 (Table 2)",
        Better("bench", "full", "feddat", "personal.accuracy"), "Sixty steps with heads from random weights.",
    ),
    Claim(
        "004-adapter-lora", "Shared adapters are above LoRA (ViLT)", "57.13 against 51.07 (Table 2)",
        Better("bench", "adapter", "lora", "personal.accuracy"),
    ),
    Claim(
        "004-adapter-alone", "Shared adapters are above adapters that are not communicated (ViLT)",
        "57.13 against 54.67 (Table 2)", Better("bench", "adapter", "adapter_local", "personal.accuracy"),
    ),
    Claim(
        "004-equal-steps", "FedDAT is above adapters with as many optimizer steps (ViLT)", "a control, not printed",
        Better("claims", "feddat", "adapter_steps", "personal.accuracy"),
    ),
)  # fmt: skip
