"""Corruption of embedded tokens inside a model, and of words."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_instance,
    check_number,
    fail,
)

_LARGEST_ID = 2**31 - 1


@contextmanager
def corrupting_tokens(
    model: nn.Module,
    layer: str,
    share: float,
    *,
    generator: torch.Generator | None = None,
) -> Iterator[None]:
    """Replace a share of the tokens that a layer of a model returns, in this context.

    A replaced token comes from another position or example of the same batch: the
    marginal distribution of the tokens is unchanged, but they carry no information
    about the example.

    Parameters
    ----------
    model
        A model.
    layer
        Name of its module that returns ``(batch, tokens, d)``, such as an embedding.
    share
        Share of the tokens to replace, 0 to 1.
    generator
        Random numbers.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Identity())
    >>> tokens = torch.arange(6.0).view(1, 6, 1)
    >>> with corrupting_tokens(model, "0", 1.0):
    ...     changed = model(tokens)
    >>> bool((changed != tokens).all())
    True
    """
    owner = "corrupting_tokens"
    share = check_number("share", share, owner=owner, minimum=0.0, maximum=1.0)
    check_instance("model", model, nn.Module, owner=owner)
    check_random(generator, owner=owner)
    modules = dict(model.named_modules())
    check_choice("layer", layer, modules, owner=owner)

    def replace(module: nn.Module, given: Any, tokens: object) -> Tensor:
        if not isinstance(tokens, Tensor) or tokens.ndim != 3:
            got = Got(f"{layer!r}, which returns {_described(tokens)}")
            contract = "a layer that returns (batch, tokens, d)"
            fail("layer", contract, got, owner=owner)
        return _replaced(tokens, share, generator)

    handle = modules[layer].register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


def check_random(generator: object, *, owner: str) -> None:
    """Raise unless `generator` is None or a generator of PyTorch."""
    if generator is not None and not isinstance(generator, torch.Generator):
        fail("generator", "a torch.Generator or None", generator, owner=owner)


def _described(output: object) -> str:
    if isinstance(output, Tensor):
        return f"shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"


def _replaced(
    tokens: Tensor, share: float, generator: torch.Generator | None
) -> Tensor:
    batch, n_tokens, width = tokens.shape
    total = batch * n_tokens
    # The same number of tokens in each example, at random places.
    chosen = torch.rand(batch, n_tokens, generator=generator).argsort(1)
    chosen = (chosen < round(share * n_tokens)).to(tokens.device)
    # A shift by at least one place never takes the token itself.
    shift = torch.randint(1, max(total, 2), (total,), generator=generator)
    source = ((torch.arange(total) + shift) % total).to(tokens.device)
    others = tokens.reshape(total, width)[source].view_as(tokens)
    return torch.where(chosen[..., None], others, tokens)


def swap_words(
    ids: Tensor,
    share: float,
    *,
    replacement: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Replace a share of the words by one fixed word.

    The paper replaces words by "AAA".

    Parameters
    ----------
    ids
        Of any shape.
    share
        Probability that a word is swapped.
    replacement
        Id of the word that replaces it.
    generator
        Random numbers.

    Returns
    -------
    swapped
        Of the same shape.

    Examples
    --------
    >>> import torch
    >>> swap_words(torch.arange(3), 1.0, replacement=7).tolist()
    [7, 7, 7]
    """
    share = check_number("share", share, owner="swap_words", minimum=0.0, maximum=1.0)
    word = check_count(
        "replacement", replacement, owner="swap_words", minimum=0, maximum=_LARGEST_ID
    )
    check_random(generator, owner="swap_words")
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex():
        fail("ids", "a tensor of whole numbers", ids, owner="swap_words")
    if ids.is_meta or ids.is_quantized or ids.layout != torch.strided:
        got = Got("none")
        fail("ids", "a dense tensor that holds numbers", got, owner="swap_words")
    hit = torch.rand(ids.shape, generator=generator).to(ids.device) < share
    return torch.where(hit, word, ids)
