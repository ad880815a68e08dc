"""The models of the recipes: a vision transformer and a causal language model.

The vision transformer has the parameter names and shapes of timm's, so that timm's
checkpoints load here and ours load there.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads.estimators import TokenScreen
from eigenheads.extend import (
    Got,
    check_choice,
    check_count,
    check_instance,
    check_items,
    check_number,
    fail,
)
from eigenheads.extend.models import ScreenModule
from eigenheads_papers.teo2024._models import PreNormBlock, make_attention
from eigenheads_papers.teo2024.variants import KINDS, AttentionSpec, Kind

# Most classes or words: the weights of the last layer stay below some GiB.
_MAX_OUTPUTS = 10**6

# Mean and standard deviation of the colour channels of ImageNet.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# As in adapters.screen_tokens.
_COMPONENTS, _MAX_SHARE = 8, 0.5


@dataclass(frozen=True, kw_only=True)
class AttentionChoice:
    """Attention of every layer of a model.

    Attributes
    ----------
    variant
        One of ``softmax``, ``symmetric``, ``rpc``, ``scaled-scalar``,
        ``scaled-matrix``.
    layers
        Layers that get the variant: ``first``, ``all``, or the number of leading
        layers. The default is the paper's: for ``rpc`` the first layer of an image
        model and the first four of a language model; for the others all layers.
    rest
        Attention of the remaining layers: ``symmetric`` or ``softmax``.
    n_iter, sparsity, threshold, multiplier
        Options of ``rpc``, as in :class:`~eigenheads.nn.RPCAttention`. The default
        threshold is that of the authors' program, which made the printed numbers. With
        an infinite `sparsity` nothing is flagged.
    query_steps
        Softmaxes of ``rpc`` that queries enter: ``none`` (the cleaned keys serve as
        queries, as in the paper's symmetric models), ``last`` or ``every`` (its
        asymmetric models).
    """

    variant: str = "softmax"
    layers: str | None = None
    rest: str = "symmetric"
    n_iter: int = 4
    sparsity: float = 4.0
    threshold: str = "reference"
    multiplier: str = "paper"
    query_steps: str = "none"

    def __post_init__(self) -> None:
        """Check the options."""
        check_choice("variant", self.variant, KINDS)
        check_choice("rest", self.rest, ("symmetric", "softmax"))
        check_choice("threshold", self.threshold, ("paper", "reference"))
        check_choice("multiplier", self.multiplier, ("paper", "admm"))
        steps = ("none", "last", "every")
        check_choice("query_steps", self.query_steps, steps)
        check_count("n_iter", self.n_iter)
        is_endless = isinstance(self.sparsity, float) and self.sparsity == math.inf
        if not is_endless and not check_number("sparsity", self.sparsity) > 0:
            # With infinity nothing is flagged.
            fail("sparsity", "a number > 0", self.sparsity)
        layers = self.layers
        if layers is None:
            return
        number = "0*[1-9][0-9]{0,8}"
        if not isinstance(layers, str) or not re.fullmatch(
            f"first|all|{number}", layers
        ):
            contract = "'first', 'all' or a number of layers"
            fail("layers", contract, layers)

    @classmethod
    def read(cls, record: dict[str, Any]) -> Self:
        """Return the choice that :meth:`record` described."""
        return cls(**record)

    def record(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)

    def n_leading(self, depth: int, default: int) -> int:
        """Return how many leading layers get the variant.

        `default` is the number of leading ``rpc`` layers of this kind of model.
        """
        if self.layers is None:
            return min(default, depth) if self.variant == "rpc" else depth
        if self.layers == "all":
            return depth
        return 1 if self.layers == "first" else min(int(self.layers), depth)

    def label(self, depth: int, default: int) -> str:
        """Return a short name of the attention of a whole model.

        Models with equal labels differ in nothing but their seeds and sizes.
        """
        if self.variant != "rpc":
            n_leading = self.n_leading(depth, default)
            where = "" if n_leading == depth else f", {n_leading} of {depth} layers"
            return self.variant + where
        n_leading = self.n_leading(depth, default)
        where = "all layers" if n_leading == depth else f"{n_leading} of {depth} layers"
        parts = [f"rpc n={self.n_iter}", where]
        # Only options that differ from the defaults are named.
        for name in ("sparsity", "threshold", "multiplier", "query_steps", "rest"):
            value = getattr(self, name)
            if value != getattr(type(self), name):
                shown = f"{value:g}" if isinstance(value, float) else value
                parts.append(f"{name} {shown}")
        return ", ".join(parts)

    def specs(self, depth: int, default: int) -> list[AttentionSpec]:
        """Return the attention of every layer."""
        options: dict[str, Any] = {}
        if self.variant == "rpc":
            options = {
                "n_iter": self.n_iter,
                "sparsity": self.sparsity,
                "threshold": self.threshold,
                "multiplier": self.multiplier,
                "symmetric": self.query_steps == "none",
                "query_steps": "every" if self.query_steps == "every" else "last",
            }
        n_leading = self.n_leading(depth, default)
        leading = AttentionSpec(cast(Kind, self.variant), options)
        later = AttentionSpec(cast(Kind, self.rest))
        return [leading] * n_leading + [later] * (depth - n_leading)


# --- Images --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class VisionSize:
    """Size of a vision transformer."""

    image: int = 224
    patch: int = 16
    d_model: int = 192
    depth: int = 12
    n_heads: int = 3

    @property
    def n_tokens(self) -> int:
        """Number of patches, plus one for the class token."""
        return (self.image // self.patch) ** 2 + 1


VIT_TINY = VisionSize()
VIT_BASE = VisionSize(d_model=768, n_heads=12)


class PatchEmbedding(nn.Module):
    """Cut an image into patches and project each to a token."""

    def __init__(self, patch: int, d_model: int) -> None:
        super().__init__()
        # A convolution whose stride equals its kernel is one linear map per patch.
        self.proj = nn.Conv2d(3, d_model, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, patches, d_model)``."""
        tokens: Tensor = self.proj(x)
        return tokens.flatten(2).mT


class VisionTransformer(nn.Module):
    """A vision transformer with a class token, in timm's layout.

    Images have entries from 0 to 1; the model subtracts the mean and divides by the
    standard deviation of ImageNet itself, so that attacks act on pixels. (The two are
    no part of the state dict.)

    Parameters
    ----------
    n_classes
        Number of classes.
    size
        Image, patch, width, depth and heads.
    attention
        The attention of the layers.
    drop_path
        Probability of dropping the last layer's branches; it grows linearly with depth.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        size: VisionSize = VIT_TINY,
        attention: AttentionChoice | None = None,
        drop_path: float = 0.0,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        n_classes = check_count("n_classes", n_classes, maximum=_MAX_OUTPUTS)
        check_instance("size", size, VisionSize)
        choice = _check_choice(attention)
        drop_path = check_number("drop_path", drop_path, minimum=0.0, maximum=1.0)
        mean = _check_channels("mean", mean)
        std = _check_channels("std", std)
        d_model, self.image = size.d_model, size.image
        self.patch_embed = PatchEmbedding(size.patch, d_model)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d_model))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, size.n_tokens, d_model))
        rates = torch.linspace(0.0, drop_path, size.depth, device="cpu").tolist()
        self.blocks = nn.ModuleList(
            PreNormBlock(
                d_model,
                make_attention(layer, d_model, size.n_heads, n_tokens=size.n_tokens),
                d_hidden=4 * d_model,
                drop_path=rate,
            )
            for layer, rate in zip(choice.specs(size.depth, 1), rates, strict=True)
        )
        self.norm = nn.LayerNorm(d_model, eps=1e-6)
        self.head = nn.Linear(d_model, n_classes)
        shape = (1, 3, 1, 1)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(shape), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(shape), persistent=False)
        nn.init.normal_(self.cls_token, std=1e-6)
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images ``(batch, 3, height, width)``.

        Pixels that are NaN or infinite make the logits of their image NaN.
        """
        return self.classify(self.embed(images))

    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens that enter the first block.

        Pixels that are NaN or infinite make the tokens of their patch NaN.
        """
        shape = (3, self.image, self.image)
        _check_floats("images", images, shape, self.cls_token)
        tokens = self.patch_embed((images - self.mean) / self.std)
        first = self.cls_token.expand(len(tokens), -1, -1)
        return torch.cat([first, tokens], 1) + self.pos_embed

    def classify(self, tokens: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Return the logits of embedded tokens; a mask holds in all layers.

        Tokens that are NaN or infinite make the logits of their image NaN.
        """
        shape = tuple(self.pos_embed.shape[1:])
        _check_floats("tokens", tokens, shape, self.cls_token)
        for block in self.blocks:
            tokens = block(tokens, attn_mask)
        logits: Tensor = self.head(self.norm(tokens)[:, 0])
        return logits


class ScreenedTransformer(nn.Module):
    """A vision transformer behind a screen of its embedded tokens.

    It does what :func:`eigenheads.adapters.screen_tokens` does to other models: tokens
    over the held-out quantile of clean tokens are hidden from all layers, whatever
    their attention.

    Parameters
    ----------
    model
        The trained model; its weights are not changed.
    calibration
        Batches of clean images, the same in each iteration.
    """

    def __init__(self, model: VisionTransformer, calibration: Iterable[Tensor]) -> None:
        super().__init__()
        self.model = model
        screen = TokenScreen(_COMPONENTS, max_share=_MAX_SHARE)
        screen.fit_blocks(lambda: _embedded(model, calibration))
        shape = (*screen.mean_.shape, screen.components_.shape[1])
        self.screen = ScreenModule(shape, max_share=_MAX_SHARE)
        self.screen.load(screen)
        self.screen.to(model.pos_embed.device)

    @property
    def std(self) -> Tensor:
        """Standard deviations by which the model divides its channels."""
        return self.model.std

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images."""
        tokens = self.model.embed(images)
        visible = ~self.screen(tokens)
        return self.model.classify(tokens, visible[:, None, None, :])


@torch.no_grad()
def _embedded(
    model: VisionTransformer, calibration: Iterable[Tensor]
) -> Iterator[np.ndarray[Any, Any]]:
    device = model.pos_embed.device
    for images in calibration:
        yield model.embed(images.to(device)).double().cpu().numpy()


# --- Text ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LanguageSize:
    """Size of a language model; the defaults are the paper's."""

    context: int = 256
    d_model: int = 128
    d_hidden: int = 2048
    depth: int = 16
    n_heads: int = 8
    dropout: float = 0.1


class LanguageModel(nn.Module):
    """A causal transformer over the ids of words."""

    def __init__(
        self,
        n_words: int,
        *,
        size: LanguageSize | None = None,
        attention: AttentionChoice | None = None,
    ) -> None:
        super().__init__()
        size = LanguageSize() if size is None else size
        check_instance("size", size, LanguageSize)
        choice = _check_choice(attention)
        n_words = check_count("n_words", n_words, maximum=_MAX_OUTPUTS)
        d_model = size.d_model
        self.embed = nn.Embedding(n_words, d_model)
        self.position = nn.Parameter(0.02 * torch.randn(size.context, d_model))
        self.drop = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(
            PreNormBlock(
                d_model,
                make_attention(
                    layer,
                    d_model,
                    size.n_heads,
                    n_tokens=size.context,
                    is_causal=True,
                ),
                d_hidden=size.d_hidden,
                dropout=size.dropout,
            )
            # The paper puts RPC-Attention into the first four layers.
            for layer in choice.specs(size.depth, 4)
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_words)
        self.apply(_initialise)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of each next word, ``(batch, tokens, words)``."""
        self._check_ids(ids)
        tokens = self.drop(self.embed(ids) + self.position[: ids.shape[1]])
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens))
        return logits

    def _check_ids(self, ids: Tensor) -> None:
        check_instance("ids", ids, Tensor)
        longest, n_words = len(self.position), self.embed.num_embeddings
        is_whole = ids.dtype in (torch.int32, torch.int64)
        is_dense = ids.layout == torch.strided and ids.device == self.position.device
        fits = ids.ndim == 2 and 0 < ids.shape[-1] <= longest and len(ids) > 0
        if not (is_whole and is_dense and fits):
            contract = f"ids of words, a tensor (batch, at most {longest}) of integers"
            got = Got(f"{ids.dtype} of shape {tuple(ids.shape)} on {ids.device}")
            fail("ids", contract, got)
        # A look at the ids would make a GPU wait, or break a compiled graph.
        is_seen = ids.device.type == "cpu" and not torch.compiler.is_compiling()
        if is_seen and not 0 <= ids.min() <= ids.max() < n_words:
            contract = f"ids from 0 to {n_words - 1}"
            got = Got(f"{int(ids.min())} to {int(ids.max())}")
            fail("ids", contract, got)


# --- Checks and initial weights ------------------------------------------------------


def _check_choice(attention: AttentionChoice | None) -> AttentionChoice:
    if attention is None:
        return AttentionChoice()
    return check_instance("attention", attention, AttentionChoice)


def _check_channels(name: str, values: object) -> list[float]:
    items = check_items(name, values, "three numbers")
    if len(items) != 3:
        fail(name, "three numbers", Got(f"{len(items)} of them"))
    return [check_number(name, item) for item in items]


def _check_floats(name: str, x: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    """Raise unless a batch has this shape, and the device and dtype of the model."""
    check_instance(name, x, Tensor)
    is_dense = x.layout == torch.strided and x.device == like.device
    if not is_dense or tuple(x.shape[1:]) != shape or not len(x):
        contract = f"a tensor of shape (batch, {', '.join(map(str, shape))})"
        got = Got(f"shape {tuple(x.shape)}, layout {x.layout}, on {x.device}")
        fail(name, contract, got)
    if x.device.type == "meta":
        return  # shapes alone pass, where the model has nothing else
    is_cast = torch.is_autocast_enabled(x.device.type) and x.is_floating_point()
    if x.dtype != like.dtype and not is_cast:
        fail(name, f"of dtype {like.dtype}", Got(str(x.dtype)))


def _initialise(module: nn.Module) -> None:
    """Initialise linear maps and embeddings as DeiT does."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
