"""Every attention variant that this package compares, by name, as data.

The name of a variant with RPC-Attention says which threshold the pursuit has:

- ``(text)``: λ/μ, as the paper prints it;
- ``(program)``: λμ, as in the authors' program, which made the printed numbers. Claims
  are tested with this rule;
- ``(auto)``: the threshold that the layer finds itself.

Models ``λ=…`` have the threshold of the text with this λ. Where λ is not named, it is
the paper's: 4 in the first layer, 3 in all layers.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Kind = Literal["softmax", "symmetric", "rpc", "scaled-scalar", "scaled-matrix", "none"]
# Kinds that users of the recipes can choose.
KINDS: Final[tuple[Kind, ...]] = (
    "softmax",
    "symmetric",
    "rpc",
    "scaled-scalar",
    "scaled-matrix",
)


@dataclass(frozen=True)
class AttentionSpec:
    """One attention layer: its kind, and its options."""

    kind: Kind
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AttentionVariant:
    """The attention of the first layer, and of all others."""

    first: AttentionSpec
    rest: AttentionSpec


def _everywhere(kind: Kind, **options: Any) -> AttentionVariant:
    return AttentionVariant(AttentionSpec(kind, options), AttentionSpec(kind, options))


def _pursuit(n_iter: int, *, rest: Kind = "symmetric", **options: Any) -> Any:
    """Return RPC-Attention in the first layer alone."""
    first = AttentionSpec("rpc", {"n_iter": n_iter, **options})
    return AttentionVariant(first, AttentionSpec(rest))


_TEXT: Final[dict[str, Any]] = {"threshold": "paper"}
_PROGRAM: Final[dict[str, Any]] = {"threshold": "reference"}
_RIGHT: Final[dict[str, Any]] = {**_PROGRAM, "multiplier": "admm"}
VARIANTS: Final[dict[str, AttentionVariant]] = {
    "softmax": _everywhere("softmax"),
    "symmetric": _everywhere("symmetric"),
    "scaled scalar": _everywhere("scaled-scalar"),
    "scaled matrix": _everywhere("scaled-matrix"),
    # The paper's models.
    "RPC n=4 (program)": _pursuit(4, **_PROGRAM),
    "RPC n=5 (program)": _pursuit(5, **_PROGRAM),
    "RPC n=6 (program)": _pursuit(6, **_PROGRAM),
    "RPC n=2, all layers (program)": _everywhere(
        "rpc", n_iter=2, sparsity=3.0, **_PROGRAM
    ),
    # Queries enter every softmax of the pursuit.
    "asymmetric RPC n=4 (program), then softmax": _pursuit(
        4, rest="softmax", symmetric=False, query_steps="every", **_PROGRAM
    ),
    # Controls, each with one part of the layer changed.
    "RPC n=4 (text)": _pursuit(4, **_TEXT),
    "RPC n=4 (auto)": _pursuit(4, sparsity="auto"),
    "RPC n=4 (program), right sign": _pursuit(4, **_RIGHT),
    # The right sign is two iterations ahead: this one is as sharp as n=4.
    "RPC n=2 (program), right sign": _pursuit(2, **_RIGHT),
    "RPC n=4 (program), then softmax": _pursuit(4, rest="softmax", **_PROGRAM),
    "symmetric, then softmax": AttentionVariant(
        AttentionSpec("symmetric"), AttentionSpec("softmax")
    ),
    # No entry exceeds the threshold, whatever its rule.
    "S = 0, n=4": _pursuit(4, sparsity=math.inf),
    "no mixing": AttentionVariant(AttentionSpec("none"), AttentionSpec("symmetric")),
    # λ from the paper's down to where S takes most of the keys.
    **{
        f"λ={x:g}": _pursuit(4, sparsity=x, **_TEXT)
        for x in (4.0, 2.0, 1.0, 0.5, 0.25, 0.1)
    },
}
# The model that the paper's claims are tested with.
PROGRAM: Final = "RPC n=4 (program)"
# Models of the language and segmentation tasks.
FEW: Final = (
    "softmax",
    "symmetric",
    PROGRAM,
    "RPC n=4 (text)",
    "S = 0, n=4",
    "no mixing",
    "RPC n=4 (auto)",
    "scaled scalar",
)
