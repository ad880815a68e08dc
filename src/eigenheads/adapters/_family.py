"""Interface of a model family: find, capture, swap and restore attention layers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from eigenheads.adapters._attention_call import AttentionCall
from eigenheads.adapters._variants import AbstractVariant

Record = Callable[[AttentionCall], None]
Change = Callable[[Tensor], Tensor]
Projection = tuple[Tensor, Tensor | None]  # matrix (out, in), and bias


@dataclass(frozen=True)
class AttentionLayer:
    """A self-attention layer of a model.

    Attributes
    ----------
    name
        Path of the module in the model, as ``get_submodule`` takes it; empty if the
        model is itself one attention layer.
    module
        The module that makes queries, keys and values.
    output
        The module that projects the heads back to the width of the tokens.
    family
        The family whose layout the module has.
    index
        Index among the attention layers of the model, from 0.
    """

    name: str
    module: nn.Module
    output: nn.Module
    family: "AbstractFamily"
    index: int


Wanted = Mapping[AttentionLayer, AbstractVariant | None]  # None: the original attention


class AbstractFamily(ABC):
    """Models that lay out their attention in one way.

    Subclasses are final and have no state: one instance per class is registered in
    :mod:`eigenheads.adapters._layers`.

    Attributes
    ----------
    name
        Name of the family in summaries.
    checks_values
        Whether captured values are compared with the projections that
        :meth:`projections` returns, because a layout may differ from its names.
    """

    name: ClassVar[str]
    checks_values: ClassVar[bool] = False

    @abstractmethod
    def find(
        self, module: nn.Module, parent: nn.Module | None, name: str
    ) -> nn.Module | None:
        """Return the output projection if this is self-attention of the family.

        Parameters
        ----------
        module
            Module to look at.
        parent
            Module that contains it, if any.
        name
            Name of the module in its parent.
        """

    def prepare_capture(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which layers of the model can be captured."""
        return nullcontext()

    @abstractmethod
    def capture(
        self, layer: AttentionLayer, record: Record
    ) -> AbstractContextManager[None]:
        """Return a context in which each call of the layer is passed to `record`."""

    @contextmanager
    def edit(self, layer: AttentionLayer, change: Change) -> Iterator[None]:
        """Replace what the heads pass to the output projection, inside this context.

        `change` takes and returns the outputs of all heads side by side,
        ``(batch, tokens, n_heads * d_head)``.
        """

        def before(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (change(args[0]), *args[1:])

        handle = layer.output.register_forward_pre_hook(before)
        try:
            yield
        finally:
            handle.remove()

    @abstractmethod
    def projections(
        self, module: Any, n_heads: int, n_groups: int
    ) -> Sequence[Projection]:
        """Return the projections to queries, keys and values.

        Parameters
        ----------
        module
            Module of an attention layer.
        n_heads, n_groups
            Number of heads of the queries, and of the keys and values.
        """

    @abstractmethod
    def check_swap(self, model: nn.Module, swaps: Wanted) -> None:
        """Raise unless all layers can be given these variants, or restored."""

    @abstractmethod
    def swap(self, layer: AttentionLayer, variant: AbstractVariant) -> None:
        """Give the layer this variant; :meth:`finish_swap` completes it."""

    @abstractmethod
    def restore(self, layer: AttentionLayer) -> None:
        """Give the layer its original attention back."""

    def finish_swap(self, model: nn.Module) -> None:  # noqa: B027 -- most need none
        """Adapt the model after all its layers were swapped or restored."""


def head_weights(
    layer: AttentionLayer, n_heads: int, n_groups: int
) -> dict[str, Tensor | None]:
    """Return projections and biases per head; those of groups are repeated."""
    matrix, bias = linear_parts(layer.output)
    output = matrix.reshape(matrix.shape[0], n_heads, -1).transpose(0, 1)
    weights: dict[str, Tensor | None] = {"w_output": output, "b_output": bias}
    parts = layer.family.projections(layer.module, n_heads, n_groups)
    for name, (matrix, bias) in zip(("query", "key", "value"), parts, strict=True):
        # Grouped keys and values: one projection per group, repeated for its heads.
        groups = n_heads if name == "query" else n_groups
        for letter, part in (("w", matrix), ("b", bias)):
            if part is None:
                weights[f"{letter}_{name}"] = None
                continue
            by_head = part.reshape(groups, -1, *part.shape[1:])
            repeated = by_head.repeat_interleave(n_heads // groups, 0)
            weights[f"{letter}_{name}"] = repeated
    return weights


def linear_parts(module: nn.Module) -> Projection:
    """Return matrix ``(out, in)`` and bias; Conv1D of GPT-2 stores it transposed."""
    weight, bias = module.weight, getattr(module, "bias", None)
    assert isinstance(weight, Tensor)
    matrix = weight if isinstance(module, nn.Linear) else weight.T
    return matrix, bias if isinstance(bias, Tensor) else None


def first_tensor(args: tuple[object, ...], kwargs: dict[str, object]) -> Tensor:
    """Return the input of a module: its first argument, by position or by name."""
    named = kwargs.get("hidden_states")
    candidates = (*args, named, *kwargs.values())
    return next(x for x in candidates if isinstance(x, Tensor))


@contextmanager
def hooked(module: nn.Module, before: Callable[..., None]) -> Iterator[None]:
    """Call ``before(module, args, kwargs)`` before each call of a module."""
    handle = module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
