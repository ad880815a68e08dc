"""Run a model on a batch and keep the arrays of its heads, layer by layer."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eigenheads._checks import Got, check_count, check_flag, fail
from eigenheads._modules import evaluating
from eigenheads.adapters._attention_call import (
    AttentionCall,
    visibility_of,
    with_key_rows,
)
from eigenheads.adapters._batch import ModelBatch, read_batch, run_model
from eigenheads.adapters._family import AttentionLayer, head_weights
from eigenheads.adapters._layers import find_attention_layers, select_layers
from eigenheads.nn import Visibility
from eigenheads.theory import HeadCertificate, head_certificate

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class CapturedLayer:
    r"""Arrays of one attention layer on a batch, per head.

    Attributes
    ----------
    name, layer
        Path of the attention module in the model, and its index from 0.
    queries, keys, values
        ``(batch, heads, tokens, d_head)``: as they enter the softmax, after rotary
        positions and norms of heads, before scaling; grouped keys and values are
        repeated for each head of the queries.
    weights
        ``(batch, heads, tokens, tokens)``: softmax, masked; None if they are not kept.
    outputs
        ``(batch, heads, tokens, d_head)``: before the output projection.
    tokens
        ``(batch, tokens, d_model)``: input of the attention, after the norm of layers
        that have one before it.
    mask
        ``(batch, tokens)``: False for padding, which no token sees.
    is_causal
        Whether tokens see only themselves and earlier ones.
    scale
        Factor of the scores, usually :math:`1/\sqrt{D}`.
    w_query, w_key, w_value
        ``(heads, d_head, d_model)``: the projections, those of groups repeated.
    w_output
        ``(heads, d_model, d_head)``: head :math:`h` adds
        ``w_output[h] @ outputs[:, h]`` to the layer's result.
    b_query, b_key, b_value, b_output
        Biases, ``(heads, d_head)`` and ``(d_model,)``, or None.
    bias
        ``(batch, 1 or heads, tokens, tokens)``, added to the scores, where `mask` and
        `is_causal` are not the whole mask (sliding windows, custom masks); else None.

    Notes
    -----
    Rows of padding tokens are not meaningful; select others with `mask`. For layers of
    :mod:`eigenheads.nn`, queries, keys and values are those of their last softmax: the
    cleaned keys of RPC-Attention, the corrected values of scaled attention.
    """

    name: str
    layer: int
    queries: Numbers
    keys: Numbers
    values: Numbers
    weights: Numbers
    outputs: Numbers
    tokens: Numbers
    mask: NDArray[np.bool_]
    is_causal: bool
    scale: float
    w_query: Numbers
    w_key: Numbers
    w_value: Numbers
    w_output: Numbers
    b_query: Numbers | None = None
    b_key: Numbers | None = None
    b_value: Numbers | None = None
    b_output: Numbers | None = None
    bias: Numbers | None = None

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return self.queries.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (getattr(self, field.name) for field in fields(self))
        return sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))

    @property
    def visibility(self) -> Visibility:
        """Mask of the layer, from `mask`, `is_causal` and `bias`."""
        if self.bias is None:
            padding = torch.from_numpy(self.mask)
            return Visibility.from_padding(padding, is_causal=self.is_causal)
        bias = torch.from_numpy(self.bias)
        return Visibility(bias.shape[-1], False, bias.isfinite(), bias)

    def recompute(self) -> Numbers:
        """Return the outputs, computed from queries, keys, values and masks.

        Examples
        --------
        >>> import torch
        >>> from eigenheads.adapters import capture_heads
        >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> (captured,) = capture_heads(layer, torch.ones(1, 3, 8))
        >>> bool(np.allclose(captured.recompute(), captured.outputs, atol=1e-6))
        True
        """
        q, k, v = map(torch.from_numpy, (self.queries, self.keys, self.values))
        weights = self.visibility.weights(q, k, scale=self.scale)
        return (weights @ v).numpy()

    def mixed(self) -> Numbers:
        """Return the output of the layer: the heads' outputs, projected and summed."""
        total = np.einsum("bhnv,hdv->bnd", self.outputs, self.w_output, optimize=True)
        return total if self.b_output is None else total + self.b_output

    def certificate(
        self,
        *,
        counts: Sequence[int] = (1, 2, 4, 8),
        key_norm: float | None = None,
        value_radius: float | None = None,
    ) -> HeadCertificate:
        """Bound how far replaced tokens can move the outputs of each head.

        Parameters
        ----------
        counts, key_norm, value_radius
            As in :func:`eigenheads.theory.head_certificate`. Give radii that were
            calibrated on other inputs if you clip keys and values; by default they are
            the largest of these heads, all heads together.

        Returns
        -------
        certificate
            Arrays ``(batch, heads, tokens, …)``. Rows of padding are not meaningful.

        Raises
        ------
        ValueError
            If scores have a bias other than a mask, such as relative positions.

        Examples
        --------
        >>> import torch
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> (captured,) = capture_heads(layer, torch.randn(3, 5, 8))
        >>> captured.certificate(counts=[1]).breakdown.shape
        (3, 2, 5)
        """
        if self.bias is not None and self.bias[np.isfinite(self.bias)].any():
            got = Got(f"{self.name!r}, whose scores have a bias")
            contract = "a layer without a bias of the scores"
            fail("layer", contract, got)
        visible = self.visibility.as_booleans(torch.device("cpu"))
        if visible is not None:
            # Rows that see nothing are padding. They may see all, and stay finite.
            visible = visible | ~visible.any(-1, keepdim=True)
        return head_certificate(
            self.queries,
            self.keys,
            self.values,
            counts=counts,
            scale=self.scale,
            visible=None if visible is None else visible.numpy(),
            key_norm=key_norm,
            value_radius=value_radius,
        )


def capture_heads(
    model: nn.Module,
    batch: Any,
    *,
    layers: Sequence[int] | int | None = None,
    batch_size: int | None = 8,
    max_bytes: int = 2**30,
    with_weights: bool = True,
) -> Iterator[CapturedLayer]:
    """Yield the arrays of a model's heads on a batch, layer by layer.

    The model runs in evaluation mode without gradients, and is not changed.

    Parameters
    ----------
    model
        A model with ``nn.MultiheadAttention``, a Hugging Face encoder or decoder, a
        model with attention laid out as in timm, or with layers of
        :mod:`eigenheads.nn`.
    batch
        A tensor or array (the model's first argument), or a mapping of them by the
        names of its arguments, such as a tokenizer returns. Rows are on axis 0, but
        on axis 1 for PyTorch's own transformers with ``batch_first=False``.
    layers
        Indices of the layers, from 0; negative ones count from the end. None means
        all.
    batch_size
        Number of rows per forward pass; None for all at once. It does not change the
        result.
    max_bytes
        Approximate limit of the captured arrays held at a time, but at least one layer:
        further layers are captured in another pass over the batch.
    with_weights
        Whether to keep the attention weights. Their memory grows with the square of
        the tokens, that of all other arrays in proportion.

    Yields
    ------
    captured
        One :class:`CapturedLayer` per layer, in order.

    Raises
    ------
    ValueError
        If the model's layout is unknown, or it does something other than softmax
        attention of tokens with each other.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> (captured,) = capture_heads(layer, torch.randn(3, 5, 8))
    >>> captured.name, captured.weights.shape
    ('self_attn', (3, 2, 5, 5))
    """
    return PreparedModel.read(
        model, batch, layers, batch_size, max_bytes, with_weights
    ).captured()


@dataclass(frozen=True)
class PreparedModel:
    """A model with the layers to capture and its batch, found and read once."""

    model: nn.Module
    batch: ModelBatch
    layers: list[AttentionLayer]
    batch_size: int | None
    max_bytes: int
    with_weights: bool

    @classmethod
    def read(
        cls,
        model: nn.Module,
        batch: Any,
        layers: Sequence[int] | int | None,
        batch_size: int | None,
        max_bytes: int,
        with_weights: bool,
    ) -> "PreparedModel":
        """Check the arguments of :func:`capture_heads`, find layers, read the batch."""
        attention = find_attention_layers(model)
        chosen = select_layers(attention, layers)
        if batch_size is not None:
            batch_size = check_count("batch_size", batch_size)
        max_bytes = check_count("max_bytes", max_bytes)
        check_flag("with_weights", with_weights)
        inputs = read_batch(model, batch)
        return cls(model, inputs, chosen, batch_size, max_bytes, with_weights)

    def captured(self) -> Iterator[CapturedLayer]:
        """Yield the layers; the size of the first tells how many fit into a pass."""
        n_done, step = 0, 1
        while n_done < len(self.layers):
            group = self.layers[n_done : n_done + step]
            captured = self._pass(group)
            if n_done == 0:
                step = max(1, self.max_bytes // captured[0].nbytes)
            n_done += len(group)
            while captured:
                yield captured.pop(0)

    def _pass(self, layers: list[AttentionLayer]) -> list[CapturedLayer]:
        """Run the model over the batch, and return the arrays of some layers."""
        arrays = {
            layer.index: _LayerArrays(layer, self.batch.n_rows, self.with_weights)
            for layer in layers
        }
        for index, piece in enumerate(self.batch.pieces(self.batch_size)):
            # The first piece runs to its end, to detect layers that are called twice.
            recorder = _CallRecorder(arrays, piece.n_rows, stops=index > 0)
            with _watching(self.model, layers, recorder), suppress(_AllCaptured):
                run_model(self.model, piece)
            _check_seen(layers, recorder.seen)
        return [arrays.pop(layer.index).finish() for layer in layers]


class _AllCaptured(Exception):
    """All wanted layers were captured: later layers need not run."""


@dataclass
class _CallRecorder:
    """Keeps the calls of one pass."""

    arrays: dict[int, "_LayerArrays"]
    n_rows: int
    stops: bool
    seen: Counter[int] = field(default_factory=Counter)

    def __call__(self, layer: AttentionLayer, call: AttentionCall) -> None:
        self.seen[layer.index] += 1
        if self.seen[layer.index] == 1:
            self.arrays[layer.index].add(call, rows=self.n_rows)
        if self.stops and len(self.seen) == len(self.arrays):
            raise _AllCaptured


@contextmanager
def _watching(
    model: nn.Module, layers: list[AttentionLayer], recorder: _CallRecorder
) -> Iterator[None]:
    """Record the layers of a model in evaluation mode, then undo all changes."""
    with ExitStack() as stack:
        for family in {layer.family for layer in layers}:
            stack.enter_context(family.prepare_capture(model))
        for layer in layers:
            record = partial(recorder, layer)
            stack.enter_context(layer.family.capture(layer, record))
        stack.enter_context(evaluating(model))
        yield


def _check_seen(layers: list[AttentionLayer], calls: Counter[int]) -> None:
    for layer in layers:
        times = calls[layer.index]
        if times == 1:
            continue
        if times:
            what = f"{layer.name!r} called {times} times in one pass"
            hint = "Layers that share their weights are not supported."
        else:
            what = f"{layer.name!r}, which was not called or computes its own attention"
            hint = "Choose others with `layers`."
        contract = "a model that calls each attention layer once"
        fail("model", contract, Got(what), hint=hint)


class _LayerArrays:
    """Arrays of one layer, filled piece by piece."""

    def __init__(self, layer: AttentionLayer, n_rows: int, with_weights: bool) -> None:
        self.layer, self.n_rows, self.with_weights = layer, n_rows, with_weights
        self.arrays: dict[str, Numbers] = {}
        self.weights: dict[str, Numbers | None] = {}
        self.scale = 0.0
        self.filled = 0

    def add(self, call: AttentionCall, *, rows: int) -> None:
        """Add the rows of one call."""
        assert call.tokens is not None
        if call.tokens.ndim != 3 or len(call.tokens) != rows:
            got = Got(
                f"{rows} rows and {tuple(call.tokens.shape)} at {self.layer.name!r}"
            )
            contract = "rows that reach the attention as (rows, tokens, d_model)"
            hint = "If its rows are not on axis 0, use batch_size=None."
            fail("batch", contract, got, hint=hint)
        # Scale and projections are the same for all pieces of the batch.
        if not self.weights:
            self.scale = call.scale
            self._read_weights(call)
        repeated = call.with_repeated_keys()
        weights, outputs = call.attended
        self._keep("queries", call.queries, rows)
        self._keep("keys", repeated.keys, rows)
        self._keep("values", repeated.values, rows)
        if self.with_weights:
            self._keep("weights", weights, rows)
        self._keep("outputs", outputs, rows)
        self._keep("tokens", call.tokens, rows)
        bias = visibility_of(with_key_rows(repeated)).as_bias()
        if bias is not None:
            n = bias.shape[-1]
            self._keep("bias", bias.expand(rows, bias.shape[1], n, n), rows)
        self.filled += rows

    def finish(self) -> CapturedLayer:
        """Return the layer."""
        unknown: Any = None
        bias = self.arrays.pop("bias", None)
        n_tokens = self.arrays["tokens"].shape[1]
        # The masks of all pieces together: padding, causality, and the rest.
        visibility = Visibility(n_tokens)
        if bias is not None:
            visibility = Visibility(n_tokens, bias=torch.from_numpy(bias))
        padding, is_causal, extra_bias = visibility.split(self.n_rows)
        mask = padding.numpy()
        real = self.arrays["outputs"].swapaxes(1, 2)[mask]
        if not np.isfinite(real).all():
            got = Got(f"outputs of {self.layer.name!r} that are not")
            fail("model", "of finite numbers", got)
        return CapturedLayer(
            name=self.layer.name,
            layer=self.layer.index,
            mask=mask,
            is_causal=is_causal,
            scale=self.scale,
            bias=None if extra_bias is None else np.array(extra_bias.numpy()),
            weights=self.arrays.pop("weights", unknown),
            **self.arrays,
            **self.weights,  # type: ignore[arg-type]
        )

    def _keep(self, name: str, tensor: Tensor, rows: int) -> None:
        array = as_numbers(tensor)
        if name not in self.arrays:
            shape = (self.n_rows, *array.shape[1:])
            # Zeros, since a piece without a mask hides nothing.
            self.arrays[name] = np.zeros(shape, array.dtype)
        if self.arrays[name].shape[1:] != array.shape[1:]:
            got = Got(f"{array.shape[1:]} after {self.arrays[name].shape[1:]}")
            fail("batch", "rows of one length", got)
        self.arrays[name][self.filled : self.filled + rows] = array

    def _read_weights(self, call: AttentionCall) -> None:
        weights = head_weights(self.layer, call.queries.shape[1], call.keys.shape[1])
        self.weights = {
            k: None if w is None else as_numbers(w) for k, w in weights.items()
        }
        if self.layer.family.checks_values:
            self._check_layout(call)

    def _check_layout(self, call: AttentionCall) -> None:
        """Compare the values with tokens times the projection that was read."""
        assert call.tokens is not None
        tokens = as_numbers(call.tokens)
        values = as_numbers(call.with_repeated_keys().values)
        matrix, bias = self.weights["w_value"], self.weights["b_value"]
        assert matrix is not None
        expected: Numbers = tokens[:, None] @ matrix.swapaxes(1, 2)
        if bias is not None:
            expected = expected + bias[:, None, :]
        # Half precision agrees to a few percent only.
        tolerance = 1e-3 if call.values.dtype.itemsize >= 4 else 5e-2
        size = np.max(np.abs(values), where=np.isfinite(values), initial=1.0)
        same = expected.shape == values.shape and not np.any(
            np.abs(expected - values) > tolerance * size
        )
        if not same:
            got = Got(f"{type(self.layer.module).__name__}, whose values are not")
            contract = "attention whose values are its tokens times a known matrix"
            fail("model", contract, got)


def as_numbers(tensor: Tensor) -> Numbers:
    """Return a copy of a tensor as an array of single or double precision."""
    double = tensor.dtype == torch.float64
    plain = tensor.detach().to("cpu", torch.float64 if double else torch.float32)
    return np.array(plain.numpy())
