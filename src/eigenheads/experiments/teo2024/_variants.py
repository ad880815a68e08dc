"""The kinds of attention that are compared, and the sizes of models, as data."""

from dataclasses import dataclass, field
from typing import Any, Final

# A threshold that nothing exceeds: S stays zero.
NOTHING = 1e30


@dataclass(frozen=True)
class AttentionSpec:
    """One attention layer: its kind, and its options."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AttentionVariant:
    """The attention of the first layer, and of all others."""

    first: AttentionSpec
    rest: AttentionSpec


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """Size of a small transformer, its training by AdamW, and the number of seeds.

    A patch is ``patch`` pixels wide; ``learning_rate`` is the largest one.
    """

    patch: int = 2
    d_model: int = 32
    n_heads: int = 2
    depth: int = 2
    n_steps: int = 240
    batch_size: int = 64
    learning_rate: float = 6e-3
    n_seeds: int = 5


_SYMMETRIC = AttentionSpec("symmetric")


def _first(n_iter: int, **options: Any) -> AttentionVariant:
    spec = AttentionSpec("rpc", {"n_iter": n_iter, **options})
    return AttentionVariant(spec, _SYMMETRIC)


def _everywhere(name: str, **options: Any) -> AttentionVariant:
    return AttentionVariant(AttentionSpec(name, options), AttentionSpec(name, options))


VARIANTS: Final[dict[str, AttentionVariant]] = {
    "softmax": _everywhere("softmax"),
    "symmetric": _everywhere("symmetric"),
    # The paper's settings: λ = 4 in the first layer, λ = 3 in all.
    "RPC n=4": _first(4),
    "RPC n=5": _first(5),
    "RPC n=6": _first(6),
    "RPC n=2, all": _everywhere("rpc", n_iter=2, sparsity=3.0),
    "scaled scalar": _everywhere("scaled", kind="scalar"),
    "scaled matrix": _everywhere("scaled", kind="matrix"),
    # Controls, each without one part of the pursuit.
    "S = 0, n=4": _first(4, sparsity=NOTHING),
    "temperature": AttentionVariant(
        AttentionSpec("symmetric", {"matched": True}), _SYMMETRIC
    ),
    "no mixing": AttentionVariant(AttentionSpec("none"), _SYMMETRIC),
    "auto, n=4": _first(4, sparsity="auto"),
    "reference, n=4": _first(4, threshold="reference"),
    # λ down to where S is active.
    "λ=0.25, n=4": _first(4, sparsity=0.25),
    "λ=0.1, n=4": _first(4, sparsity=0.1),
}
ALL: Final = tuple(VARIANTS)
# λ from the paper's down to where S takes most of the keys.
VARIANTS.update({f"λ={x:g}, n=4": _first(4, sparsity=x) for x in (2.0, 1.0, 0.5)})
SPARSITIES: Final = {
    "RPC n=4": 4.0,
    "λ=2, n=4": 2.0,
    "λ=1, n=4": 1.0,
    "λ=0.5, n=4": 0.5,
    "λ=0.25, n=4": 0.25,
    "λ=0.1, n=4": 0.1,
}
# The temperature of the key follows the self-weight of the value, seed by seed.
MATCHED: Final = {"temperature": "RPC n=4"}
CLAIMED: Final = ("RPC n=4", "RPC n=5", "RPC n=6", "RPC n=2, all")
BASELINE: Final = "symmetric"
# The threshold λμ of the authors' program, which made the printed numbers; the text
# has λ/μ. Claims are tested with the program's rule.
PROGRAM: Final = "reference, n=4"
# Models of the language and segmentation tasks.
FEW: Final = (
    "softmax",
    "symmetric",
    PROGRAM,
    "RPC n=4",
    "S = 0, n=4",
    "no mixing",
    "auto, n=4",
    "scaled scalar",
)
