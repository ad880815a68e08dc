"""Small models with a choice of attention: a ViT, a hybrid, a language model."""

from typing import Any

import torch
from torch import Tensor, nn

from eigenheads.extend.models import AbstractAttention
from eigenheads.nn import RPCAttention, ScaledAttention, SymmetricAttention
from eigenheads_papers.teo2024._variants import (
    AttentionSpec,
    AttentionVariant,
    SmallModel,
)


class PlainAttention(AbstractAttention):
    """Softmax attention, optionally symmetric, with an inverse temperature to set."""

    def __init__(
        self, d_model: int, n_heads: int, *, symmetric: bool = False, **options: Any
    ) -> None:
        super().__init__(d_model, n_heads, **options)
        self.symmetric = symmetric
        self.inverse_temperature = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens."""
        q, k, v = self._heads(x)
        visibility = self._visibility(k, None, None)
        scale = self.inverse_temperature * self.d_head**-0.5
        queries = k if self.symmetric else q
        return self._merge(visibility.attend(queries, k, v, scale=scale, dropout=0.0))

    def attention_weights(self, x: Tensor) -> Tensor:
        """Return the softmax weights."""
        q, k, _ = self._heads(x)
        queries = k if self.symmetric else q
        scores = self.inverse_temperature * self.d_head**-0.5 * queries @ k.mT
        # The mask has to be the one of the forward pass, or the self-weight would be
        # that of another layer.
        if self.is_causal:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool)
            scores = scores.masked_fill(~ones.tril(), -torch.inf)
        return scores.softmax(-1)


class NoMixing(AbstractAttention):
    """Values alone: no token attends to another."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected values."""
        return self._merge(self._heads(x)[2])


def make_attention(
    layer: AttentionSpec, d_model: int, n_heads: int, *, n_tokens: int, is_causal: bool
) -> AbstractAttention:
    """Return the attention module of a specification."""
    options: dict[str, Any] = {**layer.options, "is_causal": is_causal}
    matched = options.pop("matched", False)
    if layer.kind == "softmax":
        return PlainAttention(d_model, n_heads, **options)
    # A matched layer is plain attention with the keys as queries, because its
    # temperature is set from outside along training.
    if layer.kind == "symmetric" and matched:
        return PlainAttention(d_model, n_heads, symmetric=True, **options)
    if layer.kind == "symmetric":
        return SymmetricAttention(d_model, n_heads, **options)
    if layer.kind == "none":
        return NoMixing(d_model, n_heads, **options)
    if layer.kind == "rpc":
        return RPCAttention(d_model, n_heads, **options)
    if options["kind"] == "matrix":
        options["n_tokens"] = n_tokens
    return ScaledAttention(d_model, n_heads, **options)


class TransformerBlock(nn.Module):
    """A pre-norm transformer block; `mixer` acts between attention and MLP."""

    def __init__(self, d_model: int, attention: nn.Module, mixer: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d_model), attention
        self.mixer = mixer
        self.norm2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 2 * d_model), nn.GELU(), nn.Linear(2 * d_model, d_model)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, then channels."""
        x = x + self.attn(self.norm1(x))
        x = self.mixer(x)
        mlp: Tensor = self.mlp(self.norm2(x))
        return x + mlp


class Convolve(nn.Module):
    """Add a depthwise convolution over the grid of tokens."""

    def __init__(self, d_model: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.conv = nn.Conv2d(d_model, d_model, 3, padding=1, groups=d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens plus the convolution of their neighbourhood."""
        grid = x.mT.reshape(len(x), -1, self.side, self.side)
        convolved: Tensor = self.conv(grid)
        return x + convolved.flatten(2).mT


class Patches(nn.Module):
    """Patches of an image as tokens, cut apart or overlapping."""

    def __init__(self, d_model: int, patch: int, *, overlap: bool) -> None:
        super().__init__()
        # The padding offsets the wider kernel, so both kinds give one token per patch.
        around = patch // 2 if overlap else 0
        self.project = nn.Conv2d(
            1, d_model, patch + 2 * around, stride=patch, padding=around
        )
        self.act = nn.GELU() if overlap else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, tokens, d_model)``."""
        tokens: Tensor = self.act(self.project(2 * x - 1))
        return tokens.flatten(2).mT


class SmallViT(nn.Module):
    """Patches, positions, blocks, then a head on each token or on their mean.

    Parameters
    ----------
    variant
        The attention of its layers.
    architecture
        ``"vit"``, or ``"hybrid"``: an overlapping convolutional stem, and depthwise
        convolutions in every block.
    size
        Size of patches and layers.
    side
        Pixels per side of an image.
    n_outputs
        Classes; for dense tasks, classes times the pixels of a patch.
    dense
        Whether the head acts on every token.
    """

    def __init__(
        self,
        variant: AttentionVariant,
        *,
        architecture: str,
        size: SmallModel,
        side: int,
        n_outputs: int = 10,
        dense: bool = False,
    ) -> None:
        super().__init__()
        hybrid, d_model = architecture == "hybrid", size.d_model
        grid = side // size.patch
        self.dense, self.patch = dense, size.patch
        self.embed = Patches(d_model, size.patch, overlap=hybrid)
        self.position = nn.Parameter(0.5 * torch.randn(grid * grid, d_model))
        self.blocks = nn.ModuleList()
        for index in range(size.depth):
            layer = variant.rest if index else variant.first
            attention = make_attention(
                layer, d_model, size.n_heads, n_tokens=grid * grid, is_causal=False
            )
            mixer = Convolve(d_model, grid) if hybrid else nn.Identity()
            self.blocks.append(TransformerBlock(d_model, attention, mixer))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, of the image or ``(batch, classes, side, side)``."""
        tokens = self.embed(x) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        tokens = self.norm(tokens)
        if not self.dense:
            logits: Tensor = self.head(tokens.mean(1))
            return logits
        batch, n_tokens, _ = tokens.shape
        grid, patch = int(n_tokens**0.5), self.patch
        pixels: Tensor = self.head(tokens)
        pixels = pixels.view(batch, grid, grid, -1, patch, patch)
        # To (batch, class, row of patches, row in it, column of patches, column in it).
        pixels = pixels.permute(0, 3, 1, 4, 2, 5)
        return pixels.reshape(batch, -1, grid * patch, grid * patch)

    @property
    def first_attention(self) -> nn.Module:
        """The attention of the first block."""
        block = self.blocks[0]
        assert isinstance(block, TransformerBlock)
        return block.attn

    def first_tokens(self, x: Tensor) -> Tensor:
        """Return the input of the first attention layer."""
        block = self.blocks[0]
        assert isinstance(block, TransformerBlock)
        tokens: Tensor = block.norm1(self.embed(x) + self.position)
        return tokens


class SmallLanguageModel(nn.Module):
    """Causal transformer over word ids; the last id is an input only."""

    def __init__(
        self, variant: AttentionVariant, *, size: SmallModel, n_words: int, length: int
    ) -> None:
        super().__init__()
        d_model = size.d_model
        # One id more than there are words: the word that is swapped in can be read, but
        # the head below never predicts it.
        self.embed = nn.Embedding(n_words + 1, d_model)
        self.position = nn.Parameter(0.5 * torch.randn(length, d_model))
        self.blocks = nn.ModuleList()
        for index in range(size.depth):
            layer = variant.rest if index else variant.first
            attention = make_attention(
                layer, d_model, size.n_heads, n_tokens=length, is_causal=True
            )
            self.blocks.append(TransformerBlock(d_model, attention, nn.Identity()))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_words)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of each next word."""
        tokens = self.embed(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens))
        return logits

    def first_tokens(self, ids: Tensor) -> Tensor:
        """Return the input of the first attention layer."""
        block = self.blocks[0]
        assert isinstance(block, TransformerBlock)
        tokens: Tensor = block.norm1(self.embed(ids) + self.position[: ids.shape[1]])
        return tokens

    @property
    def first_attention(self) -> nn.Module:
        """The attention of the first block."""
        block = self.blocks[0]
        assert isinstance(block, TransformerBlock)
        return block.attn


@torch.no_grad()
def look_inside(attention: nn.Module, tokens: Tensor) -> tuple[float, float]:
    """Return the share of S (its largest over iterations) and the mean self-weight."""
    if isinstance(attention, RPCAttention):
        seen = attention.diagnostics(tokens)
        return float(seen.flagged.mean(1).max()), float(seen.self_weight[-1].mean())
    if isinstance(attention, NoMixing):
        # Each token sees itself alone, which is a self-weight of 1.
        return 0.0, 1.0
    assert isinstance(attention, PlainAttention | SymmetricAttention | ScaledAttention)
    weights = attention.attention_weights(tokens)
    return 0.0, float(weights.diagonal(dim1=-2, dim2=-1).mean())
