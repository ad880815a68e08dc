"""Give a module another ``forward`` and take it back: the module stays the object.

Its class becomes a subclass of what it was, so parameters, hooks, optimizers and
``isinstance`` go on as before, and going back is exact.
"""

from typing import Any

from torch import nn

from eigenheads.adapters._swap_variants import SWAP, Swap, Variant, attach, detach

_CLASSES: dict[tuple[Any, Any], Any] = {}


class Swapped:
    """Base of the mixins: how swapped modules print, copy and pickle."""

    original_class: type[nn.Module]
    mixin: type["Swapped"]

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        swap: Swap = getattr(self, SWAP)
        variant, before = swap.variant, super().extra_repr()  # type: ignore[misc]
        what = f"attention={variant.to!r}, queries={variant.queries_used!r}"
        return ", ".join(text for text in (before, what, variant.settings()) if text)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        reduced: Any = super().__reduce_ex__(protocol)
        return (_new, (self.original_class, self.mixin), *reduced[2:])


def switch(
    module: nn.Module, mixin: type[Swapped], variant: Variant, n_heads: int
) -> None:
    """Give a module the ``forward`` of `mixin`, with this variant."""
    attach(module, variant, n_heads)
    if not isinstance(module, Swapped):
        module.__class__ = swapped_class(type(module), mixin)


def restore(module: Any) -> None:
    """Give a module its own ``forward`` back."""
    original = getattr(module, "original_class", None)
    if original is not None:
        module.__class__ = original
        detach(module)


def swapped_class(original: Any, mixin: Any) -> Any:
    """Return the class that puts `mixin` before `original`; always the same one."""
    if (original, mixin) not in _CLASSES:
        name = f"Swapped{original.__name__}"
        parts = {"original_class": original, "mixin": mixin, "__doc__": mixin.__doc__}
        _CLASSES[original, mixin] = type(name, (mixin, original), parts)
    return _CLASSES[original, mixin]


def _new(original: Any, mixin: Any) -> Any:
    made = swapped_class(original, mixin)
    return made.__new__(made)
