"""Principal attention pursuit on fused attention, and measurements of it."""

import math
import warnings
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eigenheads._checks import (
    Got,
    as_float,
    check_count,
    check_flag,
    check_number,
    fail,
)
from eigenheads.functional._pursuit import (
    AUTO_MEDIANS,
    check_pursuit,
    check_query_steps,
)
from eigenheads.nn._visibility import Visibility, middle

Threshold = Literal["paper", "reference"] | tuple[Literal["reference"], int]
Multiplier = Literal["paper", "admm"]
QuerySteps = Literal["last", "every"]

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
        self_weight = self._self_weight(queries, cleaned, alive)
        self._rows.append((share.mean(0), self_weight.mean(0), residual.mean(0)))

    def _self_weight(self, queries: Tensor, cleaned: Tensor, alive: Tensor) -> Tensor:
        n_keys = cleaned.shape[-2]
        count = min(n_keys, N_SAMPLED_TOKENS)
        index = torch.linspace(0, n_keys - 1, count).round().long()
        sample = queries[..., index, :]
        scores = self._scale * sample @ cleaned.transpose(-2, -1)
        scores = scores + self._visibility.rows(index).to(scores)
        at = index.to(cleaned.device).view(-1, 1).expand(*scores.shape[:-1], 1)
        # The softmax weight of a token on itself, without the whole softmax.
        to_itself = scores.gather(-1, at)
        weight = (to_itself - scores.logsumexp(-1, keepdim=True)).exp().squeeze(-1)
        weight = weight.nan_to_num(0.0)  # a token that sees nothing
        alive = alive[..., index]
        return (weight * alive).sum(-1) / alive.sum(-1).clamp_min(1.0)

    def result(self) -> PursuitDiagnostics:
        """Return the collected measurements."""
        flagged, self_weight, residual = (
            torch.stack(r) for r in zip(*self._rows, strict=True)
        )
        return PursuitDiagnostics(
            flagged=flagged, self_weight=self_weight, residual=residual
        )


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
        self_weight = float(diagnostics.self_weight[-1].mean())
        if self_weight > 0.99 and n_tokens > 1:
            self._warn(
                "mixing",
                f"the mean weight of a token on itself is {self_weight:.4f}: the layer "
                "no longer mixes tokens. Lower `n_iter`, or scale the keys down.",
            )

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self.warned:
            self.warned.add(kind)
            warnings.warn(f"RPCAttention: {message}", PursuitWarning, stacklevel=2)


@dataclass(frozen=True)
class PursuitSettings:
    """Checked settings of a pursuit: read once, where a layer is made.

    Attributes
    ----------
    n_iter, sparsity
        As in :func:`rpc_attention`.
    width
        Width of the model if the threshold is the reference's, 0 if unknown, or None
        for the paper's.
    multiplier, query_steps
        As in :func:`rpc_attention`.
    """

    n_iter: int
    sparsity: float | Literal["auto"]
    width: int | None
    multiplier: Multiplier = "paper"
    query_steps: QuerySteps = "last"

    @classmethod
    def read(
        cls,
        n_iter: object,
        sparsity: object,
        threshold: object,
        multiplier: Multiplier,
        query_steps: QuerySteps,
    ) -> "PursuitSettings":
        """Return the settings, or raise."""
        width: int | None = None
        # A width may come with the name of the rule.
        if isinstance(threshold, tuple) and len(threshold) == 2:
            threshold, number = threshold
            width = check_count("threshold[1]", number)
        check_pursuit(n_iter, sparsity, threshold, multiplier, query_steps)
        if threshold == "reference":
            width = width or 0
        elif width is not None:
            got = Got(repr((threshold, width)))
            fail("threshold", "'paper' without a width", got)
        count = check_count("n_iter", n_iter)
        level: float | Literal["auto"] = "auto"
        if sparsity != "auto":
            level = as_float(sparsity)
        return cls(count, level, width, multiplier, query_steps)

    def threshold(
        self, argument: Tensor, mean_size: Tensor, visibility: Visibility
    ) -> Tensor:
        r"""Return :math:`\tau`; `mean_size` is each row's mean of :math:`|K|`."""
        # The automatic rule measures the argument; the others scale the mean of |K|.
        if self.sparsity == "auto":
            medians = middle(argument.abs().sort(-1).values).squeeze(-1)
            return AUTO_MEDIANS * visibility.median(medians)
        if self.sparsity == math.inf:
            return torch.full_like(mean_size, math.inf)
        if self.width is None:
            return 4 * self.sparsity * mean_size
        # Zero keys have an infinite mu; the inner `where` keeps its gradient finite.
        safe = torch.where(mean_size > 0, mean_size, 1.0)
        d = argument.shape[-1]
        width = self.width or argument.shape[1] * d
        tau = self.sparsity * width / (4 * d * safe)
        return torch.where(mean_size > 0, tau, torch.inf if self.sparsity else 0.0)


def rpc_attention(
    keys: Float[Tensor, "batch heads n_keys d_head"],
    values: Float[Tensor, "batch heads n_keys d_head"],
    *,
    queries: Float[Tensor, "batch heads n_queries d_head"] | None = None,
    n_iter: int = 4,
    sparsity: float | Literal["auto"] = 4.0,
    threshold: Threshold = "paper",
    multiplier: Multiplier = "paper",
    query_steps: QuerySteps = "last",
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    return_diagnostics: bool = False,
) -> Tensor | tuple[Tensor, PursuitDiagnostics]:
    r"""Split the keys into a low-rank and a sparse part; return the low-rank part.

    This is :func:`eigenheads.functional.attention_pursuit`, computed by `n_iter` fused
    attentions instead of explicit softmaxes. With :math:`Z = Y/\mu` and :math:`P` the
    matrix :math:`K - L + Z` clipped to :math:`[-\tau, \tau]`, a step is

    .. math::

        G = L + P, \quad K' = G - 2Z \text{ or } G, \quad
        L \leftarrow \operatorname{softmax}(c K' K'^\top) V, \quad Z \leftarrow G - L.

    Parameters
    ----------
    keys, values
        Of one shape and dtype.
    queries
        If given, the last softmax compares them with the cleaned keys. Their number may
        differ from that of the keys: cross-attention, or decoding with cached keys.
        With `is_causal`, or a mask with one row per token, they are the last tokens.
    n_iter
        Number of softmaxes.
    sparsity
        :math:`\lambda`; larger values flag fewer entries, infinity none. ``"auto"``
        flags 1 % of the entries of clean Gaussian keys, by a threshold proportional to
        their median absolute value.
    threshold
        ``"paper"``: :math:`\lambda/\mu`. ``"reference"``, as in the authors' code:
        :math:`\lambda\mu` with the width of the model for :math:`D` in :math:`\mu`;
        heads times `d_head` unless given as ``("reference", width)``.
    multiplier
        ``"paper"``: :math:`K' = G - 2Z = K - S - Z`, the sign in the paper. ``"admm"``:
        :math:`K' = G = K - S + Z`, the minimiser of the augmented Lagrangian. With
        equal `n_iter` the second gives sharper attention; it is about two iterations
        ahead. With the first and ``n_iter=2`` the keys cancel in the second iteration,
        so prefer the second to fine-tune a trained model.
    query_steps
        ``"last"``: `queries` enter the last softmax only. ``"every"``: they enter every
        softmax, as in the asymmetric models of the paper; then there must be as many
        queries as keys.
    attn_mask
        Broadcasts to ``(batch, heads, n_keys, n_keys)``: ``True`` where a token (row)
        may see a key (column), or numbers to add to the scores. Padding is one row,
        ``(batch, 1, 1, n_keys)``.
    is_causal
        Whether a token sees only itself and earlier ones; combines with `attn_mask`.
    scale
        :math:`c`; :math:`D^{-1/2}` unless given.
    return_diagnostics
        Whether to return a pair: the output and a :class:`PursuitDiagnostics`.

    Returns
    -------
    output
        Of the shape of `queries`, or else of `keys`.

    Notes
    -----
    Hidden tokens have no influence: each row averages :math:`\mu` over the keys that
    it sees, and tokens that no token sees count as zero. A mask is applied
    in each iteration, so if *i* sees *j* and *j* sees *k*, then *k* influences *i*, as
    in stacked layers; for causal, padding and block masks this changes nothing. A row
    that sees no key returns zeros.

    In half precision the running sums are kept in float32. On a CPU, input or scores
    that are not finite raise an error; on other devices this is not checked, because
    the check would synchronise the device.

    Examples
    --------
    >>> import torch
    >>> keys, values = torch.randn(2, 1, 3, 10, 8).unbind()
    >>> rpc_attention(keys, values, is_causal=True).shape
    torch.Size([1, 3, 10, 8])
    """
    settings = PursuitSettings.read(
        n_iter, sparsity, threshold, multiplier, query_steps
    )
    check_head_tensors(keys, values, queries)
    check_query_steps(query_steps, keys, queries)
    c = keys.shape[-1] ** -0.5 if scale is None else scale
    n_queries = keys.shape[-2] if queries is None else queries.shape[-2]
    pursuit = pursue(
        keys,
        values,
        queries,
        settings=settings,
        visibility=Visibility.read(
            attn_mask, is_causal=is_causal, keys=keys, n_queries=n_queries
        ),
        scale=check_number("scale", c),
        measure=check_flag("return_diagnostics", return_diagnostics),
    )
    if pursuit.diagnostics is None:
        return pursuit.output
    return pursuit.output, pursuit.diagnostics


class PursuitResult(NamedTuple):
    """Output, the keys that entered the last softmax, and measurements if wanted."""

    output: Tensor
    cleaned: Tensor
    diagnostics: PursuitDiagnostics | None


def pursue(
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    *,
    settings: PursuitSettings,
    visibility: Visibility,
    scale: float,
    measure: bool = False,
    dropout: float = 0.0,
    recompute: bool = False,
) -> PursuitResult:
    """Run :func:`rpc_attention` with checked settings, and options of layers."""
    recorder = PursuitRecorder(visibility, scale) if measure else None
    keys, values = visibility.hide(keys), visibility.hide(values)
    arguments = (keys, values, queries, settings, visibility, scale, dropout)
    # Checkpointing keeps keys and values only, and iterates again in the backward
    # pass. A recorded call keeps everything, since it is measured on the way.
    if recompute and recorder is None and torch.is_grad_enabled():
        output, cleaned, size = checkpoint(
            _iterate, *arguments, None, use_reentrant=False
        )
    else:
        output, cleaned, size = _iterate(*arguments, recorder)
    if not torch.compiler.is_compiling() and output.device.type == "cpu":
        _check_finite(output, size * scale**0.5, keys, values, queries)
    diagnostics = None if recorder is None else recorder.result()
    return PursuitResult(output, cleaned, diagnostics)


def _iterate(
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    settings: PursuitSettings,
    visibility: Visibility,
    scale: float,
    dropout: float,
    recorder: PursuitRecorder | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the keys of the last softmax, and the largest norm of keys."""
    # Fused attention returns tokens before heads in memory: a copy into the order of
    # the keys is cheaper than sums over two orders.
    K = keys.to(torch.promote_types(keys.dtype, torch.float32)).contiguous()
    mean_size = visibility.mean(K.abs().mean(-1))
    # Without gradients to come, sums go into memory that is no longer needed.
    in_place = recorder is None and not torch.is_grad_enabled()
    is_admm, in_every = settings.multiplier == "admm", settings.query_steps == "every"
    L = Z = None
    norms = []
    # With Z = Y/mu and the clipped argument P = argument - S, the sum G = L + P is
    # K - S + Z: the sparse part S is never formed.
    for n_left in reversed(range(settings.n_iter)):
        argument = K if L is None or Z is None else _subtract(K + Z, L, in_place)
        # Shrinkage: what exceeds the threshold is S, what stays is `clipped`.
        tau = settings.threshold(argument, mean_size, visibility)
        clipped = _clip(argument, tau)
        G = clipped if L is None else L.add_(clipped) if in_place else L + clipped
        cleaned = G if Z is None or is_admm else torch.sub(G, Z, alpha=2)
        norms.append(torch.linalg.vector_norm(cleaned.detach()))
        # The low-rank step: a fused attention of the cleaned keys, in their own dtype.
        met = cleaned.to(values.dtype)
        rows = met  # the queries of this softmax
        if queries is not None and (in_every or not n_left):
            rows = queries
        output = visibility.attend(
            rows, met, values, scale=scale, dropout=0.0 if n_left else dropout
        )
        if recorder is not None:
            pursuing = rows if in_every else met
            attended = output
            if pursuing is not rows:
                attended = visibility.attend(met, met, values, scale=scale)
            recorder.add(K, attended, argument - clipped, cleaned, pursuing.to(K.dtype))
        if n_left:
            # The multiplier step: Z + K - L - S is G less the new L.
            L = output.to(K.dtype).contiguous()
            Z = _subtract(G, L, in_place)
    return output, met, torch.stack(norms).max()


def _subtract(x: Tensor, y: Tensor, in_place: bool) -> Tensor:
    return x.sub_(y) if in_place else x - y


def _clip(x: Tensor, bound: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return torch.clamp(x, -bound, bound)  # keeps one tensor for the way back
    clipped = torch.maximum(x, -bound)  # these two are three times faster
    return torch.minimum(clipped, bound, out=clipped)


def check_head_tensors(keys: Tensor, values: Tensor, queries: Tensor | None) -> None:
    """Raise unless the arrays of the heads fit each other."""
    tensors = {"keys": keys, "values": values}
    if queries is not None:
        tensors["queries"] = queries
    for name, x in tensors.items():
        if not isinstance(x, Tensor) or not x.is_floating_point():
            contract = "a floating-point tensor"
            fail(name, contract, Got(_kind(x)), error=TypeError)
        if x.ndim != 4 or 0 in x.shape:
            contract = "of shape (batch, heads, tokens, d_head), without empty axes"
            fail(name, contract, Got(tuple(x.shape)))
        if x.layout != torch.strided or x.device != keys.device:
            contract = f"a dense tensor on {keys.device}, as the keys"
            got = Got(f"layout {x.layout} on {x.device}")
            fail(name, contract, got)
        if x.dtype != keys.dtype:
            fail(name, f"of the keys' dtype {keys.dtype}", Got(x.dtype))
    if values.shape != keys.shape:
        contract = f"of the keys' shape {tuple(keys.shape)}"
        fail("values", contract, Got(tuple(values.shape)))
    if queries is not None and (*queries.shape[:2], queries.shape[3]) != (
        *keys.shape[:2],
        keys.shape[3],
    ):
        contract = f"of the keys' shape {tuple(keys.shape)} up to the number of tokens"
        fail("queries", contract, Got(tuple(queries.shape)))


def _kind(x: object) -> str:
    return f"dtype {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def _check_finite(
    output: Tensor, size: Tensor, keys: Tensor, values: Tensor, queries: Tensor | None
) -> None:
    """Raise if an input or a score is not finite, and name the cause.

    Fused attention returns zeros for rows of scores that overflow, so the output does
    not show it; a finite squared norm of all keys bounds every score.
    """
    if queries is not None:
        size = size.maximum(torch.linalg.vector_norm(queries.detach().to(size.dtype)))
    # The sum is one cheap pass; it can also overflow, so only a suspicion.
    good = output.detach().sum().isfinite() or output.isfinite().all()
    if size.square().isfinite() and good:
        return
    tensors = {"keys": keys, "values": values}
    if queries is not None:
        tensors["queries"] = queries
    for name, x in tensors.items():
        if not x.isfinite().all():
            at = tuple(int(i) for i in (~x.isfinite()).nonzero()[0])
            got = Got(f"{x[at].item()} at index {at}")
            fail(name, "finite numbers", got)
    name, x = max(tensors.items(), key=lambda item: float(item[1].abs().max()))
    dtype = str(output.dtype).removeprefix("torch.")
    got = Got(f"entries up to {x.abs().max().item():.2g}")
    hint = "Scale it down, or use float64."
    fail(name, f"small enough for scores in {dtype}", got, hint=hint)
