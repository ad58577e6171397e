"""Models of transformers small enough for tests, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


def llama(**settings: Any) -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **settings}))


def qwen(**settings: Any) -> nn.Module:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**SIZES, **settings}))


def tied_qwen() -> nn.Module:
    return qwen(tie_word_embeddings=True)


def qwen_classifier() -> nn.Module:
    return transformers.Qwen2ForSequenceClassification(transformers.Qwen2Config(**SIZES, num_labels=3))


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        num_labels=3,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def bert_classifier() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=3))


def bert_tagger() -> nn.Module:
    return transformers.BertForTokenClassification(transformers.BertConfig(**BERT, num_labels=3))


def bert_reader() -> nn.Module:
    return transformers.BertForQuestionAnswering(transformers.BertConfig(**BERT))


def smol_vlm(dropout: float = 0.0) -> nn.Module:
    """Return a language model with a vision model of its own."""
    config = transformers.SmolVLMConfig(
        vision_config={
            "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 16, "patch_size": 8,
        },
        text_config={"model_type": "llama", **SIZES, "attention_dropout": dropout},
        image_token_id=38, scale_factor=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.SmolVLMForConditionalGeneration(config)


def seeded(make: Callable[..., nn.Module], **settings: Any) -> Any:
    """Return a model with the same weights at each call."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return make(**settings)


def logits(module: nn.Module) -> torch.Tensor:
    """Return the model's logits for fixed inputs."""
    ids = torch.arange(3, 15).reshape(2, 6)
    if isinstance(module, transformers.ViTForImageClassification):
        inputs = {"pixel_values": torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))}
    elif isinstance(module, transformers.T5ForConditionalGeneration):
        inputs = {"input_ids": ids, "decoder_input_ids": ids}
    else:
        inputs = {"input_ids": ids}
    with torch.no_grad():
        found: torch.Tensor = module(**inputs).logits
    return found
