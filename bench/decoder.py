"""Decoder layers of transformers as they are, from a config with random weights: a prompt at once, and one token after it.

transformers is imported when a layer is made, since nothing else needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]
COMMON = {"attn_implementation": "sdpa", "max_position_embeddings": 32768, "vocab_size": 32000}


@dataclass(frozen=True)
class Model:
    """A model of transformers: its module, its class names' prefix, and its sizes as published and as run on a CPU."""

    module: str
    prefix: str
    sizes: Mapping[str, Any]
    small: Mapping[str, int]

    def config(self, small: bool = False, layers: int = 1) -> Any:
        """The config, at its own sizes or at the small ones."""
        made = getattr(import_module(f"transformers.models.{self.module}"), f"{self.prefix}Config")
        sizes = {**COMMON, **self.sizes, **(self.small if small else {})}
        return made(num_hidden_layers=layers, **sizes)

    def layer(self, small: bool) -> nn.Module:
        """One layer; at its own sizes it has no values."""
        module = import_module(f"transformers.models.{self.module}.modeling_{self.module}")
        with torch.device("cpu" if small else "meta"):
            layer: nn.Module = getattr(module, f"{self.prefix}DecoderLayer")(self.config(small), 0)
        return layer.to(torch.bfloat16).eval().requires_grad_(False)

    def causal(self, layers: int) -> nn.Module:
        """The whole model with `layers` layers, without values."""
        module = import_module(f"transformers.models.{self.module}.modeling_{self.module}")
        with torch.device("meta"):
            model: nn.Module = getattr(module, f"{self.prefix}ForCausalLM")(self.config(layers=layers))
        return model.to(torch.bfloat16).eval().requires_grad_(False)


MODELS = {
    "TinyLlama": Model(
        "llama",
        "Llama",
        {
            "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-5,
        },
        {"hidden_size": 128, "intermediate_size": 96, "num_attention_heads": 16, "num_key_value_heads": 2},
    ),
    "Qwen2.5-7B": Model(
        "qwen2",
        "Qwen2",
        {
            "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
        },
        {"hidden_size": 112, "intermediate_size": 96, "num_attention_heads": 14, "num_key_value_heads": 2},
    ),
}  # fmt: skip


class Prompt(nn.Module):
    """A layer over a whole prompt."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x, position_embeddings=(cos, sin))
        return y


class Token(nn.Module):
    """A layer over one more token: past keys and values come in, the longer ones go out."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        named = signature(layer.forward).parameters
        self.cache = next(n for n in ("cache", "past_key_values") if n in named)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> Tensors:
        cache = import_module("transformers").DynamicCache()
        cache.update(keys, values, 0)
        y = self.layer(x, position_embeddings=(cos, sin), **{self.cache: cache})
        return y, cache.layers[0].keys, cache.layers[0].values


class Logits(nn.Module):
    """A whole model over a prompt, without a cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits
        return y


def program(name: str, stage: str, small: bool) -> tuple[nn.Module, list[torch.Tensor]]:
    """A layer in the stage `prefill` (2048 tokens) or `decode` (one after 1023), and its inputs; small ones have values."""
    model = MODELS[name]
    config, tokens, past = model.config(small), *((8, 7) if small else (2048, 1023))
    size = config.hidden_size // config.num_attention_heads
    rows = tokens if stage == "prefill" else 1
    shapes: list[Sequence[int]] = [(1, rows, config.hidden_size), (1, rows, size), (1, rows, size)]
    if stage == "decode":
        shapes += [(1, config.num_key_value_heads, past, size)] * 2
    generator = torch.Generator().manual_seed(0)
    if small:
        inputs = [torch.randn(*s, generator=generator).to(torch.bfloat16) for s in shapes]
    else:
        inputs = [torch.empty(*s, dtype=torch.bfloat16, device="meta") for s in shapes]
    torch.manual_seed(0)
    layer = model.layer(small)
    return (Prompt if stage == "prefill" else Token)(layer), inputs
