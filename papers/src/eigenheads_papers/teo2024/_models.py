"""Layers that all transformers of this package share, and small models made of them."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from eigenheads.extend.models import AbstractAttention
from eigenheads.nn import RPCAttention, ScaledAttention, SymmetricAttention
from eigenheads_papers._models import ViT, train_vit
from eigenheads_papers._training import SmallModel
from eigenheads_papers.teo2024.variants import AttentionSpec, AttentionVariant

# --- Layers --------------------------------------------------------------------------


class SoftmaxAttention(AbstractAttention):
    """Multi-head softmax self-attention with timm's parameter names."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Mix tokens; of a mask, ``True`` lets a token see a key."""
        queries, keys, values = self._heads(x)
        visibility = self._visibility(keys, attn_mask, None)
        scale = self.d_head**-0.5
        mixed = visibility.attend(
            queries, keys, values, scale=scale, dropout=self._dropout
        )
        return self._merge(mixed)

    def attention_weights(self, x: Tensor) -> Tensor:
        """Return the softmax weights."""
        queries, keys, _ = self._heads(x)
        scores = self.d_head**-0.5 * queries @ keys.mT
        # The mask has to be the one of the forward pass, or the self-weight would be
        # that of another layer.
        if self.is_causal:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool)
            scores = scores.masked_fill(~ones.tril(), -torch.inf)
        return scores.softmax(-1)


class NoMixing(AbstractAttention):
    """Values alone: no token attends to another."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Return the projected values."""
        return self._merge(self._heads(x)[2])


def make_attention(
    layer: AttentionSpec, d_model: int, n_heads: int, *, n_tokens: int, **options: Any
) -> AbstractAttention:
    """Return the attention module of a specification."""
    options = {**layer.options, **options}
    if layer.kind == "scaled-matrix":
        options["n_tokens"] = n_tokens
    make: dict[str, Any] = {
        "softmax": SoftmaxAttention,
        "symmetric": SymmetricAttention,
        "rpc": RPCAttention,
        "scaled-scalar": partial(ScaledAttention, kind="scalar"),
        "scaled-matrix": partial(ScaledAttention, kind="matrix"),
        "none": NoMixing,
    }
    attention: AbstractAttention = make[layer.kind](d_model, n_heads, **options)
    return attention


class DropPath(nn.Module):
    """Drop a residual branch per example with a given probability, in training."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch, or zero, rescaled to keep its mean."""
        if not self.training or self.probability == 0.0:
            return x
        keep = 1.0 - self.probability
        # There is one draw per example, broadcast over tokens and channels.
        mask = x.new_empty((len(x),) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask / keep


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them, under timm's names."""

    def __init__(self, d_model: int, d_hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(d_model, d_hidden)
        self.fc2 = nn.Linear(d_hidden, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the transformed tokens."""
        hidden = self.drop(nn.functional.gelu(self.fc1(x)))
        return self.drop(self.fc2(hidden))


class PreNormBlock(nn.Module):
    """Attention and feed-forward branches, each normalised first."""

    def __init__(
        self,
        d_model: int,
        attention: nn.Module,
        *,
        d_hidden: int,
        drop_path: float = 0.0,
        dropout: float = 0.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model, eps=eps)
        self.attn = attention
        self.norm2 = nn.LayerNorm(d_model, eps=eps)
        self.mlp = FeedForward(d_model, d_hidden, dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Mix tokens, then channels."""
        x = x + self.drop_path(self.attn(self.norm1(x), attn_mask))
        return x + self.drop_path(self.mlp(self.norm2(x)))


# --- Small models --------------------------------------------------------------------


class AbstractSmallModel(nn.Module):
    """Tokens with positions, blocks of a variant, and a linear head."""

    def __init__(
        self,
        variant: AttentionVariant,
        embed: nn.Module,
        *,
        size: SmallModel,
        n_tokens: int,
        n_outputs: int,
        is_causal: bool,
    ) -> None:
        super().__init__()
        d_model = size.d_model
        self.embed = embed
        self.position = nn.Parameter(0.5 * torch.randn(n_tokens, d_model))
        layers = [variant.first, *[variant.rest] * (size.depth - 1)]
        self.blocks = nn.ModuleList(
            PreNormBlock(
                d_model,
                make_attention(
                    layer, d_model, size.n_heads, n_tokens=n_tokens, is_causal=is_causal
                ),
                d_hidden=2 * d_model,
                eps=1e-5,
            )
            for layer in layers
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_outputs)

    def embedded(self, x: Tensor) -> Tensor:
        """Return the tokens that enter the first block."""
        tokens: Tensor = self.embed(x)
        return tokens + self.position[: tokens.shape[1]]

    def transformed(self, x: Tensor) -> Tensor:
        """Return the tokens after all blocks, normalised."""
        tokens = self.embedded(x)
        for block in self.blocks:
            tokens = block(tokens)
        normalised: Tensor = self.norm(tokens)
        return normalised

    @property
    def _first_block(self) -> PreNormBlock:
        block = self.blocks[0]
        assert isinstance(block, PreNormBlock)
        return block

    @property
    def first_attention(self) -> nn.Module:
        """The attention of the first block."""
        return self._first_block.attn

    def first_tokens(self, x: Tensor) -> Tensor:
        """Return the input of the first attention layer."""
        tokens: Tensor = self._first_block.norm1(self.embedded(x))
        return tokens


class Patches(nn.Module):
    """Patches of an image as tokens."""

    def __init__(self, d_model: int, patch: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(1, d_model, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, tokens, d_model)``."""
        tokens: Tensor = self.project(2 * x - 1)
        return tokens.flatten(2).mT


class SmallViT(AbstractSmallModel):
    """Patches, positions, blocks, then a head on each token or on their mean.

    Parameters
    ----------
    variant
        The attention of its layers.
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
        size: SmallModel,
        side: int,
        n_outputs: int = 10,
        dense: bool = False,
    ) -> None:
        super().__init__(
            variant,
            Patches(size.d_model, size.patch),
            size=size,
            n_tokens=(side // size.patch) ** 2,
            n_outputs=n_outputs,
            is_causal=False,
        )
        self.dense, self.patch = dense, size.patch

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, of the image or ``(batch, classes, side, side)``."""
        tokens = self.transformed(x)
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


class SmallLanguageModel(AbstractSmallModel):
    """Causal transformer over word ids; the last id is an input only."""

    def __init__(
        self, variant: AttentionVariant, *, size: SmallModel, n_words: int, length: int
    ) -> None:
        super().__init__(
            variant,
            # One id more than there are words: the word that is swapped in can be read,
            # but the head never predicts it.
            nn.Embedding(n_words + 1, size.d_model),
            size=size,
            n_tokens=length,
            n_outputs=n_words,
            is_causal=True,
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of each next word."""
        logits: Tensor = self.head(self.transformed(ids))
        return logits


@torch.no_grad()
def look_inside(attention: nn.Module, tokens: Tensor) -> tuple[float, float]:
    """Return the share of S (its largest over iterations) and the mean self-weight."""
    if isinstance(attention, RPCAttention):
        diagnostics = attention.diagnostics(tokens)
        return float(diagnostics.flagged.mean(1).max()), float(
            diagnostics.self_weight[-1].mean()
        )
    if isinstance(attention, NoMixing):
        # Each token sees itself alone, which is a self-weight of 1.
        return 0.0, 1.0
    assert isinstance(
        attention, SoftmaxAttention | SymmetricAttention | ScaledAttention
    )
    weights = attention.attention_weights(tokens)
    return 0.0, float(weights.diagonal(dim1=-2, dim2=-1).mean())


# --- The authors' reconstruction statistic, as their program computes it -------------
# Their model standardises every query and key before it attends, so the statistic
# belongs to another model than ours: it is trained here with the same change.


class StandardizedAttention(nn.MultiheadAttention):
    """Attention of standardised queries and keys; what it read and wrote is kept.

    Each query and key gets mean 0 and standard deviation 1 over its entries, with
    D − 1 in the variance.
    """

    kept: tuple[Tensor, Tensor, Tensor]

    def forward(self, query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """Attend from the tokens to themselves; no masks, no dropout."""
        n, length, width = query.shape
        mixed = nn.functional.linear(query, self.in_proj_weight, self.in_proj_bias)
        shape = (n, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = mixed.view(shape).permute(2, 0, 3, 1, 4)
        q, k = _standardized(q), _standardized(k)
        scale = q.shape[-1] ** -0.5
        outputs = (scale * q @ k.mT).softmax(dim=-1) @ v
        self.kept = (q.detach(), k.detach(), outputs.detach())
        merged = outputs.transpose(1, 2).reshape(n, length, width)
        return self.out_proj(merged), None


def standardize_attention(body: nn.Module) -> None:
    """Make every attention layer of a model standardise, with the same parameters."""
    for module in body.modules():
        if type(module) is nn.MultiheadAttention:
            module.__class__ = StandardizedAttention


def program_log_norms(q: Tensor, k: Tensor) -> Tensor:
    r"""Return the logarithm of the program's :math:`\lVert\varphi(q)/g(q)\rVert^2`.

    For standardised q and k, with the softmax weight :math:`p_0` of the first key,

    .. math:: q \cdot q + 2 \log p_0 - 2\, q \cdot k_0

    The scale :math:`1/\sqrt D` is in :math:`p_0` alone, so that the normaliser
    recovered from the first key is not that of the softmax.
    """
    products = q @ k.mT
    logs = (q.shape[-1] ** -0.5 * products).log_softmax(dim=-1)
    return (q * q).sum(dim=-1) + 2 * logs[..., 0] - 2 * products[..., 0]


@torch.no_grad()
def program_loss(body: nn.Module, batch: Tensor) -> list[float]:
    """Return the mean of feature norm less output norm, layer by layer.

    The program prints the logarithm, averaged over layers. The model must be in
    training mode: PyTorch's fast path for inference would skip these layers.
    """
    body(batch)
    losses = []
    for module in body.modules():
        if isinstance(module, StandardizedAttention):
            q, k, outputs = (x.double() for x in module.kept)
            feature = program_log_norms(q, k).exp()
            losses.append(float((feature - outputs.square().sum(dim=-1)).mean()))
    return losses


def train_program(vit: ViT, seed: int, record: Any) -> None:
    """Train the ViT with standardised attention; `record` as in `train_vit`."""

    def begin_or_record(step: int, body: Any, head: Any) -> None:
        # The call before the first update is the one place where the layers can change
        # before they are trained; their parameters stay those of the optimizer.
        if step == 0:
            standardize_attention(body)
        record(step, body, head)

    train_vit(vit, seed, begin_or_record)


def _standardized(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(dim=-1, keepdim=True)
    return centred / rows.std(dim=-1, keepdim=True)
