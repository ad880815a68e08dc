"""The layout of timm's attention: ``qkv``, ``proj``, ``num_heads``; timm not needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from eigenheads._checks import Got, fail
from eigenheads.adapters._heads import (
    Call,
    by_head,
    first_tensor,
    hide,
    output_by_head,
)


def output_projection(
    module: nn.Module, parent: nn.Module | None, name: str
) -> nn.Module | None:
    """Return the output projection if this is laid out as timm's, else None."""
    qkv, proj = getattr(module, "qkv", None), getattr(module, "proj", None)
    if not (isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear)):
        return None
    if not isinstance(getattr(module, "num_heads", None), int):
        return None
    return proj


def prepared(model: nn.Module) -> nullcontext[None]:
    """Nothing to prepare."""
    return nullcontext()


@contextmanager
def watched(
    module: nn.Module, record: Callable[[Call], None], *, owner: str
) -> Iterator[None]:
    """Record each call of the module, and refuse one that is not what it looks like."""

    def see(
        module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> None:
        call = _read(module, args, kwargs)
        _check(module, call, result, owner=owner)
        record(call)

    handle = module.register_forward_hook(see, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def head_weights(
    module: Any, output: nn.Module, n_heads: int, n_groups: int
) -> dict[str, Tensor | None]:
    """Return projections and biases, cut into heads."""
    found = output_by_head(output, n_heads)
    matrices = module.qkv.weight.chunk(3)
    biases = (None,) * 3 if module.qkv.bias is None else module.qkv.bias.chunk(3)
    for name, matrix, bias in zip(
        ("query", "key", "value"), matrices, biases, strict=True
    ):
        found[f"w_{name}"] = by_head(matrix, n_heads)
        found[f"b_{name}"] = None if bias is None else by_head(bias, n_heads)
    return found


def _read(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    tokens = first_tensor(args, kwargs)
    qkv = module.qkv(tokens).unflatten(-1, (3, module.num_heads, -1))
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    q, k = (
        getattr(module, name, nn.Identity())(x)
        for name, x in (("q_norm", q), ("k_norm", k))
    )
    mask = kwargs.get("attn_mask", args[1] if len(args) > 1 else None)
    scale = float(getattr(module, "scale", q.shape[-1] ** -0.5))
    return Call(tokens, q, k, v, _bias(mask), scale)


def _bias(mask: object) -> Tensor | None:
    """Return a mask with four axes; True may be seen, as in fused attention."""
    if not isinstance(mask, Tensor):
        return None
    return hide(mask).expand((*(1,) * (4 - mask.ndim), *mask.shape))


def _check(module: Any, call: Call, result: object, *, owner: str) -> None:
    """Compare with what the module returned: it may do more than its layout says."""
    _, outputs = call.attended
    mixed = module.proj(outputs.transpose(1, 2).flatten(2))
    if isinstance(result, Tensor) and result.shape == mixed.shape:
        tolerance = 1e-3 if mixed.dtype.itemsize >= 4 else 5e-2
        if (mixed - result).abs().nan_to_num(0.0).max() <= tolerance * (
            1 + result.abs().nan_to_num(0.0).max()
        ):
            return
    name = type(module).__name__
    got = Got(f"{name}, which has qkv and proj but returns something else")
    hint = "Relative positions, rotary positions and gates are not supported there."
    fail("model", "plain softmax attention", got, owner=owner, hint=hint)
