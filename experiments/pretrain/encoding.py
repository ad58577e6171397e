"""Encoding of words on the device as model inputs, in the format of the `docvqa` objective, vectorized.

question words, page words  ->  tokens … </s> padding          boxes: the whole page for the question, 0 for the end
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tables import WordTable
from torch import Tensor

ANSWER = 16  # tokens of an answer, its end included
END = 1


@dataclass(frozen=True)
class QuestionBatch:
    """Documents with one question each, as word indices of a table: `question` [B, Q], `words` [B, W], `answer` [B, A].

    An index of −1 is no word. `marks` are tokens appended to a word (0 is none); `boxes` [B, W, 4] are in thousandths.
    The question runs from "question:" to "context:".
    """

    question: Tensor
    question_marks: Tensor
    words: Tensor
    marks: Tensor
    boxes: Tensor
    answer: Tensor


@dataclass(frozen=True)
class EncodedBatch:
    """Model inputs: `input_ids`, `attention_mask` [B, L], `boxes` [B, L, 4], `labels` [B, ANSWER] (−100: padding)."""

    input_ids: Tensor
    attention_mask: Tensor
    boxes: Tensor
    labels: Tensor
    source: QuestionBatch

    def inputs(self) -> dict[str, Tensor]:
        """Return the keyword arguments of the model, without the page."""
        return {name: getattr(self, name) for name in ("input_ids", "boxes", "attention_mask", "labels")}


def encode(table: WordTable, batch: QuestionBatch, length: int) -> EncodedBatch:
    """Encode a batch, truncated to `length` tokens, the end included."""
    whole = torch.tensor([0, 0, 1000, 1000], device=batch.boxes.device).expand(*batch.question.shape, 4)
    words = torch.cat([batch.question, batch.words], 1)
    marks = torch.cat([batch.question_marks, batch.marks], 1)
    boxes = torch.cat([whole, batch.boxes], 1)
    ids, owner, visible = tokens(table, words, marks, length)
    token_boxes = boxes.gather(1, owner[..., None].expand(-1, -1, 4))
    token_boxes = token_boxes * (visible & (ids != END))[..., None]
    answer, _, answered = tokens(table, batch.answer, torch.zeros_like(batch.answer), ANSWER)
    return EncodedBatch(ids, visible.long(), token_boxes, torch.where(answered, answer, -100), batch)


def tokens(table: WordTable, words: Tensor, marks: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens [B, length] of words [B, W] with end 1 and padding 0, the word of each, and the padding mask."""
    plain = table.length[words.clamp_min(0)] * (words >= 0)
    size = plain + (marks > 0)
    reach = size.cumsum(1)
    position = torch.arange(length, device=words.device).expand(len(words), length).contiguous()
    owner = torch.searchsorted(reach, position, right=True).clamp_max(words.shape[1] - 1)
    inside = position - (reach - size).gather(1, owner)
    word = words.gather(1, owner).clamp_min(0)
    ids = table.tokens[word, inside.clamp(0, table.tokens.shape[1] - 1)].long()
    ids = torch.where(inside >= plain.gather(1, owner), marks.gather(1, owner), ids)
    end = reach[:, -1:].clamp_max(length - 1)
    ids = torch.where(position == end, END, torch.where(position < end, ids, 0))
    return ids, owner, position <= end
