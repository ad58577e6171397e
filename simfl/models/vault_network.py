"""The network of VAuLT: BERT over the question, its states in the place of ViLT's word embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertPooler

from simfl.models.bert_parts import Text
from simfl.models.heads import HeadSpec
from simfl.models.transformer import additive, initialise
from simfl.models.vilt_network import ViltNetwork
from simfl.protocol import Task


class Bert(Text):
    """BERT with the pooler that its checkpoints have and nothing here reads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.pooler = BertPooler(config)


class VaultNetwork(ViltNetwork):
    """A ViLT that reads BERT's states."""

    def __init__(
        self, vilt: Mapping[str, Any], bert: Mapping[str, Any], heads: Mapping[str, HeadSpec], task: Task, *,
        frozen_text: bool, dropout: float, bf16: bool,
    ) -> None:  # fmt: skip
        super().__init__(vilt, heads, task, dropout=dropout, bf16=bf16)
        config = BertConfig(**bert, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        self.bert, self.frozen_text = Bert(config), frozen_text
        initialise(self.bert, config.hidden_size)

    def train(self, mode: bool = True) -> VaultNetwork:
        """Training mode; a frozen BERT does not follow."""
        super().train(mode)
        if self.frozen_text:
            self.bert.eval()
        return self

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """After each feed-forward's residual: in BERT behind its norm, in ViLT before the next."""
        width = self.config.hidden_size
        text = [] if self.frozen_text else [(layer, width) for layer in self.bert.layer]
        return text + super().adapter_places()

    def blocks(self) -> list[str]:
        """Names of the transformer blocks: BERT's, then ViLT's."""
        return [f"bert.layer.{number}" for number in range(len(self.bert.layer))] + super().blocks()

    def words(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """BERT's last states [B·P, L, D]."""
        return self.bert(input_ids, additive(mask))
