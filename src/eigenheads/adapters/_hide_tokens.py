"""Hide tokens from the attention of a model: given ones, or those that do not fit."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads._checks import Got, check_choice, check_instance, fail
from eigenheads._modules import evaluating
from eigenheads._rng import torch_generator
from eigenheads.adapters._batch import output_tensor, read_batch, run_model
from eigenheads.adapters._family import (
    AttentionLayer,
    first_tensor,
    hooked,
    linear_parts,
)
from eigenheads.adapters._layers import find_attention_layers
from eigenheads.adapters._screen import (
    Action,
    ScreenModule,
    ScreenVariant,
    blocks_around_first,
    install_screen,
    with_tokens,
)
from eigenheads.adapters._swap import apply_variants
from eigenheads.adapters._variants import SWAP, SwapState, swap_state

if TYPE_CHECKING:
    from eigenheads.estimators import TokenScreen

Model = TypeVar("Model", bound=nn.Module)

_ACTIONS: tuple[Action, Action] = ("impute", "hide")
# Inputs on which the actions are tried, and the share of tokens that is replaced there.
_N_TRIED, _SHARE = 256, 0.25


def screen_tokens(
    model: Model,
    calibration: Any,
    *,
    n_components: int = 8,
    false_flag_rate: float = 0.02,
    max_share: float = 0.5,
    action: Action | Literal["auto"] = "auto",
) -> Model:
    """Impute tokens that do not fit the others, or hide them from the attention.

    A :class:`~eigenheads.estimators.TokenScreen` is fitted to the tokens that enter the
    first block, on clean inputs without labels. Then each forward pass flags the tokens
    that do not fit, and replaces or hides them. The weights are not changed.

    Parameters
    ----------
    model
        A vision model of PyTorch, Hugging Face or timm's layout; changed in place.
    calibration
        Clean inputs: a tensor, a mapping by argument names, or a re-iterable loader of
        these (of pairs, the first is taken). At least 70; a thousand are better.
    n_components, false_flag_rate, max_share
        As in :class:`~eigenheads.estimators.TokenScreen`. Tokens that are the same for
        all inputs (class tokens, registers) are never hidden, nor is padding, whose
        contents are not read; calibrate on inputs without padding.
    action
        What happens to tokens that do not fit: ``"impute"`` them by what the other
        tokens predict (conditional means of the Gaussian), or ``"hide"`` them from
        attention. ``"auto"`` tries both on calibration inputs, clean, with tokens of
        other inputs in a quarter of the places, and with noise on all of them, and
        takes the one with which the outputs agree better with those of the plain model
        on clean inputs. That needs no labels; :func:`attention_summary` has the choice.

    Returns
    -------
    model
        The same object. ``swap_attention(model, to="original")`` removes the screen,
        bit for bit; :func:`attention_summary` shows it.

    Notes
    -----
    It helps if some tokens are replaced or saturated: measure with
    :func:`eigenheads.robustness.evaluate_robustness` before you rely on it. It does not
    help against adversarial attacks, nor against constant patches,
    such as a grey block: these fit their neighbours too well to be found.
    Under dense noise more than `max_share` of the tokens are flagged, and then none is
    changed.

    Positions must have a fixed meaning: models of text raise an error.

    The screen is a submodule of the first block: it moves between devices and is saved
    with the model (state dict, pickle, ``save_pretrained`` with :func:`load_swapped`).

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from eigenheads.adapters import attention_summary
    >>> layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2).eval()
    >>> model = screen_tokens(model, torch.randn(100, 5, 8))
    >>> [row.attention for row in attention_summary(model)]
    ['screen', 'screen']
    """
    from eigenheads.estimators import TokenScreen

    layers = find_attention_layers(model)
    _refuse_swapped(layers)
    check_choice("action", action, ("auto", *_ACTIONS))
    _refuse_text(calibration)
    batches = _Batches(model, calibration)
    block, axis = _find_block(model, layers, batches)
    screen = TokenScreen(
        n_components, false_flag_rate=false_flag_rate, max_share=max_share
    )
    try:
        fitted = screen.fit_blocks(lambda: _block_inputs(model, block, axis, batches))
    except np.linalg.LinAlgError:
        got = Got("tokens that are the same in all of them")
        fail("calibration", "inputs that differ from each other", got)
    # Swap first, so that a refusal leaves no screen behind.
    shape = (*fitted.mean_.shape, fitted.components_.shape[1])
    variant = ScreenVariant(block=block, shape=shape, max_share=max_share)
    if action == "auto":
        variant = _Trial(model, layers, fitted, axis, batches).choose(variant)
    else:
        variant = replace(variant, action=action)
    _install(model, layers, variant, fitted)
    return model


def _install(
    model: nn.Module,
    layers: list[AttentionLayer],
    variant: ScreenVariant,
    fitted: "TokenScreen",
) -> None:
    apply_variants(model, dict.fromkeys(layers, variant))
    install_screen(model, layers, variant).load(fitted)


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
    check_instance("hidden", hidden, Tensor)
    if hidden.ndim != 2 or hidden.dtype != torch.bool or 0 in hidden.shape:
        got = Got(f"{hidden.dtype} of shape {tuple(hidden.shape)}")
        fail("hidden", "booleans of shape (batch, tokens)", got)
    if bool(hidden.all(1).any()):
        got = Got("a row without any")
        fail("hidden", "at least one visible token per row", got)
    layers = find_attention_layers(model)
    _refuse_swapped(layers)
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


def _refuse_swapped(layers: Iterable[AttentionLayer]) -> None:
    """Raise if a layer has swapped attention or a screen."""
    if any(isinstance(getattr(x.module, SWAP, None), SwapState) for x in layers):
        got = Got("one with swapped attention")
        contract = "a model with its original attention"
        hint = "Call swap_attention(model, to='original') first."
        fail("model", contract, got, hint=hint)


# --- Choice of the action ------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Trial:
    """Outputs on inputs whose corruption is planted, with one action and the other."""

    model: nn.Module
    layers: list[AttentionLayer]
    fitted: "TokenScreen"
    axis: int
    batches: "_Batches"

    def choose(self, variant: ScreenVariant) -> ScreenVariant:
        """Return the variant with the action that keeps more of the outputs."""
        inputs = list(self.batches.first(_N_TRIED))
        plain = self._outputs(inputs)
        kept = {}
        for action in _ACTIONS:
            trial = replace(variant, action=action)
            _install(self.model, self.layers, trial, self.fitted)
            try:
                kept[action] = float(
                    np.mean(
                        [
                            _agreement(self._outputs(inputs, trial.block, plant), plain)
                            for plant in (_clean, self._replace, _add_noise)
                        ]
                    )
                )
            finally:
                apply_variants(self.model, dict.fromkeys(self.layers, None))
        # A tie goes to imputing, which changes less.
        action = max(_ACTIONS, key=lambda name: kept[name])
        numbers = ", ".join(f"{name} {kept[name]:.2f}" for name in _ACTIONS)
        return replace(variant, action=action, reason=f"outputs kept: {numbers}")

    def _outputs(
        self, inputs: list[Any], block: str | None = None, plant: Any = None
    ) -> Tensor:
        """Return the outputs of the model, with changed tokens if `plant` is given."""
        noise = torch_generator(0)

        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = first_tensor(args, kwargs)
            tokens = given if self.axis == 1 else given.transpose(0, 1)
            changed = plant(tokens, noise)
            changed = changed if self.axis == 1 else changed.transpose(0, 1)
            return with_tokens(given, changed, args, kwargs)

        with ExitStack() as stack:
            stack.enter_context(evaluating(self.model))
            if block is not None:
                # Before the screen, which is a hook of the same block.
                handle = self.model.get_submodule(block).register_forward_pre_hook(
                    before, with_kwargs=True, prepend=True
                )
                stack.callback(handle.remove)
            outputs = [output_tensor(run_model(self.model, x)) for x in inputs]
        rows = [
            x.transpose(0, 1) if piece.axis and x.ndim > 2 else x
            for x, piece in zip(outputs, inputs, strict=True)
        ]
        return torch.cat([x.detach().float().cpu() for x in rows])

    def _replace(self, tokens: Tensor, noise: torch.Generator) -> Tensor:
        """Put tokens of other inputs and places where a quarter of the tokens are."""
        n_rows, n_tokens, _ = tokens.shape
        # Class tokens and registers are never flagged: they stay.
        movable = torch.from_numpy(np.isfinite(self.fitted.thresholds_))
        draws = torch.rand(n_rows, n_tokens, generator=noise)
        is_replaced = ((draws < _SHARE) & movable).to(tokens.device)
        places = torch.nonzero(movable).flatten()
        rows = torch.randint(n_rows, (n_rows, n_tokens), generator=noise)
        chosen = torch.randint(len(places), (n_rows, n_tokens), generator=noise)
        others = tokens[rows.to(tokens.device), places[chosen].to(tokens.device)]
        return torch.where(is_replaced[..., None], others, tokens)


def _clean(tokens: Tensor, noise: torch.Generator) -> Tensor:
    return tokens


def _add_noise(tokens: Tensor, noise: torch.Generator) -> Tensor:
    """Add noise as large as the tokens vary between inputs to all of them."""
    drawn = torch.randn(tokens.shape, generator=noise).to(tokens)
    return tokens + tokens.float().std(0, correction=0).to(tokens) * drawn


def _agreement(outputs: Tensor, plain: Tensor) -> float:
    """Return the share of rows with the same largest output, or else a correlation.

    Only outputs ``(rows, several)`` are read as classes.
    """
    if plain.ndim == 2 and plain.shape[1] > 1:
        return float((outputs.argmax(1) == plain.argmax(1)).float().mean())
    pair = torch.stack([outputs.flatten(), plain.flatten()])
    return float(torch.corrcoef(pair)[0, 1].nan_to_num(0.0))


# --- Calibration ---------------------------------------------------------------------


class _Batches:
    """Calibration inputs as arguments of the model, re-iterable."""

    def __init__(self, model: nn.Module, calibration: Any, size: int = 64) -> None:
        self._model, self._given, self._size = model, calibration, size
        is_one = isinstance(calibration, Tensor | np.ndarray | Mapping)
        self._is_one = is_one
        if not is_one and (
            not isinstance(calibration, Iterable) or iter(calibration) is calibration
        ):
            contract = "a tensor, a mapping of tensors, or a re-iterable loader of them"
            fail("calibration", contract, calibration, error=TypeError)

    def first(self, n_rows: int) -> Iterator[Any]:
        """Yield pieces until they have so many rows."""
        seen = 0
        for piece in self:
            yield piece
            seen += piece.n_rows
            if seen >= n_rows:
                return

    def __iter__(self) -> Iterator[Any]:
        for item in [self._given] if self._is_one else self._given:
            is_pair = isinstance(item, tuple | list)
            _refuse_text(item[0] if is_pair else item)
            read = read_batch(self._model, item[0] if is_pair else item)
            yield from read.pieces(self._size)


def _refuse_text(batch: object) -> None:
    values = batch.values() if isinstance(batch, Mapping) else [batch]
    if (isinstance(batch, Mapping) and "input_ids" in batch) or any(
        isinstance(x, Tensor) and not x.is_floating_point() and x.dtype != torch.bool
        for x in values
    ):
        contract = "inputs whose tokens have fixed positions, such as images"
        hint = "Positions of words have no fixed meaning, so a screen cannot be fitted."
        fail("calibration", contract, Got("ids of words"), hint=hint)


class _Reached(Exception):
    """The input of the block was seen: the rest of the model need not run."""


def _find_block(
    model: nn.Module, layers: list[AttentionLayer], batches: Iterable[Any]
) -> tuple[str, int]:
    """Return the outermost module around the first layer alone that takes tokens.

    Its input is the residual stream: embedded tokens with positions, before any norm.
    """
    around = blocks_around_first(layers)
    axis = 1 if getattr(layers[0].module, "batch_first", True) else 0
    shapes: dict[str, tuple[int, ...]] = {}

    def keep(name: str) -> Any:
        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tokens = first_tensor(args, kwargs)
            if tokens.ndim == 3 and tokens.is_floating_point():
                shapes.setdefault(name, tuple(tokens.shape))

        return before

    first = next(iter(batches), None)
    if first is None:
        contract = "a loader with at least one batch"
        fail("calibration", contract, Got("none"))
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        for name in around:
            stack.enter_context(hooked(model.get_submodule(name), keep(name)))
        run_model(model, first)
    width = linear_parts(layers[0].output)[0].shape[0]
    fitting = [
        name
        for name, shape in shapes.items()
        if shape[1 - axis] == first.n_rows and shape[2] == width
    ]
    if not fitting:
        got = Got(f"{type(model).__name__}, whose first layer is {layers[0].name!r}")
        contract = "a model whose first block takes (batch, tokens, width)"
        fail("model", contract, got)
    return min(fitting, key=len), axis


def _block_inputs(
    model: nn.Module, block: str, axis: int, batches: Iterable[Any]
) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the tokens that enter the block, batch by batch."""
    inputs: list[Tensor] = []

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.append(first_tensor(args, kwargs))
        raise _Reached

    n_tokens: int | None = None
    for batch in batches:
        with (
            evaluating(model),
            hooked(model.get_submodule(block), before),
            suppress(_Reached),
        ):
            run_model(model, batch)
        tokens = inputs.pop()
        tokens = tokens if axis == 1 else tokens.transpose(0, 1)
        if n_tokens is not None and tokens.shape[1] != n_tokens:
            got = Got(f"{tokens.shape[1]} tokens after {n_tokens}")
            contract = "inputs with the same number of tokens"
            fail("calibration", contract, got)
        n_tokens = tokens.shape[1]
        yield tokens.double().cpu().numpy()
