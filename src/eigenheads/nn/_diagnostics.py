"""Measurements of a pursuit per head and iteration, and warnings about them."""

import warnings
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from eigenheads.nn._visibility import Visibility

# Self-weights are measured on at most this many evenly spaced tokens of a sequence, so
# that their explicit softmax costs at most 128/N of a plain attention.
N_SAMPLED_TOKENS = 128


class PursuitWarning(UserWarning):
    """Warning: a pursuit flags no corruption, or it no longer mixes tokens."""


@dataclass(frozen=True, kw_only=True)
class PursuitDiagnostics:
    r"""Measurements of each iteration of a pursuit, per head; means over the batch.

    Attributes
    ----------
    flagged
        Share of the key entries flagged as corrupted, :math:`S \ne 0`.
    self_weight
        Mean weight of a token on itself, over at most 128 evenly spaced tokens; near 1
        the layer no longer mixes tokens.
    residual
        :math:`\lVert K - L - S \rVert_F`.
    """

    flagged: Float[Tensor, "n_iter heads"]
    self_weight: Float[Tensor, "n_iter heads"]
    residual: Float[Tensor, "n_iter heads"]


class PursuitRecorder:
    """Collects the measurements of one call, iteration by iteration."""

    def __init__(self, visibility: Visibility, scale: float) -> None:
        self._visibility = visibility
        self._scale = scale
        self._rows: list[tuple[Tensor, Tensor, Tensor]] = []

    @torch.no_grad()
    def add(
        self,
        keys: Tensor,
        low_rank: Tensor,
        sparse: Tensor,
        cleaned: Tensor,
        queries: Tensor,
    ) -> None:
        """Record one iteration, whose softmax compares `queries` with `cleaned`."""
        batch, heads, n_keys, d = keys.shape
        # Padding counts neither in shares nor in norms.
        live = self._visibility.live()
        ones = keys.new_ones(batch, heads, n_keys)
        alive = ones if live is None else ones * live
        total = alive.sum(-1).clamp_min(1.0)
        share = ((sparse != 0).sum(-1) * alive).sum(-1) / (total * d)
        residual = ((keys - low_rank - sparse).square().sum(-1) * alive).sum(-1).sqrt()
        own = self._self_weight(queries, cleaned, alive)
        self._rows.append((share.mean(0), own.mean(0), residual.mean(0)))

    def _self_weight(self, queries: Tensor, cleaned: Tensor, alive: Tensor) -> Tensor:
        n_keys = cleaned.shape[-2]
        count = min(n_keys, N_SAMPLED_TOKENS)
        index = torch.linspace(0, n_keys - 1, count).round().long()
        sample = queries[..., index, :]
        scores = self._scale * sample @ cleaned.transpose(-2, -1)
        scores = scores + self._visibility.rows(index).to(scores)
        at = index.to(cleaned.device).view(-1, 1).expand(*scores.shape[:-1], 1)
        # The softmax weight of a token on itself, without the whole softmax.
        own = scores.gather(-1, at)
        weight = (own - scores.logsumexp(-1, keepdim=True)).exp().squeeze(-1)
        weight = weight.nan_to_num(0.0)  # a token that sees nothing
        alive = alive[..., index]
        return (weight * alive).sum(-1) / alive.sum(-1).clamp_min(1.0)

    def result(self) -> PursuitDiagnostics:
        """Return the collected measurements."""
        flagged, own, residual = (torch.stack(r) for r in zip(*self._rows, strict=True))
        return PursuitDiagnostics(flagged=flagged, self_weight=own, residual=residual)


@dataclass
class PursuitMonitor:
    """Watches a layer in training, and warns once about each of two failures.

    Every tenth call in training is measured, so that the cost is negligible.
    """

    every: int = 10
    patience: int = 100
    n_calls: int = 0
    has_flagged: bool = False
    warned: set[str] = field(default_factory=set)

    def wants(self) -> bool:
        """Count one training call, and return whether to measure it."""
        self.n_calls += 1
        return self.n_calls % self.every == 0 and len(self.warned) < 2

    def add(self, diagnostics: PursuitDiagnostics, *, n_tokens: int) -> None:
        """Add one measured call, and warn if it shows a failure."""
        self.has_flagged |= bool((diagnostics.flagged > 0).any())
        if self.n_calls >= self.patience and not self.has_flagged:
            self._warn(
                "sparse",
                f"the pursuit flagged no key entry in {self.n_calls} training steps: "
                "it removes no corruption. Lower `sparsity`, or set it to 'auto'.",
            )
        # A single token always has weight 1 on itself.
        own = float(diagnostics.self_weight[-1].mean())
        if own > 0.99 and n_tokens > 1:
            self._warn(
                "mixing",
                f"the mean weight of a token on itself is {own:.4f}: the layer no "
                "longer mixes tokens. Lower `n_iter`, or scale the keys down.",
            )

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self.warned:
            self.warned.add(kind)
            warnings.warn(f"RPCAttention: {message}", PursuitWarning, stacklevel=2)
