"""One call of an attention layer, and the softmax attention it is made of."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

# An addition to a score whose exponential is zero hides the key.
_HIDES = -103.0


@dataclass(frozen=True)
class Call:
    """What one call of an attention layer did, as tensors of (batch, head, token, …).

    Attributes
    ----------
    tokens
        What entered, ``(batch, tokens, d_model)``.
    queries, keys, values
        Of each head; grouped keys and values not yet repeated.
    bias
        Added to the scaled scores, ``(batch, 1 or heads, 1 or tokens, tokens)``, with
        ``-inf`` where a key is hidden; None if nothing is.
    scale
        Factor of the scores.
    """

    tokens: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    bias: Tensor | None
    scale: float

    def repeated(self) -> tuple[Tensor, Tensor]:
        """Return keys and values with one head for each head of the queries."""
        times = self.queries.shape[1] // self.keys.shape[1]
        if times == 1:
            return self.keys, self.values
        return (
            self.keys.repeat_interleave(times, 1),
            self.values.repeat_interleave(times, 1),
        )

    @cached_property
    def attended(self) -> tuple[Tensor, Tensor]:
        """Weights and outputs of each head."""
        keys, values = self.repeated()
        return attend(self.queries, keys, values, bias=self.bias, scale=self.scale)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    bias: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return softmax weights and outputs; a row that sees nothing is zero.

    In half precision the softmax is taken in single precision, as models do.
    """
    scores = scale * (queries @ keys.transpose(-2, -1))
    dtype = torch.promote_types(scores.dtype, torch.float32)
    scores = scores.to(dtype)
    if bias is not None:
        scores = scores + bias.to(dtype)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return weights, (weights.to(values.dtype) @ values)


def hide(mask: Tensor) -> Tensor:
    """Return what a mask adds to the scores, ``-inf`` for each key that it hides.

    Models write "hidden" as False, as ``-inf``, as the smallest number of their type,
    or as some large negative number.
    """
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=torch.float32).masked_fill(
            ~mask, -torch.inf
        )
    return mask.float().masked_fill(mask <= _HIDES, -torch.inf)


def first_tensor(args: tuple[object, ...], kwargs: dict[str, object]) -> Tensor:
    """Return what enters a module: its first argument, however it was passed."""
    named = kwargs.get("hidden_states")
    candidates = (*args, named, *kwargs.values())
    return next(x for x in candidates if isinstance(x, Tensor))


def by_head(matrix: Tensor, n_heads: int) -> Tensor:
    """Return ``(heads · d_head, …)`` as ``(heads, d_head, …)``."""
    return matrix.reshape(n_heads, -1, *matrix.shape[1:])


def output_by_head(output: nn.Module, n_heads: int) -> dict[str, Tensor | None]:
    """Return the output projection, cut into heads, and its bias."""
    matrix, bias = linear_parts(output)
    d_model = matrix.shape[0]
    cut = matrix.reshape(d_model, n_heads, -1).transpose(0, 1)
    return {"w_output": cut, "b_output": bias}


def linear_parts(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return matrix ``(out, in)`` and bias; Conv1D of GPT-2 keeps it transposed."""
    weight, bias = module.weight, getattr(module, "bias", None)
    assert isinstance(weight, Tensor)
    matrix = weight if isinstance(module, nn.Linear) else weight.T
    return matrix, bias if isinstance(bias, Tensor) else None
