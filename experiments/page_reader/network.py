"""The page reader: a LLaVA of transformers with a small encoder of pages, a two-layer connector and SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drawing import GRID, PATCH, SIDE

IMAGE_TOKEN = "<filename>"  # an unused token of SmolLM2's vocabulary, which stands for a patch of the page
WIDTH, LAYERS, HEADS = 192, 8, 3
RANK, ALPHA = 8, 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}" + IMAGE_TOKEN + "{% else %}"
    "{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user_turn(text: str, first: bool) -> str:
    """Return the prompt of a question; the first one of a conversation shows the page. As `TEMPLATE` does."""
    image = IMAGE_TOKEN * GRID**2 if first else ""
    return f"<|im_start|>user\n{image}{text}<|im_end|>\n<|im_start|>assistant\n"


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
    language = AutoModelForCausalLM.from_pretrained(folder)
    config = page_reader_config(language.config, tokenizer.convert_tokens_to_ids(IMAGE_TOKEN))
    model = LlavaForConditionalGeneration(config)
    model.model.language_model.load_state_dict(language.model.state_dict())
    model.tie_weights()
    return model, tokenizer
