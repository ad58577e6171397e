"""The page reader: a LLaVA of transformers with a small encoder of pages, a two-layer connector and SmolLM2.

`Language` is the same language model with LoRA for training: all layers of a kind are one tensor, LoRA is added to the
weights once a step rather than to each activation, and a layer is about twelve calls. In transformers with peft it is
about a hundred, most of which move memory and compute little in a network as narrow as this.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from drawing import GRID, NUM_CLASSES, PATCH, SIDE, SLOTS
from torch import Tensor, nn
from torch.nn import functional

IMAGE_TOKEN = "<filename>"  # an unused token of SmolLM2's vocabulary, which stands for a patch of the page
BEFORE_IMAGE = "<|im_start|>user\n"
WIDTH, LAYERS, HEADS = 192, 8, 3
RANK, ALPHA = 8, 16
TARGETS = {
    "q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn",
    "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp",
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}" + IMAGE_TOKEN + "{% else %}"
    "{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user_turn(text: str, before: str | None) -> str:
    """Return the prompt of a question after `before`: the start of a turn for None. As `TEMPLATE` does."""
    return f"{BEFORE_IMAGE if before is None else before}{text}<|im_end|>\n<|im_start|>assistant\n"


def page_reader_config(text: Any, image_token: int) -> Any:
    """Return the configuration of the page reader.

    Args:
        text: Configuration of the language model.
        image_token: Id of `IMAGE_TOKEN`.
    """
    from transformers import LlavaConfig

    vision = {
        "model_type": "siglip_vision_model", "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH, "image_size": SIDE, "patch_size": PATCH,
        "vision_use_head": False,
    }  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text.to_dict(), image_token_id=image_token, image_seq_length=GRID**2,
        vision_feature_layer=-1, vision_feature_select_strategy="full", tie_word_embeddings=True,
    )  # fmt: skip
    config.architectures = ["LlavaForConditionalGeneration"]
    return config


def build(folder: Path) -> tuple[Any, Any]:
    """Return the page reader over a language model's folder, and its tokenizer; encoder and connector are random."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlavaForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(folder)
    language = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = page_reader_config(language.config, tokenizer.convert_tokens_to_ids(IMAGE_TOKEN))
    model = LlavaForConditionalGeneration(config)
    model.model.language_model.load_state_dict(language.model.state_dict())
    model.tie_weights()
    return model, tokenizer


def encoded(model: Any, pixels: Tensor) -> Tensor:
    """Return the features of the patches [B, patches, width], as the connector reads them, of pages uint8 [B, H, W]."""
    found: Tensor = model.model.vision_tower(as_floats(pixels), output_hidden_states=True).hidden_states[-1]
    return found


def as_floats(pixels: Tensor) -> Tensor:
    """Return grey pages uint8 [B, H, W] as floats in [−1, 1], with three equal channels."""
    return (pixels.float() / 127.5 - 1)[:, None].expand(-1, 3, -1, -1)


class SlotHead(nn.Module):
    """Predicts the characters of each patch from its features; used in pretraining alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SLOTS * NUM_CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [..., SLOTS, classes] of features [..., width]."""
        found: Tensor = self.linear(self.norm(features)).float().unflatten(-1, (SLOTS, NUM_CLASSES))
        return found


class Language(nn.Module):
    """A Llama of transformers with LoRA on all of its linear layers; the base is frozen.

    Attributes:
        pairs: LoRA's A [layers, rank, in] and B [layers, out, rank] of each kind of layer, float32.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.config = model.config
        layers = model.layers
        self.base = {
            name: torch.stack([getattr(getattr(layer, part), name).weight.detach().float() for layer in layers])
            for name, part in TARGETS.items()
        }
        norms = ("input_layernorm", "post_attention_layernorm")
        self.norms = {name: torch.stack([getattr(layer, name).weight.detach() for layer in layers]) for name in norms}
        self.norms["norm"] = model.norm.weight.detach()[None].clone()
        self.pairs = nn.ParameterDict()
        for name, weight in self.base.items():
            _, rows, columns = weight.shape
            first = torch.empty(len(layers), RANK, columns, device=weight.device)
            self.pairs[f"{name}_A"] = nn.Parameter(first.uniform_(-(columns**-0.5), columns**-0.5))
            self.pairs[f"{name}_B"] = nn.Parameter(torch.zeros(len(layers), rows, RANK, device=weight.device))

    def merged(self) -> dict[str, Tensor]:
        """Return the weights with LoRA [layers, out, in]: W + α / rank · B · A."""
        return {
            name: torch.baddbmm(weight, self.pairs[f"{name}_B"], self.pairs[f"{name}_A"], alpha=ALPHA / RANK)
            for name, weight in self.base.items()
        }

    def forward(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Return the last hidden states [B, L, D] of causal attention over embeddings [B, L, D].

        Args:
            embeddings: Their type is the type of all activations.
            positions: Of the rotary embedding, int64 [B, L]; they may have gaps.
        """
        kind = embeddings.dtype
        weights = {name: weight.to(kind) for name, weight in self.merged().items()}
        norms = {name: weight.to(kind) for name, weight in self.norms.items()}
        turn = self._rotation(positions, kind)
        hidden, epsilon = embeddings, self.config.rms_norm_eps
        inputs = torch.cat([weights["q_proj"], weights["k_proj"], weights["v_proj"]], 1).unbind()
        gates = torch.cat([weights["gate_proj"], weights["up_proj"]], 1).unbind()
        outputs, downs = weights["o_proj"].unbind(), weights["down_proj"].unbind()
        for layer, (projections, output, gated, down) in enumerate(zip(inputs, outputs, gates, downs, strict=True)):
            normed = functional.rms_norm(hidden, hidden.shape[-1:], norms["input_layernorm"][layer], epsilon)
            hidden = hidden + functional.linear(self._attention(functional.linear(normed, projections), turn), output)
            normed = functional.rms_norm(hidden, hidden.shape[-1:], norms["post_attention_layernorm"][layer], epsilon)
            gate, up = functional.linear(normed, gated).chunk(2, -1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, down)
        return functional.rms_norm(hidden, hidden.shape[-1:], norms["norm"][0], epsilon)

    def _attention(self, projected: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Return the heads' results [B, L, heads · size] of queries, keys and values side by side."""
        config, (cosine, sine) = self.config, turn
        heads, groups, size = config.num_attention_heads, config.num_key_value_heads, cosine.shape[-1]
        states = projected.unflatten(-1, (heads + 2 * groups, size)).transpose(1, 2)
        turned, values = states[:, : heads + groups], states[:, heads + groups :]
        left, right = turned.chunk(2, -1)
        turned = turned * cosine + torch.cat([-right, left], -1) * sine
        found = functional.scaled_dot_product_attention(
            turned[:, :heads], turned[:, heads:], values, is_causal=True, enable_gqa=True
        )
        return found.transpose(1, 2).flatten(2)

    def _rotation(self, positions: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [B, 1, L, size] of the rotary embedding."""
        config = self.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        powers = torch.arange(0, size, 2, device=positions.device) / size
        angles = positions[:, None, :, None] / config.rope_parameters["rope_theta"] ** powers
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(kind), angles.sin().to(kind)

    @torch.no_grad()
    def write_into(self, model: Any) -> None:
        """Set the weights of a Llama of transformers to those with LoRA."""
        for name, weights in self.merged().items():
            for layer, weight in zip(model.layers, weights, strict=True):
                getattr(getattr(layer, TARGETS[name]), name).weight.copy_(weight)

    def named_pairs(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each layer's matrices of LoRA, a part of the parameters, with its name in the layout of peft."""
        for name, part in TARGETS.items():
            for pair in "AB":
                for layer, matrix in enumerate(self.pairs[f"{name}_{pair}"]):
                    yield f"model.language_model.layers.{layer}.{part}.{name}.lora_{pair}.weight", matrix
