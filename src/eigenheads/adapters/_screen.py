"""Hide tokens that do not fit the others from the attention of a vision model."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads._checks import Got, check_choice, fail
from eigenheads.adapters._attention_call import OWNER, AttentionCall, with_key_rows
from eigenheads.adapters._batch import read_batch, run_model
from eigenheads.adapters._family import (
    AttentionLayer,
    first_tensor,
    hooked,
    linear_parts,
)
from eigenheads.adapters._layers import find_attention_layers
from eigenheads.adapters._variants import (
    SWAP,
    AbstractVariant,
    Attended,
    SwapState,
    plain_attention,
    swap_state,
)
from eigenheads.functional._screening import flag_tokens, imputed_tokens

if TYPE_CHECKING:
    from eigenheads.estimators import TokenScreen

_OWNER = "screen_tokens"
NAME: Final = "token_screen"  # submodule of the first block
Action = Literal["hide", "impute"]
Model = TypeVar("Model", bound=nn.Module)


@final
@dataclass(frozen=True, kw_only=True)
class ScreenVariant(AbstractVariant):
    """Plain attention that does not see tokens flagged by the screen."""

    to: ClassVar[str] = "screen"
    block: str
    shape: tuple[int, int, int]  # tokens, width, components
    max_share: float
    action: Action = "hide"

    @property
    def is_identity(self) -> bool:
        """True: without flagged tokens the attention is the original."""
        return True

    def settings(self) -> str:
        """Return the options as text."""
        shown = "" if self.action == "hide" else f", action={self.action!r}"
        return f"max_share={self.max_share}{shown}"

    def attend(self, call: AttentionCall, module: nn.Module) -> Attended:
        """Return plain attention without the flagged tokens."""
        call = with_key_rows(call)
        screen = swap_state(module).screen
        flags = None if screen is None else screen.flags
        if flags is None:
            return plain_attention(call)
        if flags.shape != (len(call.keys), call.n_keys):
            contract = f"of {tuple(flags.shape)} rows and tokens, as in the first block"
            got = Got(f"{(len(call.keys), call.n_keys)}")
            fail("tokens", contract, got, owner=OWNER)
        hidden = flags[:, None, None, :]
        if call.mask is None:
            mask = ~hidden
        elif call.mask.dtype == torch.bool:
            mask = call.mask & ~hidden
        else:
            mask = call.mask.masked_fill(hidden, -torch.inf)
        return plain_attention(replace(call, mask=mask))


class ScreenModule(nn.Module):
    """A fitted :class:`~eigenheads.estimators.TokenScreen` as buffers of a model."""

    flags: Tensor | None
    mean: Tensor
    components: Tensor
    precision: Tensor
    thresholds: Tensor

    def __init__(self, shape: tuple[int, int, int], *, max_share: float) -> None:
        super().__init__()
        n_tokens, width, r = shape
        self.register_buffer("mean", torch.zeros(n_tokens, width))
        self.register_buffer("components", torch.zeros(width, r))
        self.register_buffer("precision", torch.eye(n_tokens * r))
        self.register_buffer("thresholds", torch.full((n_tokens,), torch.inf))
        self.max_share = max_share
        self.flags = None

    def load(self, fitted: "TokenScreen") -> None:
        """Copy the arrays of a fitted screen."""
        for name in ("mean", "components", "precision", "thresholds"):
            array = np.asarray(getattr(fitted, f"{name}_"))
            getattr(self, name).copy_(torch.from_numpy(array))

    # Not compiled: the formulas look up their array library at run time.
    @torch.compiler.disable
    @torch.no_grad()
    def forward(self, tokens: Tensor, absent: Tensor | None = None) -> Tensor:
        """Return which tokens do not fit, ``(batch, tokens)``; never padding."""
        coordinates = (tokens.float() - self.mean) @ self.components
        return flag_tokens(
            coordinates,
            self.precision,
            self.thresholds,
            max_share=self.max_share,
            absent=absent,
        )

    @torch.compiler.disable
    def impute(
        self, tokens: Tensor, flags: Tensor, absent: Tensor | None = None
    ) -> Tensor:
        """Return the tokens, those that are flagged as the others predict them."""
        unknown = flags if absent is None else flags | absent
        found = imputed_tokens(
            tokens.float(), self.mean, self.components, self.precision, unknown
        )
        return torch.where(flags[..., None], found.to(tokens.dtype), tokens)

    def _apply(self, fn: Any, recurse: bool = True) -> "ScreenModule":
        """Move to another device, but stay in single precision.

        A precision matrix in half precision would be useless, so ``model.half()`` and
        the like do not apply to the screen.
        """
        device = fn(self.thresholds).device
        for name, buffer in self._buffers.items():
            assert buffer is not None
            is_new = buffer.is_meta and device.type != "meta"
            moved = torch.empty_like(buffer, device=device) if is_new else buffer
            self._buffers[name] = moved.to(device)
        return self


class ScreenHook:
    """Forward pre-hook of the first block: flag its tokens before layers attend."""

    def __init__(
        self, screen: ScreenModule, token_axis: int, action: Action = "hide"
    ) -> None:
        self.screen = screen
        self.token_axis = token_axis
        self.action = action

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Set the flags of the screen for this forward pass, or impute tokens."""
        given = first_tensor(args, kwargs)
        tokens = given if self.token_axis == 1 else given.transpose(0, 1)
        if tokens.shape[1:] != self.screen.mean.shape:
            contract = f"of {self.screen.mean.shape[0]} tokens, as in calibration"
            fail("tokens", contract, Got(tuple(tokens.shape)), owner=OWNER)
        absent = _padding(kwargs)
        flags = self.screen(tokens, absent)
        if self.action == "hide":
            self.screen.flags = flags
            return None
        found = self.screen.impute(tokens, flags, absent)
        found = found if self.token_axis == 1 else found.transpose(0, 1)
        return with_tokens(given, found, args, kwargs)


def _padding(kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the padding of a call of PyTorch's layers, booleans or numbers to add."""
    names = ("src_key_padding_mask", "key_padding_mask")
    given = next((kwargs[name] for name in names if name in kwargs), None)
    if given is None or given.dtype == torch.bool:
        return given
    return given == -torch.inf


def with_tokens(
    tokens: Tensor, changed: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with other tokens."""
    others = tuple(changed if one is tokens else one for one in args)
    named = {name: changed if one is tokens else one for name, one in kwargs.items()}
    return others, named


def screen_tokens(
    model: Model,
    calibration: Any,
    *,
    n_components: int = 8,
    false_flag_rate: float = 0.02,
    max_share: float = 0.5,
    action: Action = "hide",
) -> Model:
    """Hide tokens that do not fit the others from the attention of all layers.

    A :class:`~eigenheads.estimators.TokenScreen` is fitted to the tokens that enter the
    first block, on clean inputs without labels. Then each forward pass flags the tokens
    that do not fit, and no token sees them. The weights are not changed.

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
        What happens to tokens that do not fit: ``"hide"`` them from attention, or
        ``"impute"`` them by what the other tokens predict (conditional means of the
        Gaussian). Imputation was better for models trained plainly, hiding for models
        trained with dropped tokens (``screening/mnist``).

    Returns
    -------
    model
        The same object. ``swap_attention(model, to="original")`` removes the screen,
        bit for bit; :func:`attention_summary` shows it.

    Notes
    -----
    It helps if some tokens are replaced or saturated and if the model tolerates missing
    tokens: measure with :func:`eigenheads.robustness.evaluate_robustness` before you
    rely on it. It does not help against adversarial attacks. Under dense noise more
    than `max_share` of the tokens are flagged, and then none is hidden.

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
    from eigenheads.adapters._swap import apply_variants
    from eigenheads.estimators import TokenScreen

    layers = find_attention_layers(model, owner=_OWNER)
    refuse_swapped(layers, owner=_OWNER)
    check_choice("action", action, ("hide", "impute"), owner=_OWNER)
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
        fail("calibration", "inputs that differ from each other", got, owner=_OWNER)
    # Swap first, so that a refusal leaves no screen behind.
    shape = (*fitted.mean_.shape, fitted.components_.shape[1])
    variant = ScreenVariant(
        block=block, shape=shape, max_share=max_share, action=action
    )
    apply_variants(model, dict.fromkeys(layers, variant))
    install_screen(model, layers, variant).load(fitted)
    return model


def refuse_swapped(layers: Iterable[AttentionLayer], *, owner: str) -> None:
    """Raise if a layer has swapped attention or a screen."""
    if any(isinstance(getattr(x.module, SWAP, None), SwapState) for x in layers):
        got = Got("one with swapped attention")
        contract = "a model with its original attention"
        hint = "Call swap_attention(model, to='original') first."
        fail("model", contract, got, owner=owner, hint=hint)


def install_screen(
    model: nn.Module, layers: Iterable[AttentionLayer], variant: ScreenVariant
) -> ScreenModule:
    """Add an empty screen to the first block, and connect the layers with it."""
    block = model.get_submodule(variant.block)
    screen = ScreenModule(variant.shape, max_share=variant.max_share)
    first = next(iter(block.parameters()), torch.zeros(0))
    block.add_module(NAME, screen.to(first.device))
    layers = list(layers)
    axis = 1 if getattr(layers[0].module, "batch_first", True) else 0
    hook = ScreenHook(screen, axis, variant.action)
    block.register_forward_pre_hook(hook, with_kwargs=True)
    for layer in layers:
        swap_state(layer.module).screen = screen
    return screen


def remove_screens(model: nn.Module) -> None:
    """Remove screens that no layer uses any more, with their hooks."""
    # A screen is in use as long as one layer refers to it.
    states = (getattr(module, SWAP, None) for module in model.modules())
    used = {id(x.screen) for x in states if isinstance(x, SwapState) and x.screen}
    for module in list(model.modules()):
        screen = module._modules.get(NAME)
        if not isinstance(screen, ScreenModule) or id(screen) in used:
            continue
        delattr(module, NAME)
        hooks = module._forward_pre_hooks
        for key in [k for k, hook in hooks.items() if isinstance(hook, ScreenHook)]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)


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
            fail("calibration", contract, calibration, owner=_OWNER, error=TypeError)

    def __iter__(self) -> Iterator[Any]:
        for one in [self._given] if self._is_one else self._given:
            is_pair = isinstance(one, tuple | list)
            _refuse_text(one[0] if is_pair else one)
            read = read_batch(self._model, one[0] if is_pair else one, owner=_OWNER)
            yield from read.pieces(self._size)


def _refuse_text(batch: object) -> None:
    values = batch.values() if isinstance(batch, Mapping) else [batch]
    if (isinstance(batch, Mapping) and "input_ids" in batch) or any(
        isinstance(x, Tensor) and not x.is_floating_point() and x.dtype != torch.bool
        for x in values
    ):
        contract = "inputs whose tokens have fixed positions, such as images"
        hint = "Positions of words have no fixed meaning, so a screen cannot be fitted."
        fail("calibration", contract, Got("ids of words"), owner=_OWNER, hint=hint)


class _Reached(Exception):
    """The input of the block was seen: the rest of the model need not run."""


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def blocks_around_first(layers: list[AttentionLayer]) -> list[str]:
    """Return the modules around the first layer and no other one, outermost first."""
    parts = layers[0].name.split(".")
    names = [".".join(parts[:i]) for i in range(len(parts) + 1)]
    others = [layer.name for layer in layers[1:]]
    return [
        name
        for name in dict.fromkeys(names)
        if not any(not name or other.startswith(f"{name}.") for other in others)
    ]


def _find_block(
    model: nn.Module, layers: list[AttentionLayer], batches: Iterable[Any]
) -> tuple[str, int]:
    """Return the outermost module around the first layer alone that takes tokens.

    Its input is the residual stream: embedded tokens with positions, before any norm.
    """
    around = blocks_around_first(layers)
    axis = 1 if getattr(layers[0].module, "batch_first", True) else 0
    seen: dict[str, tuple[int, ...]] = {}

    def keep(name: str) -> Any:
        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tokens = first_tensor(args, kwargs)
            if tokens.ndim == 3 and tokens.is_floating_point():
                seen.setdefault(name, tuple(tokens.shape))

        return before

    first = next(iter(batches), None)
    if first is None:
        contract = "a loader with at least one batch"
        fail("calibration", contract, Got("none"), owner=_OWNER)
    with ExitStack() as stack:
        stack.enter_context(_evaluating(model))
        for name in around:
            stack.enter_context(hooked(model.get_submodule(name), keep(name)))
        run_model(model, first, owner=_OWNER)
    width = linear_parts(layers[0].output)[0].shape[0]
    fitting = [
        name
        for name, shape in seen.items()
        if shape[1 - axis] == first.n_rows and shape[2] == width
    ]
    if not fitting:
        got = Got(f"{type(model).__name__}, whose first layer is {layers[0].name!r}")
        contract = "a model whose first block takes (batch, tokens, width)"
        fail("model", contract, got, owner=_OWNER)
    return min(fitting, key=len), axis


def _block_inputs(
    model: nn.Module, block: str, axis: int, batches: Iterable[Any]
) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the tokens that enter the block, batch by batch."""
    seen: list[Tensor] = []

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(first_tensor(args, kwargs))
        raise _Reached

    n_tokens: int | None = None
    for batch in batches:
        with (
            _evaluating(model),
            hooked(model.get_submodule(block), before),
            suppress(_Reached),
        ):
            run_model(model, batch, owner=_OWNER)
        tokens = seen.pop()
        tokens = tokens if axis == 1 else tokens.transpose(0, 1)
        if n_tokens is not None and tokens.shape[1] != n_tokens:
            got = Got(f"{tokens.shape[1]} tokens after {n_tokens}")
            contract = "inputs with the same number of tokens"
            fail("calibration", contract, got, owner=_OWNER)
        n_tokens = tokens.shape[1]
        yield tokens.double().cpu().numpy()
