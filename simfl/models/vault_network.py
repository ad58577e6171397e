"""The network of VAuLT: BERT over the question, whose states replace ViLT's word embeddings."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertPooler

from simfl.models.heads import HeadSpec
from simfl.models.transformer import BertEncoder, additive_mask, init_weights
from simfl.models.vilt_network import ViltNetwork
from simfl.protocol import Task


class BertWithPooler(BertEncoder):
    """BERT with the pooler that its checkpoints have; its output is not used here."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.pooler = BertPooler(config)


class VaultNetwork(ViltNetwork):
    """A ViLT that reads BERT's states."""

    def __init__(
        self, vilt: Mapping[str, int], bert: Mapping[str, int], heads: Mapping[str, HeadSpec], task: Task, *,
        frozen_text: bool, dropout: float, bf16: bool,
    ) -> None:  # fmt: skip
        super().__init__(vilt, heads, task, dropout=dropout, bf16=bf16)
        config = BertConfig(**bert, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        self.bert, self.frozen_text = BertWithPooler(config), frozen_text
        init_weights(self.bert, config.hidden_size)

    def train(self, mode: bool = True) -> VaultNetwork:
        """Set the training mode; a frozen BERT stays in evaluation mode."""
        super().train(mode)
        if self.frozen_text:
            self.bert.eval()
        return self

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """Return the layers that take a bottleneck and their width: BERT's (after the norm), then ViLT's blocks."""
        width = self.config.hidden_size
        text = [] if self.frozen_text else [(layer, width) for layer in self.bert.layer]
        return text + super().adapter_places()

    def blocks(self) -> list[str]:
        """Return the names of the transformer blocks: BERT's, then ViLT's."""
        return [f"bert.layer.{number}" for number in range(len(self.bert.layer))] + super().blocks()

    def words(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return BERT's last states [B·P, L, D]."""
        return self.bert(input_ids, additive_mask(mask))
