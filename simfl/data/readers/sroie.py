"""SROIE as federated receipt question answering: four fields of a receipt, asked for in several wordings.

Huang et al. 2019 (ICDAR 2019, robust reading challenge on scanned receipts). The set has no official test part:
companies with many receipts are providers, whose receipts go to train, valid and test; the others are `unseen`.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from simfl.constraints import Count, Fraction
from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256, stored
from simfl.data.io.images import shrink, truncated_files
from simfl.data.readers import receipts
from simfl.data.readers.receipts import FIELDS, Receipt, letters
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng

EDITION = 1
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


@dataclass(frozen=True)
class Sroie(Data):
    """Receipts of the ICDAR 2019 challenge: company, date, address and total; companies are providers."""

    path: str  # a folder with img/, box/ and key/; ~ and $VARIABLES are followed
    image_size: Count = 224  # pages are stored grey, squeezed to this many pixels square
    min_receipts: Count = 5  # a company with fewer is not a provider and goes to `unseen`
    valid: Fraction = 0.1  # share of a provider's receipts, at least one
    test: Fraction = 0.2  # likewise
    wordings: Count = 1  # questions on each field of a training receipt, each worded differently; other splits have one

    def load(self, cache: Path) -> Dataset:
        self._check()
        root = Path(os.path.expandvars(self.path)).expanduser()
        found = receipts.files(root)
        sources = [path for parts in found.values() for path in parts.values()]
        return stored(cache, "sroie", EDITION, self, sources, lambda: self._build(found))

    def _check(self) -> None:
        if not 1 <= self.wordings <= len(WORDINGS["total"]):
            raise ConfigError(f"data.wordings: {self.wordings} given, allowed: 1 to {len(WORDINGS['total'])}")
        if not (self.valid > 0 and self.test > 0 and self.valid + self.test < 1):
            raise ConfigError(f"data.valid, data.test: {self.valid}, {self.test} given, above 0, below 1 together")

    def _build(self, found: Mapping[str, Mapping[str, Path]]) -> Dataset:
        if not found:
            raise DataError(f"data.path: {self.path} holds no receipt")
        every = [receipts.read(name, dict(parts)) for name, parts in found.items()]
        same = duplicates(every)
        with truncated_files(read=False):
            splits = {name: self._split(name, held) for name, held in self._assign(same).items()}
        pictures = hashlib.sha256(b"".join(r.image.read_bytes() for r in every)).hexdigest()
        digest = content_sha256(splits, also=f"{pictures} {self.image_size}")
        return Dataset("sroie", splits, digest, self._card(every, same, splits))

    def _assign(self, same: list[list[Receipt]]) -> dict[str, list[tuple[str, Receipt]]]:
        """The receipts of each split with their provider, sorted by name; the same receipt twice is in one split."""
        companies = defaultdict(list)
        for group in same:
            companies[group[0].company].append(group)
        parts: dict[str, list[tuple[str, Receipt]]] = {name: [] for name in SPLITS}
        for company, groups in companies.items():
            for part, group in zip(self._parts_of(company, groups), groups, strict=True):
                parts[part] += [(company, receipt) for receipt in group]
        return {part: sorted(held, key=lambda pair: pair[1].name) for part, held in parts.items()}

    def _parts_of(self, company: str, groups: list[list[Receipt]]) -> list[str]:
        """The split of each group of a company, drawn by its name alone; too few for three splits are all train."""
        if not company or sum(map(len, groups)) < self.min_receipts:
            return ["unseen"] * len(groups)
        num_test, num_valid = (max(1, round(share * len(groups))) for share in (self.test, self.valid))
        if num_test + num_valid >= len(groups):
            return ["train"] * len(groups)
        ranks = rng("sroie", "split", company).permutation(len(groups))
        return ["test" if r < num_test else "valid" if r < num_test + num_valid else "train" for r in ranks]

    def _split(self, name: str, held: list[tuple[str, Receipt]]) -> Split:
        wordings = self.wordings if name == "train" else 1
        rows = [row for at, (_, receipt) in enumerate(held) for row in questions(receipt, at, wordings)]
        pages = [
            {
                "id": receipt.name,
                "provider": company,
                "words": receipt.words,
                "boxes": receipt.boxes,
                "image": shrink(receipt.image, self.image_size, "L", "PNG"),
                "width": self.image_size,
                "height": self.image_size,
            }
            for company, receipt in held
        ]
        return Split(pa.Table.from_pylist(rows, QUESTIONS), pa.Table.from_pylist(pages, DOCUMENTS))

    def _card(self, every: list[Receipt], same: list[list[Receipt]], splits: Mapping[str, Split]) -> dict[str, object]:
        pages = {name: split.documents for name, split in splits.items() if split.documents is not None}
        return {
            "licence": "ICDAR 2019 SROIE challenge: research use",
            "receipts": {name: table.num_rows for name, table in pages.items()},
            "providers": {name: len(table["provider"].unique()) for name, table in pages.items()},
            "questions": {name: len(split) for name, split in splits.items()},
            "dropped": {f"{field} not given": sum(field not in r.key for r in every) for field in FIELDS},
            "same_receipt": [[r.name for r in group] for group in same if len(group) > 1],
            "image": f"grey, squeezed to {self.image_size}x{self.image_size}, PNG",
            "boxes": "of words, interpolated in their line's box by their share of its characters",
        }


def duplicates(every: Iterable[Receipt]) -> list[list[Receipt]]:
    """The receipts in groups that must not be divided, because they may be one sale scanned twice.

    Two are taken for the same if their transcripts agree in letters and digits, or if company, date and total do (a
    second scan is transcribed anew, with slips). That also joins two alike sales of one day, which does no harm.
    """
    group_of: dict[str, list[Receipt]] = {}
    for receipt in every:
        traits = list(_traits(receipt))
        joined: list[Receipt] = []
        for group in {id(group_of[t]): group_of[t] for t in traits if t in group_of}.values():
            joined += group
        joined.append(receipt)
        for member in joined:
            group_of |= dict.fromkeys(_traits(member), joined)
    groups = {id(group): sorted(group, key=lambda r: r.name) for group in group_of.values()}
    return sorted(groups.values(), key=lambda group: group[0].name)


def _traits(receipt: Receipt) -> Iterator[str]:
    yield f"name {receipt.name}"
    if receipt.transcript:
        yield f"transcript {receipt.transcript}"
    if all(letters(receipt.key.get(field, "")) for field in ("company", "date", "total")):
        yield " ".join(["key", *(letters(receipt.key[field]) for field in ("company", "date", "total"))])


def questions(receipt: Receipt, document: int, wordings: int) -> Iterator[dict[str, object]]:
    """One question for each filled-in field and wording; which wordings is drawn by the receipt's name."""
    for field in FIELDS:
        if field in receipt.key:
            for number in rng("sroie", "wording", receipt.name, field).permutation(len(WORDINGS[field]))[:wordings]:
                yield {
                    "id": f"{receipt.name}-{field}-{number}",
                    "document": document,
                    "question": WORDINGS[field][number],
                    "answers": [receipt.key[field]],
                    "field": field,
                }
