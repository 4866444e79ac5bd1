"""A small GPT in plain torch: a language model beside the image models of the training benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class GptShape:
    """Sizes of the network; the default has 14.9 million parameters.

    Args:
        vocabulary: tokens it knows.
        context: most tokens of a sequence.
        width: features per token, a multiple of `heads`.
        layers: blocks.
        heads: of attention, per block.
    """

    vocabulary: int = 8192
    context: int = 1024
    width: int = 384
    layers: int = 6
    heads: int = 6


class _Block(nn.Module):
    """Attention and a perceptron, each around a shortcut, normalised before."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self._heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.width)
        self.attention_in = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.before_perceptron = nn.LayerNorm(shape.width)
        self.perceptron = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        joined = self.attention_in(self.before_attention(x)).view(batch, tokens, 3, self._heads, -1)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        out: torch.Tensor = x + self.perceptron(self.before_perceptron(x))
        return out


class Gpt(nn.Module):
    """A decoder-only transformer; the embedding is the output layer too, as in GPT-2."""

    def __init__(self, shape: GptShape | None = None) -> None:
        super().__init__()
        self.shape = shape or GptShape()
        self.tokens = nn.Embedding(self.shape.vocabulary, self.shape.width)
        self.positions = nn.Embedding(self.shape.context, self.shape.width)
        self.blocks = nn.Sequential(*(_Block(self.shape) for _ in range(self.shape.layers)))
        self.last = nn.LayerNorm(self.shape.width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns logits [batch, tokens, vocabulary] for token numbers [batch, tokens]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return functional.linear(self.last(self.blocks(x)), self.tokens.weight)
