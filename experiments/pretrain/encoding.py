"""From words on the device to what the model reads: the `docvqa` objective's format, vectorised.

question words, page words  ->  pieces … </s> padding          boxes: the whole page for the question, 0 for the end
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tables import Table
from torch import Tensor

ANSWER = 16  # pieces of an answer, its end included
END = 1


@dataclass(frozen=True)
class Asked:
    """Documents with a question each, as rows of a table (−1 none): `question` [B, Q], `words` [B, W], `answer` [B, A].

    `marks` are pieces glued to a word's end (0 is none); `boxes` [B, W, 4] in thousandths. The question runs from
    "question:" to "context:".
    """

    question: Tensor
    question_marks: Tensor
    words: Tensor
    marks: Tensor
    boxes: Tensor
    answer: Tensor


@dataclass(frozen=True)
class Encoded:
    """`input_ids`, `attention_mask` [B, L], `boxes` [B, L, 4], `labels` [B, ANSWER] (−100 is padding); their source."""

    input_ids: Tensor
    attention_mask: Tensor
    boxes: Tensor
    labels: Tensor
    asked: Asked

    def inputs(self) -> dict[str, Tensor]:
        """The model's keyword arguments, without the page."""
        return {name: getattr(self, name) for name in ("input_ids", "boxes", "attention_mask", "labels")}


def encode(table: Table, asked: Asked, length: int) -> Encoded:
    """Cut to `length` pieces, the end included."""
    whole = torch.tensor([0, 0, 1000, 1000], device=asked.boxes.device).expand(*asked.question.shape, 4)
    words = torch.cat([asked.question, asked.words], 1)
    marks = torch.cat([asked.question_marks, asked.marks], 1)
    boxes = torch.cat([whole, asked.boxes], 1)
    ids, owner, visible = pieces(table, words, marks, length)
    token_boxes = boxes.gather(1, owner[..., None].expand(-1, -1, 4))
    token_boxes = token_boxes * (visible & (ids != END))[..., None]
    answer, _, answered = pieces(table, asked.answer, torch.zeros_like(asked.answer), ANSWER)
    return Encoded(ids, visible.long(), token_boxes, torch.where(answered, answer, -100), asked)


def pieces(table: Table, words: Tensor, marks: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pieces [B, length] of words [B, W], closed by 1, padded by 0; the word each belongs to; which are not padding."""
    plain = table.length[words.clamp_min(0)] * (words >= 0)
    size = plain + (marks > 0)
    reach = size.cumsum(1)
    position = torch.arange(length, device=words.device).expand(len(words), length).contiguous()
    owner = torch.searchsorted(reach, position, right=True).clamp_max(words.shape[1] - 1)
    inside = position - (reach - size).gather(1, owner)
    word = words.gather(1, owner).clamp_min(0)
    ids = table.pieces[word, inside.clamp(0, table.pieces.shape[1] - 1)].long()
    ids = torch.where(inside >= plain.gather(1, owner), marks.gather(1, owner), ids)
    end = reach[:, -1:].clamp_max(length - 1)
    ids = torch.where(position == end, END, torch.where(position < end, ids, 0))
    return ids, owner, position <= end
