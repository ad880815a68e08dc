"""Swap the attention of a trained model, and see what is where."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal, TypeVar

from torch import nn

from eigenheads._checks import Got, check_choice, fail
from eigenheads.adapters._sites import Site, find_sites, select_sites
from eigenheads.adapters._swap_variants import (
    BEFORE,
    IMPLEMENTATION,
    SWAP,
    VARIANTS,
    Swap,
    Variant,
)
from eigenheads.nn import PursuitDiagnostics

Model = TypeVar("Model", bound=nn.Module)
Layers = int | str | Sequence[int | str] | range | None
_OWNER = "swap_attention"
# Imported when a model has such layers: transformers takes seconds.
_ROOMS: Final = {
    "torch": "_swap_torch",
    "timm": "_swap_timm",
    "huggingface": "_swap_huggingface",
}


def swap_attention(
    model: Model,
    to: Literal["rpc", "symmetric", "scaled", "original"] = "rpc",
    *,
    layers: Layers = None,
    **options: Any,
) -> Model:
    r"""Give layers of a trained model another attention, and keep the weights.

    Parameters
    ----------
    model
        Changed in place. Attention is found in ``nn.MultiheadAttention`` (alone, or in
        PyTorch's transformer layers), Hugging Face models, and modules laid out as
        timm's (``qkv``, ``proj``, ``num_heads``). Cross-attention is left alone.
    to
        ``"rpc"``: RPC-Attention; the pursuit cleans the keys, and the queries meet the
        cleaned keys in the last softmax. ``"symmetric"``: the keys take the queries'
        place. ``"scaled"``: values minus a learned multiple of their average; starts
        as the original. ``"original"``: what the layer was, bit for bit.
    layers
        Indices (negative ones count from the end), names as in
        :func:`attention_summary`, or a range; None means all.
    **options
        For ``"rpc"``, as in :func:`eigenheads.nn.rpc_attention`: ``n_iter`` (4),
        ``sparsity`` (4.0, or ``"auto"``; infinity flags nothing), ``threshold``
        (``"paper"``), ``recompute`` (False), and ``queries``: ``"own"`` keeps the
        model's queries in the last softmax; ``"keys"`` drops them, as in the paper,
        whose models are trained that way. For ``"scaled"``, as in
        :class:`eigenheads.nn.ScaledAttention`: ``kind`` (``"scalar"``), ``n_tokens``.

    Returns
    -------
    model
        The same object.

    Raises
    ------
    ValueError
        If no attention is found (the message lists the modules that were looked at),
        or a layer computes something that a swap would lose, such as relative
        positions. The model is then as it was.

    See Also
    --------
    attention_summary : which layer has which attention.
    watch_attention : what the pursuits of a swapped model do.
    load_swapped : load a swapped Hugging Face model.

    Notes
    -----
    With ``n_iter=1``, ``sparsity=inf`` and own queries, ``"rpc"`` is the original up to
    rounding. With more iterations, and for ``"symmetric"``, the layer computes
    something that its weights were not trained for: fine-tune before you measure.
    Dropout of attention weights acts in the last softmax only.

    Masks keep their meaning, and nothing comes in from hidden tokens: see
    :func:`eigenheads.nn.rpc_attention`. Tokens that see nothing, such as padding at
    the start of a sequence, get zeros where the original has an average of padding.
    Decoding with a cache gives what decoding without gives; the keys of all cached
    tokens are cleaned again at each step, so a step costs as much as a forward pass
    over the cache in that layer.

    ``"scaled"`` adds a parameter ``attention_scaling`` to each layer: make the
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
    check_choice("to", to, (*VARIANTS, "original"), owner=_OWNER)
    variant = None if to == "original" else VARIANTS[to].read(options, owner=_OWNER)
    if variant is None and options:
        name, value = next(iter(options.items()))
        fail(name, "left out for to='original'", value, owner=_OWNER, error=TypeError)
    hint = "Layers to build a model from are in eigenheads.nn."
    sites = find_sites(model, owner=_OWNER, hint=hint)
    apply_variants(model, dict.fromkeys(choose(sites, layers), variant))
    return model


def apply_variants(model: nn.Module, wanted: dict[Site, Variant | None]) -> None:
    """Check all sites, then change them; None restores."""
    for site, variant in wanted.items():
        room = _room(site)
        if variant is not None:
            room.check(site, variant, owner=_OWNER)
    rooms = {_room(site) for site in wanted}
    for room in rooms:
        if hasattr(room, "check_model"):
            own = [site for site in wanted if _room(site) is room]
            room.check_model(model, own, owner=_OWNER)
    for site, variant in wanted.items():
        if variant is None:
            _room(site).unswap(site)
        else:
            _room(site).swap(site, variant)
    for room in rooms:
        room.finish(model)


def choose(sites: list[Site], layers: Layers) -> list[Site]:
    """Return the sites that `layers` names, by index or name."""
    wanted = [layers] if isinstance(layers, int | str) else layers
    if wanted is None or not isinstance(wanted, Sequence):
        return select_sites(sites, wanted, owner=_OWNER)
    names = {site.name: site.layer for site in sites}
    indices = []
    for one in wanted:
        if isinstance(one, str):
            check_choice("layers", one, names, owner=_OWNER)
        indices.append(names[one] if isinstance(one, str) else one)
    return select_sites(sites, indices, owner=_OWNER)


def _room(site: Site) -> ModuleType:
    if site.family not in _ROOMS:
        contract = "without layers of eigenheads.nn among those to swap"
        got = Got(f"{site.name or 'the model'} ({type(site.module).__name__})")
        hint = "Make another layer and load its state dict; their names agree."
        fail("model", contract, got, owner=_OWNER, hint=hint)
    return importlib.import_module(f"eigenheads.adapters.{_ROOMS[site.family]}")


@dataclass(frozen=True)
class LayerAttention:
    """What one layer of a model uses.

    Attributes
    ----------
    layer, name, family
        Index, path and family of the module.
    attention
        ``"original"``, ``"rpc"``, ``"symmetric"`` or ``"scaled"``.
    queries
        Whether its last softmax asks with the layer's ``"own"`` queries or with its
        ``"keys"``.
    options
        Settings of the variant, in words.
    """

    layer: int
    name: str
    family: str
    attention: str
    queries: str
    options: str


class AttentionSummary(tuple[LayerAttention, ...]):
    """The layers of a model, in order; prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        heads = ("layer", "name", "family", "attention", "queries", "options")
        rows = [heads, *(tuple(str(getattr(r, h)) for h in heads) for r in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
        lines = []
        for layer, *rest in rows:
            cells = zip(rest, widths[1:], strict=True)
            padded = (cell.ljust(width) for cell, width in cells)
            lines.append("  ".join((layer.rjust(widths[0]), *padded)).rstrip())
        return "\n".join(lines)


def attention_summary(model: nn.Module) -> AttentionSummary:
    """Return which layer of a model has which attention.

    Parameters
    ----------
    model
        Any model that :func:`swap_attention` takes, swapped or not.

    Returns
    -------
    summary
        A tuple of :class:`LayerAttention`; prints as a table.

    Examples
    --------
    >>> from torch import nn
    >>> print(attention_summary(nn.MultiheadAttention(8, 2)))
    layer  name  family  attention  queries  options
        0        torch   original   own
    """
    return AttentionSummary(
        _row(site) for site in find_sites(model, owner="attention_summary")
    )


def _row(site: Site) -> LayerAttention:
    swap = getattr(site.module, SWAP, None)
    place = (site.layer, site.name, site.family)
    if not isinstance(swap, Swap):
        config = getattr(site.module, "config", None)
        name = getattr(config, "_attn_implementation", None)
        if name == IMPLEMENTATION and not hasattr(site.module, BEFORE):
            return LayerAttention(*place, "not restored", "", f"load with {name}")
        own = "own" if site.family != "eigenheads" else "as built"
        return LayerAttention(*place, "original", own, "")
    variant = swap.variant
    return LayerAttention(*place, variant.to, variant.queries_used, variant.settings())


@contextmanager
def watch_attention(model: nn.Module) -> Iterator[dict[str, PursuitDiagnostics]]:
    """Measure what the pursuits of a swapped model do to the calls inside the block.

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
    swaps = {
        name: swap
        for name, module in model.named_modules()
        if isinstance(swap := getattr(module, SWAP, None), Swap)
        and swap.variant.to == "rpc"
    }
    if not swaps:
        contract = "a model with layers swapped to 'rpc'"
        got = Got(f"{type(model).__name__} without")
        hint = "Call `swap_attention` first."
        fail("model", contract, got, owner="watch_attention", hint=hint)
    seen: dict[str, PursuitDiagnostics] = {}
    for swap in swaps.values():
        swap.is_watched, swap.last = True, None
    try:
        yield seen
    finally:
        for name, swap in swaps.items():
            if swap.last is not None:
                seen[name] = swap.last
            swap.is_watched, swap.last = False, None
