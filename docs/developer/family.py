"""Skeleton of a model family, for ``adapters/_<family>.py``.

Its instance is listed in ``FAMILIES`` of ``adapters/_layers.py``.
"""

from typing import Any, final

import torch
from torch import Tensor, nn

from eigenheads.adapters._attention_call import AttentionCall
from eigenheads.adapters._family import (
    AbstractFamily,
    AttentionLayer,
    Record,
    Wanted,
    first_tensor,
    hooked,
    linear_parts,
)
from eigenheads.adapters._variants import (
    AbstractVariant,
    SwappedModule,
    attend_swapped,
    restore_class,
    swap_class,
)


class TripleAttention(nn.Module):
    """A layout that no other family knows: three matrices with Greek names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.alpha, self.beta, self.gamma, self.out = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend without a mask."""
        call = _read_call(self, x)
        weights = torch.softmax(call.scale * call.queries @ call.keys.mT, dim=-1)
        return _merge(self, weights @ call.values)


def _read_call(module: Any, x: Tensor) -> AttentionCall:
    """Return one call in the form that all families share."""
    parts = [
        linear(x).unflatten(-1, (module.heads, -1)).transpose(1, 2)
        for linear in (module.alpha, module.beta, module.gamma)
    ]
    queries, keys, values = parts
    scale = keys.shape[-1] ** -0.5
    return AttentionCall(
        queries=queries, keys=keys, values=values, mask=None, scale=scale, tokens=x
    )


def _merge(module: Any, output: Tensor) -> Tensor:
    return module.out(output.transpose(1, 2).flatten(2))


class SwappedTriple(SwappedModule):
    """The module with another attention in its heads."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """Attend as the variant does."""
        output, _ = attend_swapped(self, _read_call(self, x))
        return _merge(self, output)


@final
class TripleFamily(AbstractFamily):
    """Modules like :class:`TripleAttention`."""

    name = "triple"

    def find(
        self, module: nn.Module, parent: nn.Module | None, name: str
    ) -> nn.Module | None:
        """Return the output projection if the module has this layout."""
        return module.out if isinstance(module, TripleAttention) else None

    def capture(
        self,
        layer: AttentionLayer,
        record: Record,
    ):
        """Return a context in which each call of the layer is passed to `record`."""

        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            record(_read_call(module, first_tensor(args, kwargs)))

        return hooked(layer.module, before)

    def projections(self, module: Any, n_heads: int, n_groups: int):
        """Return matrix and bias of queries, keys and values."""
        return [linear_parts(m) for m in (module.alpha, module.beta, module.gamma)]

    def check_swap(
        self,
        model: nn.Module,
        wanted: Wanted,
    ) -> None:
        """Accept every variant: this layout has no positions, gates or masks."""

    def swap(self, layer: AttentionLayer, variant: AbstractVariant) -> None:
        """Give the layer this variant."""
        module: Any = layer.module
        swap_class(module, SwappedTriple, variant, module.heads)

    def restore(self, layer: AttentionLayer) -> None:
        """Give the layer its original attention back."""
        restore_class(layer.module)
