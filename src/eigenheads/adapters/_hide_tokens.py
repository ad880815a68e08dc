"""Hide given tokens from the attention of a model."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eigenheads._checks import Got, check_instance, fail
from eigenheads.adapters._layers import find_attention_layers
from eigenheads.adapters._screen import (
    ScreenModule,
    ScreenVariant,
    refuse_swapped,
)
from eigenheads.adapters._swap import apply_variants
from eigenheads.adapters._variants import swap_state

_OWNER = "hide_tokens"


@contextmanager
def hide_tokens(model: nn.Module, hidden: Tensor) -> Iterator[None]:
    """Hide given tokens from the attention of all layers, in this context.

    Hiding exactly the corrupted tokens shows the most that a screen can gain:
    :func:`eigenheads.robustness.screening_headroom` uses it.

    Parameters
    ----------
    model
        A vision model of PyTorch, Hugging Face or timm's layout, with its original
        attention. It is restored at the end, bit for bit.
    hidden
        Booleans ``(batch, tokens)``, True for tokens that no token may see; at least
        one token per row stays visible. Class tokens count.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    >>> x, other = torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    >>> other[:, 1:] = x[:, 1:]
    >>> hidden = torch.tensor([[True, False, False, False]])
    >>> with hide_tokens(layer, hidden):
    ...     bool(torch.allclose(layer(x)[:, 1:], layer(other)[:, 1:], atol=1e-6))
    True
    """
    check_instance("hidden", hidden, Tensor, owner=_OWNER)
    if hidden.ndim != 2 or hidden.dtype != torch.bool or 0 in hidden.shape:
        got = Got(f"{hidden.dtype} of shape {tuple(hidden.shape)}")
        fail("hidden", "booleans of shape (batch, tokens)", got, owner=_OWNER)
    if bool(hidden.all(1).any()):
        got = Got("a row without any")
        fail("hidden", "at least one visible token per row", got, owner=_OWNER)
    layers = find_attention_layers(model, owner=_OWNER)
    refuse_swapped(layers, owner=_OWNER)
    shape = (hidden.shape[1], 1, 1)
    variant = ScreenVariant(block="", shape=shape, max_share=1.0)
    apply_variants(model, dict.fromkeys(layers, variant))
    # The flags stay as they are: no hook renews them from the tokens.
    screen = ScreenModule(shape, max_share=1.0)
    screen.flags = hidden
    try:
        for layer in layers:
            swap_state(layer.module).screen = screen
        yield
    finally:
        apply_variants(model, dict.fromkeys(layers, None))
