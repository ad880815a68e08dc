"""Replace or drop tokens at random while a model is trained."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eigenheads._checks import (
    Got,
    check_choice,
    check_instance,
    check_items,
    check_number,
    fail,
)
from eigenheads.adapters._family import first_tensor
from eigenheads.adapters._layers import find_attention_layers
from eigenheads.adapters._screen import blocks_around_first, with_tokens

Mode = Literal["replace", "drop"]
Share = float | Callable[[int], float]


class TokenAugmentation:
    """Handle of :func:`augment_tokens`; as a context, it removes itself at the end.

    Attributes
    ----------
    n_passes
        Number of forward passes in training mode so far.
    """

    def __init__(
        self,
        share: Share,
        mode: Mode,
        keep: Sequence[int],
        generator: torch.Generator | None,
    ) -> None:
        check_choice("mode", mode, ("replace", "drop"))
        if not callable(share):
            share = check_number("share", share, minimum=0.0, maximum=1.0)
        if generator is not None:
            check_instance("generator", generator, torch.Generator)
        self.n_passes = 0
        self._share, self._mode, self._keep = share, mode, _positions(keep)
        self._generator = generator
        self._handles: list[Any] = []
        self._block: str | None = None

    def remove(self) -> None:
        """Remove the hooks; the model is as before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> "TokenAugmentation":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def attach(self, model: nn.Module, names: Sequence[str], axis: int) -> None:
        """Register hooks of the modules that may be the first block."""
        for name in names:
            hook = partial(self._before, name, axis)
            handle = model.get_submodule(name).register_forward_pre_hook(
                hook, with_kwargs=True
            )
            self._handles.append(handle)

    # Not compiled: random places change from pass to pass.
    @torch.compiler.disable
    def _before(
        self,
        name: str,
        axis: int,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # The outermost module that takes tokens is called first; it stays the block.
        if not module.training or self._block not in (None, name):
            return None
        tokens = first_tensor(args, kwargs)
        if tokens.ndim != 3 or not tokens.is_floating_point():
            return None
        self._block = name
        share = self._share
        if not isinstance(share, float):
            share = check_number(
                "share", share(self.n_passes), minimum=0.0, maximum=1.0
            )
        self.n_passes += 1
        rows = tokens if axis == 1 else tokens.transpose(0, 1)
        if self._mode == "drop":
            _refuse_masks(tokens, rows.shape[1], args, kwargs)
            changed = self._dropped(rows, share)
        else:
            changed = self._replaced(rows, share)
        changed = changed if axis == 1 else changed.transpose(0, 1)
        return with_tokens(tokens, changed, args, kwargs)

    def _free(self, n_tokens: int) -> Tensor:
        """Return the positions that may be changed."""
        excluded = {
            place % n_tokens for place in self._keep if -n_tokens <= place < n_tokens
        }
        return torch.tensor(
            [i for i in range(n_tokens) if i not in excluded], dtype=torch.long
        )

    def _chosen(self, batch: int, n_free: int, n: int) -> Tensor:
        """Return `n` places of each example, at random."""
        order = torch.rand(batch, n_free, generator=self._generator).argsort(1)
        return order[:, :n]

    def _replaced(self, tokens: Tensor, share: float) -> Tensor:
        batch, n_tokens, width = tokens.shape
        free = self._free(n_tokens)
        n = round(share * len(free))
        if not n or batch * len(free) < 2:
            return tokens
        places = free[self._chosen(batch, len(free), n)]
        # The number of a token among all free ones; a shift never finds itself.
        total = batch * len(free)
        number = torch.arange(batch)[:, None] * len(free) + torch.searchsorted(
            free, places
        )
        shift = torch.randint(1, total, number.shape, generator=self._generator)
        source = (number + shift) % total
        rows, columns = source // len(free), free[source % len(free)]
        device = tokens.device
        taken = tokens[rows.to(device), columns.to(device)]
        index = places.to(device)[..., None].expand(-1, -1, width)
        return tokens.scatter(1, index, taken)

    def _dropped(self, tokens: Tensor, share: float) -> Tensor:
        batch, n_tokens, width = tokens.shape
        free = self._free(n_tokens)
        # One free token stays in any case.
        n = min(round(share * len(free)), max(len(free) - 1, 0))
        if not n:
            return tokens
        stays = torch.ones(batch, n_tokens, dtype=torch.bool)
        stays.scatter_(1, free[self._chosen(batch, len(free), n)], False)
        stays = stays.to(tokens.device)
        return tokens[stays].view(batch, n_tokens - n, width)


def augment_tokens(
    model: nn.Module,
    share: Share,
    *,
    mode: Mode = "replace",
    keep: Sequence[int] = (0,),
    generator: torch.Generator | None = None,
) -> TokenAugmentation:
    """Replace or drop a share of the tokens at random, in training mode only.

    A model that is trained so loses less if tokens are corrupted or hidden later, for
    example by :func:`screen_tokens`. The tokens are those that enter the first block:
    embedded, with positions. Works with any training loop: it is a forward hook.

    Parameters
    ----------
    model
        A model of PyTorch, Hugging Face or timm's layout, or of :mod:`eigenheads.nn`.
    share
        Share of the tokens, 0 to 1; or a schedule, a function from the number of
        training passes so far to the share.
    mode
        ``"replace"``: by tokens of other examples or places of the batch. ``"drop"``:
        the sequence gets shorter, the order stays; for models that read out one
        position or a mean, without masks.
    keep
        Positions that stay; by default the first, which often is the class token.
    generator
        Random numbers; by default torch's.

    Returns
    -------
    augmentation
        Handle with ``remove()``; also a context.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2)
    >>> with augment_tokens(model, lambda n: min(0.3, n / 1000), mode="drop"):
    ...     model(torch.randn(4, 9, 8)).shape
    torch.Size([4, 9, 8])
    >>> with augment_tokens(model, 0.5, mode="drop"):
    ...     model(torch.randn(4, 9, 8)).shape
    torch.Size([4, 5, 8])
    """
    # The handle checks the settings before the model is touched.
    augmentation = TokenAugmentation(share, mode, keep, generator)
    layers = find_attention_layers(model)
    axis = 1 if getattr(layers[0].module, "batch_first", True) else 0
    augmentation.attach(model, blocks_around_first(layers), axis)
    return augmentation


def _refuse_masks(
    tokens: Tensor, n_tokens: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise if a mask comes with the tokens: it would not fit the shorter sequence."""
    for argument in (*args, *kwargs.values()):
        is_mask = (
            isinstance(argument, Tensor)
            and argument is not tokens
            and argument.ndim > 0
        )
        if is_mask and argument.shape[-1] == n_tokens:
            got = Got(f"a call with a mask of shape {tuple(argument.shape)}")
            hint = "Use mode='replace'."
            fail("mode", "'replace' where masks are used", got, hint=hint)


def _positions(keep: object) -> tuple[int, ...]:
    """Return the positions that stay; negative ones count from the end."""
    contract = "a sequence of integers"
    places = check_items("keep", keep, contract)
    for place in places:
        if isinstance(place, bool) or not isinstance(place, int):
            fail("keep", contract, keep, error=TypeError)
    return tuple(places)
