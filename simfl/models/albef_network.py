"""The network of ALBEF for question answering (Li et al. 2021).

    image -> ViT -> states          question -> BERT, whose upper half attends to the image -> states
    answer -> BERT decoder, which attends to the question's states -> tokens

A list of answers is ranked by the probability of their tokens. Shapes: B examples, L tokens of the question, K answers
of an example, T tokens of an answer, A answers to rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertPredictionHeadTransform

from simfl.models.base import bf16_autocast, constants
from simfl.models.prompt import insert_prompt
from simfl.models.t5_reader import causal_mask
from simfl.models.transformer import MASK_SCORE, QUERIES_AND_VALUES, BertEncoder, additive_mask, init_weights
from simfl.models.vit_network import ImageEncoder
from simfl.protocol import Outputs

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP
BERT_SIZES = (
    "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings",
    "type_vocab_size",
)  # fmt: skip


class TokenHead(nn.Module):
    """BERT's masked-LM head, whose matrix is tied to the decoder's words. 622,650 parameters of its own."""

    def __init__(self, config: BertConfig, words: nn.Embedding) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.out = nn.Linear(config.hidden_size, config.vocab_size)
        self.out.weight = words.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Map […, D] to logits [..., V]."""
        return self.out(self.transform(hidden))


class AlbefNetwork(nn.Module):
    """Image encoder, question encoder, answer decoder, head; `features` are the question's first state [B, D]."""

    heads = ("head.*",)
    queries_and_values = (*QUERIES_AND_VALUES, "query", "value")
    lora_exclude = (".crossattention.",)  # FedDAT's LoRA is in self-attention alone

    def __init__(self, sizes: Mapping[str, int], *, dropout: float, bf16: bool) -> None:
        super().__init__()
        self.image = ImageEncoder(sizes, dropout, eps=1e-6)
        shared = {key: sizes[key] for key in BERT_SIZES}
        config = BertConfig(**shared, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        config.num_hidden_layers = sizes["text_layers"]
        self.question = BertEncoder(config, fusion=sizes["fusion"])
        config.num_hidden_layers = sizes["decoder_layers"]
        self.decoder = BertEncoder(config, fusion=0)
        self.head = TokenHead(config, self.decoder.embeddings.word_embeddings)
        self.prompts = nn.ModuleDict()
        self.width, self.bf16 = sizes["hidden_size"], bf16
        self.start_id = 0  # the first token of an answer; set from the tokenizer by the model that builds it
        init_weights(self, self.width)

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """Return the layers that take a bottleneck, and their width.

        It follows each feed-forward's residual: before the next norm in the image encoder, after the norm in BERT.
        """
        return [(layer, self.width) for stack in self._stacks().values() for layer in stack]

    def prompt_places(self) -> dict[str, int]:
        """Return the modality that takes prompts, the image's states that the question attends to, and the width."""
        return {"image": self.width}

    def blocks(self) -> list[str]:
        """Return the names of the transformer blocks: the image's, the question's, the answer's."""
        return [f"{path}.{n}" for path, stack in self._stacks().items() for n in range(len(stack))]

    def _stacks(self) -> dict[str, nn.ModuleList]:
        image, question, decoder = self.image.layers, self.question.layer, self.decoder.layer
        return {"image.layers": image, "question.layer": question, "decoder.layer": decoder}

    def forward(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor, labels: Tensor) -> Outputs:
        """Run a teacher-forced pass.

        Args:
            input_ids: Question [B, L].
            attention_mask: [B, L].
            pixel_values: uint8 [B, 3, S, S].
            labels: Answers [B, K, T]; −100 is padding.

        Returns:
            Logits [B, K·T, V]; `mask` [B, K·T], 1 for real tokens.
        """
        with bf16_autocast(input_ids, self.bf16):
            states, mask = self.encode(input_ids, attention_mask, pixel_values)
            hidden = self.decode(labels, states, mask)
            logits = self.head(hidden)
        return Outputs(logits.float(), states[:, 0].float(), hidden.float(), (labels >= 0).flatten(1).to(torch.float32))

    def encode(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """Return states of the question [B, L, D] and the additive mask over them [B, 1, 1, L]."""
        mean, std = (constants(v, pixel_values, torch.float32)[:, None, None] for v in (MEAN, STD))
        pixels = (pixel_values.to(torch.float32) / 255.0 - mean) / std
        image = insert_prompt(self.prompts, "image", self.image.encode(pixels, nn.ModuleDict()))
        mask = additive_mask(attention_mask.to(torch.float32))
        return self.question(input_ids, mask, image), mask

    def decode(self, labels: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Return the decoder's states [B, K·T, D] for answers `labels` [B, K, T]."""
        count, length = labels.shape[1:]
        inputs = functional.pad(labels[..., :-1].clamp_min(0), (1, 0), value=self.start_id).flatten(0, 1)
        states, mask = (t.repeat_interleave(count, 0) for t in (states, mask))
        hidden = self.decoder(inputs, causal_mask(length, labels.device)[None, None], states, mask)
        return hidden.unflatten(0, (-1, count)).flatten(1, 2)

    @torch.no_grad()
    def rank(
        self, question: Mapping[str, Tensor], answers: Tensor, num_answers: Tensor, num_ranked: int, *,
        first_twice: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Rank the answers of each example.

        Args:
            question: `input_ids`, `attention_mask` and `pixel_values`, as for `forward`.
            answers: Candidates [B, A, T]; −100 is padding.
            num_answers: Number of an example's candidates that are real [B].
            num_ranked: Candidates whose probability is computed: those whose first token is most probable.
            first_twice: Count the first token twice, as the published code does.

        Returns:
            The number of the most probable answer [B], and its probability among those ranked [B].
        """
        with bf16_autocast(question["input_ids"], self.bf16):
            states, mask = self.encode(**question)
            vocabulary = self._log_probabilities(answers[:, :1, :1], states, mask)[:, 0]  # of a first token, [B, V]
            first = vocabulary.gather(1, answers[..., 0].clamp_min(0))
            real = torch.arange(answers.shape[1], device=answers.device) < num_answers[:, None]
            first, chosen = torch.where(real, first, MASK_SCORE).topk(min(num_ranked, answers.shape[1]), 1)
            ranked = answers.gather(1, chosen[..., None].expand(-1, -1, answers.shape[2]))
            every = self._log_probabilities(ranked, states, mask).unflatten(1, ranked.shape[1:])
            tokens = every.gather(-1, ranked.clamp_min(0)[..., None]).squeeze(-1) * (ranked >= 0)
        total = torch.where(first <= MASK_SCORE, MASK_SCORE, tokens.sum(-1) + (first if first_twice else 0.0))
        probability, best = total.softmax(-1).max(-1)
        return chosen.gather(1, best[:, None])[:, 0], probability

    def _log_probabilities(self, labels: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.decode(labels, states, mask)).float().log_softmax(-1)
