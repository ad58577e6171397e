"""The network of ALBEF for questions (Li et al. 2021): a question that looks at an image, an answer at both.

    image -> ViT -> states          question -> BERT, whose upper half looks at the image -> states
    answer -> BERT decoder, which looks at the question's states -> pieces; a list of answers is ranked by their chances

Shapes: B examples, L pieces of the question, K answers of an example, T pieces of an answer, A answers to rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertPredictionHeadTransform

from simfl.models.base import filled, mixed
from simfl.models.bert_parts import Text
from simfl.models.prompt import with_prompt
from simfl.models.t5_reader import causal
from simfl.models.transformer import MASKED, QUERIES_AND_VALUES, additive, initialise
from simfl.models.vit_network import ImageEncoder
from simfl.protocol import Outputs

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP
BERT_DIMS = (
    "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings",
    "type_vocab_size",
)  # fmt: skip


class PieceHead(nn.Module):
    """BERT's head over pieces; its matrix is the decoder's words. 622,650 parameters of its own."""

    def __init__(self, config: BertConfig, words: nn.Embedding) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.out = nn.Linear(config.hidden_size, config.vocab_size)
        self.out.weight = words.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """[…, D] to [..., V]."""
        return self.out(self.transform(hidden))


class AlbefNetwork(nn.Module):
    """Image encoder, question encoder, answer decoder, head; `features` are the question's first state [B, D]."""

    heads = ("head.*",)
    queries_and_values = (*QUERIES_AND_VALUES, "query", "value")
    lora_spares = (".crossattention.",)  # FedDAT's LoRA is in self-attention alone

    def __init__(self, dims: Mapping[str, Any], *, dropout: float, bf16: bool) -> None:
        super().__init__()
        self.image = ImageEncoder(dims, dropout, eps=1e-6)
        shared = {key: dims[key] for key in BERT_DIMS}
        config = BertConfig(**shared, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        config.num_hidden_layers = dims["text_layers"]
        self.question = Text(config, fusion=dims["fusion"])
        config.num_hidden_layers = dims["decoder_layers"]
        self.decoder = Text(config, fusion=0)
        self.head = PieceHead(config, self.decoder.embeddings.word_embeddings)
        self.prompts = nn.ModuleDict()
        self.width, self.bf16, self.start = dims["hidden_size"], bf16, 0  # the first piece is set with the tokenizer
        initialise(self, self.width)

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """After each feed-forward's residual: in the image before the next norm, in texts behind it."""
        return [(layer, self.width) for stack in self._stacks().values() for layer in stack]

    def prompt_places(self) -> dict[str, int]:
        """Among the image's states, as the question sees them."""
        return {"image": self.width}

    def blocks(self) -> list[str]:
        """Names of the transformer blocks: the image's, the question's, the answer's."""
        return [f"{path}.{n}" for path, stack in self._stacks().items() for n in range(len(stack))]

    def _stacks(self) -> dict[str, nn.ModuleList]:
        image, question, decoder = self.image.layers, self.question.layer, self.decoder.layer
        return {"image.layers": image, "question.layer": question, "decoder.layer": decoder}

    def forward(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor, labels: Tensor) -> Outputs:
        """Teacher-forced logits [B, K·T, V] of `labels` [B, K, T] (−100 is padding), for a question and an image.

        `input_ids`, `attention_mask` [B, L], `pixel_values` uint8 [B, 3, S, S]. `mask` [B, K·T] is 1 for real pieces.
        """
        with mixed(input_ids, self.bf16):
            states, real = self.read(input_ids, attention_mask, pixel_values)
            hidden = self.spell(labels, states, real)
            logits = self.head(hidden)
        return Outputs(logits.float(), states[:, 0].float(), hidden.float(), (labels >= 0).flatten(1).to(torch.float32))

    def read(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """States of the question [B, L, D] and the additive mask over them [B, 1, 1, L]."""
        mean, std = (filled(v, pixel_values, torch.float32)[:, None, None] for v in (MEAN, STD))
        pixels = (pixel_values.to(torch.float32) / 255.0 - mean) / std
        seen = with_prompt(self.prompts, "image", self.image.encode(pixels, nn.ModuleDict()))
        real = additive(attention_mask.to(torch.float32))
        return self.question(input_ids, real, seen), real

    def spell(self, labels: Tensor, states: Tensor, real: Tensor) -> Tensor:
        """The decoder's states [B, K·T, D] for answers `labels` [B, K, T]."""
        count, length = labels.shape[1:]
        before = functional.pad(labels[..., :-1].clamp_min(0), (1, 0), value=self.start).flatten(0, 1)
        seen, mask = (t.repeat_interleave(count, 0) for t in (states, real))
        hidden = self.decoder(before, causal(length, labels.device)[None, None], seen, mask)
        return hidden.unflatten(0, (-1, count)).flatten(1, 2)

    @torch.no_grad()
    def rank(
        self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor, answers: Tensor, num_answers: Tensor,
        most: int, *, first_twice: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The number of the likeliest answer [B] and its chance among those ranked [B].

        Of each example's `answers` [B, A, T] (−100 is padding; the first `num_answers` [B] are real) the `most` whose
        first piece is likeliest are spelt out. `first_twice` counts that piece twice, as the published code does.
        """
        with mixed(input_ids, self.bf16):
            states, real = self.read(input_ids, attention_mask, pixel_values)
            first = self._chances(answers[:, :1, :1], states, real)[:, 0]  # of every piece, [B, V]
            start = first.gather(1, answers[..., 0].clamp_min(0))
            own = torch.arange(answers.shape[1], device=answers.device) < num_answers[:, None]
            start, chosen = torch.where(own, start, MASKED).topk(min(most, answers.shape[1]), 1)
            spelt = answers.gather(1, chosen[..., None].expand(-1, -1, answers.shape[2]))
            chances = self._chances(spelt, states, real).unflatten(1, spelt.shape[1:])
            pieces = chances.gather(-1, spelt.clamp_min(0)[..., None]).squeeze(-1) * (spelt >= 0)
        total = torch.where(start <= MASKED, MASKED, pieces.sum(-1) + (start if first_twice else 0.0))
        chance, best = total.softmax(-1).max(-1)
        return chosen.gather(1, best[:, None])[:, 0], chance

    def _chances(self, labels: Tensor, states: Tensor, real: Tensor) -> Tensor:
        return self.head(self.spell(labels, states, real)).float().log_softmax(-1)
