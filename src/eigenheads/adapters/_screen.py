"""Screen of tokens as a part of a model: its buffers, its hook and its variant."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads._checks import Got, fail
from eigenheads.adapters._attention_call import (
    AttentionCall,
    hidden_by_pytorch,
    with_key_rows,
    without_keys,
)
from eigenheads.adapters._family import (
    AttentionLayer,
    first_tensor,
)
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

NAME: Final = "token_screen"  # submodule of the first block
Action = Literal["hide", "impute"]


@final
@dataclass(frozen=True, kw_only=True)
class ScreenVariant(AbstractVariant):
    """Plain attention that does not see tokens flagged by the screen."""

    to: ClassVar[str] = "screen"
    block: str
    shape: tuple[int, int, int]  # tokens, width, components
    max_share: float
    action: Action = "hide"
    reason: str = ""  # of the choice, if it was not the user's

    @property
    def is_identity(self) -> bool:
        """True: without flagged tokens the attention is the original."""
        return True

    def settings(self) -> str:
        """Return the options as text."""
        why = f" ({self.reason})" if self.reason else ""
        return f"max_share={self.max_share}, action={self.action!r}{why}"

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
            fail("tokens", contract, got)
        return plain_attention(replace(call, mask=without_keys(call.mask, flags)))


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
        imputed = imputed_tokens(
            tokens.float(), self.mean, self.components, self.precision, unknown
        )
        return torch.where(flags[..., None], imputed.to(tokens.dtype), tokens)

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
        inputs = first_tensor(args, kwargs)
        tokens = inputs if self.token_axis == 1 else inputs.transpose(0, 1)
        if tokens.shape[1:] != self.screen.mean.shape:
            contract = f"of {self.screen.mean.shape[0]} tokens, as in calibration"
            fail("tokens", contract, Got(tuple(tokens.shape)))
        names = ("src_key_padding_mask", "key_padding_mask")
        padding = next((kwargs[name] for name in names if name in kwargs), None)
        absent = None if padding is None else hidden_by_pytorch(padding)
        flags = self.screen(tokens, absent)
        if self.action == "hide":
            self.screen.flags = flags
            return None
        imputed = self.screen.impute(tokens, flags, absent)
        imputed = imputed if self.token_axis == 1 else imputed.transpose(0, 1)
        return with_tokens(inputs, imputed, args, kwargs)


def with_tokens(
    tokens: Tensor, changed: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with other tokens."""
    positional = tuple(changed if x is tokens else x for x in args)
    return positional, {k: changed if x is tokens else x for k, x in kwargs.items()}


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


def blocks_around_first(layers: list[AttentionLayer]) -> list[str]:
    """Return the modules around the first layer and no other one, outermost first."""
    parts = layers[0].name.split(".")
    names = [".".join(parts[:i]) for i in range(len(parts) + 1)]
    later = [layer.name for layer in layers[1:]]
    return [
        name
        for name in dict.fromkeys(names)
        if not any(not name or other.startswith(f"{name}.") for other in later)
    ]
