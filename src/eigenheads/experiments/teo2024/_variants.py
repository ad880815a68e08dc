"""The kinds of attention that are compared, as data. No torch here."""

from dataclasses import dataclass, field
from typing import Any, Final

# A threshold that nothing exceeds: S stays zero.
NOTHING = 1e30


@dataclass(frozen=True)
class Layer:
    """One attention layer: its kind, and its options."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """What the first layer is, and what the others are."""

    first: Layer
    rest: Layer


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a model: pixels a side of image and patch, width, heads, blocks."""

    side: int
    patch: int
    d_model: int
    n_heads: int
    depth: int

    @property
    def grid(self) -> int:
        """Patches a side."""
        return self.side // self.patch


@dataclass(frozen=True, kw_only=True)
class Training:
    """Steps of AdamW, examples a step, largest step size."""

    n_steps: int
    batch_size: int
    learning_rate: float


_SYMMETRIC = Layer("symmetric")


def _first(n_iter: int, **options: Any) -> Variant:
    return Variant(Layer("rpc", {"n_iter": n_iter, **options}), _SYMMETRIC)


def _everywhere(name: str, **options: Any) -> Variant:
    return Variant(Layer(name, options), Layer(name, options))


VARIANTS: Final[dict[str, Variant]] = {
    "softmax": _everywhere("softmax"),
    "symmetric": _everywhere("symmetric"),
    # The paper's settings: λ = 4 in the first layer, λ = 3 in all.
    "RPC n=2": _first(2),
    "RPC n=4": _first(4),
    "RPC n=6": _first(6),
    "RPC n=2, all": _everywhere("rpc", n_iter=2, sparsity=3.0),
    "scaled scalar": _everywhere("scaled", kind="scalar"),
    "scaled matrix": _everywhere("scaled", kind="matrix"),
    # Controls: what of the pursuit does it?
    "S = 0, n=4": _first(4, sparsity=NOTHING),
    "temperature": Variant(Layer("symmetric", {"matched": True}), _SYMMETRIC),
    "no mixing": Variant(Layer("none"), _SYMMETRIC),
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
# Its temperature follows the self-weight of this one, seed by seed.
MATCHED: Final = {"temperature": "RPC n=4"}
CLAIMED: Final = ("RPC n=2", "RPC n=4", "RPC n=6", "RPC n=2, all")
BASELINE: Final = "symmetric"
