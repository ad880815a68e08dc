"""Swap the attention of a trained model, and list the attention of each layer."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import nn

from eigenheads._checks import Got, check_choice, fail
from eigenheads.adapters._family import AttentionLayer, Wanted
from eigenheads.adapters._huggingface import SWAPPED, is_unrestored
from eigenheads.adapters._layers import find_attention_layers, select_layers
from eigenheads.adapters._screen import remove_screens
from eigenheads.adapters._variants import SWAP, VARIANTS, SwapState
from eigenheads.nn import PursuitDiagnostics

Model = TypeVar("Model", bound=nn.Module)
Layers = int | str | Sequence[int | str] | range | None


class SwapWarning(UserWarning):
    """Warning: a swap changes a model in evaluation mode, which may be trained."""


def swap_attention(
    model: Model,
    to: Literal["rpc", "symmetric", "scaled", "original"],
    *,
    layers: Layers = None,
    **options: Any,
) -> Model:
    r"""Replace the attention of layers of a trained model, and keep the weights.

    Parameters
    ----------
    model
        Changed in place. Attention is found in ``nn.MultiheadAttention`` (alone, or in
        PyTorch's transformer layers), Hugging Face models, and modules laid out as
        timm's (``qkv``, ``proj``, ``num_heads``). Cross-attention is not changed.
    to
        ``"rpc"``: RPC-Attention; the pursuit cleans the keys, and the last softmax
        compares the queries with the cleaned keys. ``"symmetric"``: the keys serve as
        queries. ``"scaled"``: values minus a learned multiple of their average; equal
        to the original until it is trained. ``"original"``: the layer before the swap,
        bit for bit.
    layers
        Indices (negative ones count from the end), names as in
        :func:`attention_summary`, or a range; None means all.
    **options
        For ``"rpc"``, as in :func:`eigenheads.nn.rpc_attention`: ``n_iter`` (4),
        ``sparsity`` (4.0, or ``"auto"``; infinity flags nothing), ``threshold``
        (``"paper"``), ``multiplier`` (``"paper"``), ``query_steps`` (``"last"``),
        ``recompute`` (False), and ``queries``: ``"own"`` keeps the model's queries in
        the last softmax; ``"keys"`` drops them, as in the symmetric models of the
        paper, which are trained that way. For ``"scaled"``, as in
        :class:`eigenheads.nn.ScaledAttention`: ``kind`` (``"scalar"``), ``n_tokens``.

    Returns
    -------
    model
        The same object.

    Raises
    ------
    ValueError
        If no attention is found (the message lists modules of the model), or a layer
        computes something that a swap would lose, such as relative positions. The model
        is then unchanged.

    Warns
    -----
    SwapWarning
        If the model is in evaluation mode and its weights were not trained for the new
        attention.

    See Also
    --------
    attention_summary : List the attention of each layer.
    watch_attention : Measure the pursuits of a swapped model.
    load_swapped : Load a swapped Hugging Face model.

    Notes
    -----
    With ``n_iter=1``, ``sparsity=inf`` and own queries, ``"rpc"`` equals the original
    up to rounding. With more iterations, and for ``"symmetric"``, the weights were not
    trained for the new attention: fine-tune before you measure.
    Dropout of attention weights applies in the last softmax only.

    Masks keep their meaning, and hidden tokens have no influence: see
    :func:`eigenheads.nn.rpc_attention`. For tokens that see no key, such as padding at
    the start of a sequence, the heads return zeros; the original returns an average of
    padding.
    Decoding with and without a cache gives equal results; the keys of all cached tokens
    are cleaned again at each step, so each step costs as much as a forward pass over
    the cache in that layer.

    ``"scaled"`` adds a parameter ``attention_scaling`` to each layer: create the
    optimizer afterwards.

    Examples
    --------
    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2)
    >>> model = swap_attention(model, to="rpc", layers=[0], n_iter=2)
    >>> print(attention_summary(model))
    layer  name                family  attention  queries  options
        0  layers.0.self_attn  torch   rpc        own      n_iter=2, sparsity=4.0,
                                                           threshold='paper', ...
        1  layers.1.self_attn  torch   original   own
    """
    check_choice("to", to, (*VARIANTS, "original"))
    variant = None if to == "original" else VARIANTS[to].read(options)
    if variant is None and options:
        name, value = next(iter(options.items()))
        fail(name, "left out for to='original'", value, error=TypeError)
    hint = "Layers to build a model from are in eigenheads.nn."
    present = find_attention_layers(model, hint=hint)
    apply_variants(model, dict.fromkeys(_choose(present, layers), variant))
    if variant is not None and not variant.is_identity and not model.training:
        printed = to == "rpc" and options.get("multiplier", "paper") == "paper"
        sign = (
            " multiplier='admm' has the sign that minimises, and disturbs trained "
            "weights less than the printed one."
            if printed
            else ""
        )
        warnings.warn(
            f"swap_attention: the weights were not trained for attention {to!r}, and "
            "the model is in evaluation mode. Fine-tune it, or expect much lower "
            f"accuracy (often near chance).{sign}",
            SwapWarning,
            stacklevel=2,
        )
    return model


def apply_variants(model: nn.Module, swaps: Wanted) -> None:
    """Check all layers, then swap them; None restores the original attention."""
    # First check everything, then change: a refusal leaves the model as it was.
    families = list(dict.fromkeys(layer.family for layer in swaps))
    for family in families:
        of_family = {x: variant for x, variant in swaps.items() if x.family is family}
        family.check_swap(model, of_family)
    for layer, variant in swaps.items():
        if variant is None:
            layer.family.restore(layer)
        else:
            layer.family.swap(layer, variant)
    for family in families:
        family.finish_swap(model)
    remove_screens(model)


def _choose(present: list[AttentionLayer], layers: Layers) -> list[AttentionLayer]:
    """Return the layers with these indices or names."""
    choice = [layers] if isinstance(layers, int | str) else layers
    if choice is None or not isinstance(choice, Sequence):
        return select_layers(present, choice)
    names = {layer.name: layer.index for layer in present}
    indices = []
    for item in choice:
        if isinstance(item, str):
            check_choice("layers", item, names)
        indices.append(names[item] if isinstance(item, str) else item)
    return select_layers(present, indices)


@dataclass(frozen=True)
class LayerAttention:
    """Attention of one layer of a model.

    Attributes
    ----------
    layer, name, family
        Index, path and family of the module.
    attention
        ``"original"``, ``"rpc"``, ``"symmetric"`` or ``"scaled"``.
    queries
        Queries of the last softmax: the layer's ``"own"``, or its ``"keys"``.
    options
        Settings of the variant, as text.
    """

    layer: int
    name: str
    family: str
    attention: str
    queries: str
    options: str


class AttentionSummary(tuple[LayerAttention, ...]):
    """Attention of each layer of a model, in order; prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        heads = ("layer", "name", "family", "attention", "queries", "options")
        rows = [heads, *(tuple(str(getattr(r, h)) for h in heads) for r in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
        lines = []
        for layer, *cells_of_row in rows:
            cells = zip(cells_of_row, widths[1:], strict=True)
            padded = (cell.ljust(width) for cell, width in cells)
            lines.append("  ".join((layer.rjust(widths[0]), *padded)).rstrip())
        return "\n".join(lines)


def attention_summary(model: nn.Module) -> AttentionSummary:
    """Return the attention of each layer of a model.

    Parameters
    ----------
    model
        Any model that :func:`swap_attention` accepts, swapped or not.

    Returns
    -------
    summary
        A tuple with one row per layer: ``layer``, ``name``, ``family``, ``attention``,
        ``queries``, ``options``. It prints as a table.

    Examples
    --------
    >>> from torch import nn
    >>> print(attention_summary(nn.MultiheadAttention(8, 2)))
    layer  name  family  attention  queries  options
        0        torch   original   own
    """
    present = find_attention_layers(model)
    return AttentionSummary(map(_row, present))


def _row(layer: AttentionLayer) -> LayerAttention:
    # A layer without a state has its original attention, or was saved swapped and
    # loaded without `load_swapped`.
    state = getattr(layer.module, SWAP, None)
    place = (layer.index, layer.name, layer.family.name)
    if not isinstance(state, SwapState):
        if is_unrestored(layer.module):
            return LayerAttention(*place, "not restored", "", f"load with {SWAPPED}")
        attention = "own" if layer.family.name != "eigenheads" else "as built"
        return LayerAttention(*place, "original", attention, "")
    variant = state.variant
    return LayerAttention(*place, variant.to, variant.queries_used, variant.settings())


@contextmanager
def watch_attention(model: nn.Module) -> Iterator[dict[str, PursuitDiagnostics]]:
    """Measure the pursuits of a swapped model during the calls inside the block.

    Parameters
    ----------
    model
        A model with layers swapped to ``"rpc"``.

    Yields
    ------
    seen
        Filled when the block ends: for each swapped layer that was called, by name,
        the diagnostics of its last call.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = swap_attention(nn.MultiheadAttention(8, 2), to="rpc", n_iter=3)
    >>> x = torch.randn(1, 5, 8)
    >>> with watch_attention(model) as seen:
    ...     output, _ = model(x, x, x)
    >>> seen[""].flagged.shape  # iterations, heads
    torch.Size([3, 2])
    """
    states = {
        name: state
        for name, module in model.named_modules()
        if isinstance(state := getattr(module, SWAP, None), SwapState)
        and state.variant.to == "rpc"
    }
    if not states:
        contract = "a model with layers swapped to 'rpc'"
        got = Got(f"{type(model).__name__} without")
        hint = "Call `swap_attention` first."
        fail("model", contract, got, hint=hint)
    last_calls: dict[str, PursuitDiagnostics] = {}
    for state in states.values():
        state.is_watched, state.last = True, None
    try:
        yield last_calls
    finally:
        for name, state in states.items():
            if state.last is not None:
                last_calls[name] = state.last
            state.is_watched, state.last = False, None
