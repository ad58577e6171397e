"""SROIE as federated question answering on receipts: four fields of a receipt, asked for in several wordings.

Huang et al. 2019 (ICDAR 2019, robust reading challenge on scanned receipts). The set has no official test part:
companies with many receipts are providers, whose receipts are divided among train, valid and test; the others form
`unseen`.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from simfl.constraints import Fraction, PositiveInt
from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.images import resize_image
from simfl.data.readers.sroie_format import FIELDS, Receipt, ReceiptFiles, find_receipts, normalize, read_receipt
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng

VERSION = 1
SPLITS = ("train", "valid", "test", "unseen")
WORDINGS = {
    "company": (
        "What is the name of the company?",
        "Which company issued this receipt?",
        "Who is the seller?",
        "Which shop is this receipt from?",
    ),
    "date": (
        "What is the date of this receipt?",
        "When was this receipt issued?",
        "On which date was the purchase made?",
        "What date is printed on the receipt?",
    ),
    "address": (
        "What is the address of the company?",
        "Where is the shop located?",
        "Which address is printed on the receipt?",
        "What is the seller's address?",
    ),
    "total": (
        "What is the total amount?",
        "How much was paid in total?",
        "What is the total of this receipt?",
        "Which amount is due?",
    ),
}
Provided = tuple[str, Receipt]  # a provider and one of its receipts


@dataclass(frozen=True)
class Sroie(Data):
    """Receipts of the ICDAR 2019 challenge: company, date, address and total; companies are providers."""

    path: str  # folder with img/, box/ and key/; ~ and $VARIABLES are expanded
    image_size: PositiveInt = 224  # pages are stored in grey, resized to this many pixels square
    min_receipts: PositiveInt = 5  # a company with fewer is not a provider and belongs to `unseen`
    valid: Fraction = 0.1  # share of a provider's receipts for validation, at least one
    test: Fraction = 0.2  # share of a provider's receipts for testing, at least one
    wordings: PositiveInt = 1  # differently worded questions on each field of a training receipt; other splits have one

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        self._check()
        files = find_receipts(Path(os.path.expandvars(self.path)).expanduser())
        sources = [path for parts in files.values() for path in parts.values()]
        return load_or_build(cache, "sroie", VERSION, self, sources, lambda: self._build(files))

    def _check(self) -> None:
        if not 1 <= self.wordings <= len(WORDINGS["total"]):
            raise ConfigError(f"data.wordings: {self.wordings} given, allowed: 1 to {len(WORDINGS['total'])}")
        if not (self.valid > 0 and self.test > 0 and self.valid + self.test < 1):
            given = f"{self.valid}, {self.test} given"
            raise ConfigError(f"data.valid, data.test: {given}, each must be above 0 and their sum below 1")

    def _build(self, files: Mapping[str, ReceiptFiles]) -> Dataset:
        if not files:
            raise DataError(f"data.path: {self.path} has no receipt")
        receipts = [read_receipt(name, parts) for name, parts in files.items()]
        groups = group_duplicates(receipts)
        splits = {name: self._split(name, provided) for name, provided in self._assign(groups).items()}
        images = hashlib.sha256(b"".join(receipt.image.read_bytes() for receipt in receipts)).hexdigest()
        digest = content_sha256(splits, also=f"{images} {self.image_size}")
        return Dataset("sroie", splits, digest, self._card(receipts, groups, splits))

    def _assign(self, groups: list[list[Receipt]]) -> dict[str, list[Provided]]:
        """Return the receipts of each split with their provider, sorted by name. Groups are not divided."""
        companies = defaultdict(list)
        for group in groups:
            companies[group[0].company].append(group)
        parts: dict[str, list[Provided]] = {name: [] for name in SPLITS}
        for company, company_groups in companies.items():
            for part, group in zip(self._splits_of(company, company_groups), company_groups, strict=True):
                parts[part] += [(company, receipt) for receipt in group]
        return {part: sorted(provided, key=lambda pair: pair[1].name) for part, provided in parts.items()}

    def _splits_of(self, company: str, groups: list[list[Receipt]]) -> list[str]:
        """Draw the split of each group of a company from its name; too few groups for three splits are all train."""
        if not company or sum(map(len, groups)) < self.min_receipts:
            return ["unseen"] * len(groups)
        num_test, num_valid = (max(1, round(share * len(groups))) for share in (self.test, self.valid))
        if num_test + num_valid >= len(groups):
            return ["train"] * len(groups)
        ranks = rng("sroie", "split", company).permutation(len(groups))
        return ["test" if r < num_test else "valid" if r < num_test + num_valid else "train" for r in ranks]

    def _split(self, name: str, provided: list[Provided]) -> Split:
        num_wordings = self.wordings if name == "train" else 1
        rows = [
            row for page, (_, receipt) in enumerate(provided) for row in make_questions(receipt, page, num_wordings)
        ]
        pages = [
            {
                "id": receipt.name,
                "provider": company,
                "words": receipt.words,
                "boxes": receipt.boxes,
                "image": resize_image(receipt.image, self.image_size, "L", "PNG"),
                "width": self.image_size,
                "height": self.image_size,
            }
            for company, receipt in provided
        ]
        return Split(pa.Table.from_pylist(rows, QUESTIONS), pa.Table.from_pylist(pages, DOCUMENTS))

    def _card(
        self, receipts: list[Receipt], groups: list[list[Receipt]], splits: Mapping[str, Split]
    ) -> dict[str, object]:
        pages = {name: split.documents for name, split in splits.items() if split.documents is not None}
        return {
            "licence": "ICDAR 2019 SROIE challenge: research use",
            "receipts": {name: table.num_rows for name, table in pages.items()},
            "providers": {name: len(table["provider"].unique()) for name, table in pages.items()},
            "questions": {name: len(split) for name, split in splits.items()},
            "dropped": {f"{field} not given": sum(field not in r.key for r in receipts) for field in FIELDS},
            "same_receipt": [[r.name for r in group] for group in groups if len(group) > 1],
            "image": f"grey, resized to {self.image_size}x{self.image_size}, PNG",
            "boxes": "of words, interpolated in their line's box by their share of its characters",
        }


def group_duplicates(receipts: Iterable[Receipt]) -> list[list[Receipt]]:
    """Group receipts that must not be divided among splits, because they may be one sale scanned twice.

    Two receipts count as duplicates if their transcripts agree in letters and digits, or if company, date and total do
    (a second scan is transcribed again, with errors). This also joins two similar sales of one day, which is harmless.
    """
    group_of: dict[str, list[Receipt]] = {}
    for receipt in receipts:
        keys = list(_duplicate_keys(receipt))
        joined: list[Receipt] = []
        for group in {id(group_of[key]): group_of[key] for key in keys if key in group_of}.values():
            joined += group
        joined.append(receipt)
        for member in joined:
            group_of |= dict.fromkeys(_duplicate_keys(member), joined)
    groups = {id(group): sorted(group, key=lambda r: r.name) for group in group_of.values()}
    return sorted(groups.values(), key=lambda group: group[0].name)


def _duplicate_keys(receipt: Receipt) -> Iterator[str]:
    yield f"name {receipt.name}"
    if receipt.transcript:
        yield f"transcript {receipt.transcript}"
    sale = [normalize(receipt.key.get(field, "")) for field in ("company", "date", "total")]
    if all(sale):
        yield " ".join(["key", *sale])


def make_questions(receipt: Receipt, document: int, num_wordings: int) -> Iterator[dict[str, object]]:
    """Yield a question for each available field and wording; the wordings are drawn by the receipt's name."""
    for field in FIELDS:
        if field in receipt.key:
            order = rng("sroie", "wording", receipt.name, field).permutation(len(WORDINGS[field]))
            for number in order[:num_wordings]:
                yield {
                    "id": f"{receipt.name}-{field}-{number}",
                    "document": document,
                    "question": WORDINGS[field][number],
                    "answers": [receipt.key[field]],
                    "field": field,
                }
