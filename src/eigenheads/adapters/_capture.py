"""Run a model on a batch and keep what its heads did, layer by layer."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads._checks import Got, check_count, fail
from eigenheads.adapters._batch import Batch, read_batch, run
from eigenheads.adapters._captured import CapturedLayer, Numbers, read_masks
from eigenheads.adapters._heads import Call
from eigenheads.adapters._sites import FAMILIES, Site, find_sites, select_sites

_OWNER = "capture_heads"


def capture_heads(
    model: nn.Module,
    batch: Any,
    *,
    layers: Sequence[int] | int | None = None,
    batch_size: int | None = 8,
    max_bytes: int = 2**30,
) -> Iterator[CapturedLayer]:
    """Yield what the heads of a model did on a batch, one layer after the other.

    The model runs in evaluation mode without gradients, and is left as it was.

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
        Which layers, counted from 0 (negative: from the end); all by default.
    batch_size
        How many rows the model gets at a time; None for all at once. Does not change
        the result.
    max_bytes
        About how many bytes of captured arrays are held at a time, but at least one
        layer: what does not fit is captured in another pass over the batch.

    Yields
    ------
    captured
        One :class:`CapturedLayer` a layer, in order.

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
    sites = select_sites(find_sites(model, owner=_OWNER), layers, owner=_OWNER)
    if batch_size is not None:
        batch_size = check_count("batch_size", batch_size, owner=_OWNER)
    check_count("max_bytes", max_bytes, owner=_OWNER)
    read = read_batch(model, batch, owner=_OWNER)
    return _passes(model, read, sites, batch_size, int(max_bytes))


def _passes(
    model: nn.Module,
    batch: Batch,
    sites: list[Site],
    batch_size: int | None,
    max_bytes: int,
) -> Iterator[CapturedLayer]:
    """Capture one layer, whose size says how many go into each further pass."""
    done, step = 0, 1
    while done < len(sites):
        group = sites[done : done + step]
        captured = _capture(model, batch, group, batch_size)
        if done == 0:
            step = max(1, max_bytes // captured[0].nbytes)
        done += len(group)
        while captured:
            yield captured.pop(0)


def _capture(
    model: nn.Module, batch: Batch, sites: list[Site], batch_size: int | None
) -> list[CapturedLayer]:
    kept = {site.layer: _Kept(site, batch.n_rows) for site in sites}
    for index, piece in enumerate(batch.pieces(batch_size)):
        # The first pass runs to its end, to see layers that are called twice.
        recorder = _Recorder(kept, piece.n_rows, stops=index > 0)
        with _watching(model, sites, recorder), suppress(_Enough):
            run(model, piece, owner=_OWNER)
        _check_seen(sites, recorder.seen)
    return [kept.pop(site.layer).finish() for site in sites]


class _Enough(Exception):
    """All that is wanted was seen: later layers need not run."""


@dataclass
class _Recorder:
    """Keeps the calls of one pass."""

    kept: dict[int, "_Kept"]
    n_rows: int
    stops: bool
    seen: Counter[int] = field(default_factory=Counter)

    def __call__(self, site: Site, call: Call) -> None:
        self.seen[site.layer] += 1
        if self.seen[site.layer] == 1:
            self.kept[site.layer].add(call, rows=self.n_rows)
        if self.stops and len(self.seen) == len(self.kept):
            raise _Enough


@contextmanager
def _watching(
    model: nn.Module, sites: list[Site], recorder: _Recorder
) -> Iterator[None]:
    """Watch the sites of a model in evaluation mode, then leave all as it was."""
    was_training = [module for module in model.modules() if module.training]
    with ExitStack() as stack:
        for family in {site.family for site in sites}:
            stack.enter_context(FAMILIES[family].prepared(model))
        for site in sites:
            watched = FAMILIES[site.family].watched
            keep = partial(recorder, site)
            stack.enter_context(watched(site.module, keep, owner=_OWNER))
        model.eval()
        try:
            yield
        finally:
            for module in was_training:
                module.training = True


def _check_seen(sites: list[Site], seen: Counter[int]) -> None:
    for site in sites:
        times = seen[site.layer]
        if times == 1:
            continue
        if times:
            what = f"{site.name!r} called {times} times in one pass"
            hint = "Layers that share their weights are not supported."
        else:
            what = f"{site.name!r}, which was not called or attends in its own way"
            hint = "Choose others with `layers`."
        contract = "a model that calls each attention layer once"
        fail("model", contract, Got(what), owner=_OWNER, hint=hint)


class _Kept:
    """Arrays of one layer, filled row by row."""

    def __init__(self, site: Site, n_rows: int) -> None:
        self.site, self.n_rows = site, n_rows
        self.arrays: dict[str, Numbers] = {}
        self.weights: dict[str, Numbers | None] = {}
        self.scale = 0.0
        self.filled = 0

    def add(self, call: Call, *, rows: int) -> None:
        """Take over the rows of one call."""
        if call.tokens.ndim != 3 or len(call.tokens) != rows:
            got = Got(
                f"{rows} rows and {tuple(call.tokens.shape)} at {self.site.name!r}"
            )
            contract = "rows that reach the attention as (rows, tokens, d_model)"
            hint = "If its rows are not on axis 0, use batch_size=None."
            fail("batch", contract, got, owner=_OWNER, hint=hint)
        if not self.weights:
            self.scale = call.scale
            self._read_weights(call)
        keys, values = call.repeated()
        weights, outputs = call.attended
        self._keep("queries", call.queries, rows)
        self._keep("keys", keys, rows)
        self._keep("values", values, rows)
        self._keep("weights", weights, rows)
        self._keep("outputs", outputs, rows)
        self._keep("tokens", call.tokens, rows)
        if call.bias is not None:
            self._keep("bias", call.bias, rows)
        self.filled += rows

    def finish(self) -> CapturedLayer:
        """Return the layer."""
        bias = self.arrays.pop("bias", None)
        n_tokens = self.arrays["tokens"].shape[1]
        mask, is_causal, rest = read_masks(bias, self.n_rows, n_tokens)
        real = self.arrays["outputs"].swapaxes(1, 2)[mask]
        if not np.isfinite(real).all():
            got = Got(f"outputs of {self.site.name!r} that are not")
            fail("model", "of finite numbers", got, owner=_OWNER)
        return CapturedLayer(
            name=self.site.name,
            layer=self.site.layer,
            mask=mask,
            is_causal=is_causal,
            scale=self.scale,
            bias=rest,
            **self.arrays,
            **self.weights,  # type: ignore[arg-type]
        )

    def _keep(self, name: str, tensor: Tensor, rows: int) -> None:
        if name == "bias":  # rows may share it
            n = tensor.shape[-1]
            tensor = tensor.expand(rows, tensor.shape[1], n, n)
        array = as_numbers(tensor)
        if name not in self.arrays:
            shape = (self.n_rows, *array.shape[1:])
            # A piece without a mask hides nothing.
            self.arrays[name] = np.zeros(shape, array.dtype)
        if self.arrays[name].shape[1:] != array.shape[1:]:
            got = Got(f"{array.shape[1:]} after {self.arrays[name].shape[1:]}")
            fail("batch", "rows of one length", got, owner=_OWNER)
        self.arrays[name][self.filled : self.filled + rows] = array

    def _read_weights(self, call: Call) -> None:
        n_heads, n_groups = call.queries.shape[1], call.keys.shape[1]
        found = FAMILIES[self.site.family].head_weights(
            self.site.module, self.site.output, n_heads, n_groups
        )
        self.weights = {
            k: None if w is None else as_numbers(w) for k, w in found.items()
        }
        if self.site.family in ("huggingface", "timm"):
            self._check_layout(call)

    def _check_layout(self, call: Call) -> None:
        """Compare values with the matrices read: a layout may not be what it seems."""
        tokens, values = as_numbers(call.tokens), as_numbers(call.repeated()[1])
        matrix, bias = self.weights["w_value"], self.weights["b_value"]
        assert matrix is not None
        expected: Numbers = tokens[:, None] @ matrix.swapaxes(1, 2)
        if bias is not None:
            expected = expected + bias[:, None, :]
        tolerance = 1e-3 if call.values.dtype.itemsize >= 4 else 5e-2
        size = np.max(np.abs(values), where=np.isfinite(values), initial=1.0)
        same = expected.shape == values.shape and not np.any(
            np.abs(expected - values) > tolerance * size
        )
        if not same:
            got = Got(f"{type(self.site.module).__name__}, whose values are not")
            contract = "attention whose values are its tokens times a known matrix"
            fail("model", contract, got, owner=_OWNER)


def as_numbers(tensor: Tensor) -> Numbers:
    """Return a tensor as an array of single or double precision, on its own."""
    double = tensor.dtype == torch.float64
    plain = tensor.detach().to("cpu", torch.float64 if double else torch.float32)
    return np.array(plain.numpy())
