"""Inputs of a model: tensors, arrays, or a mapping of them, cut into rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenheads._checks import (
    Got,
    as_numpy,
    fail,
)
from eigenheads._errors import UsageError
from eigenheads._modules import device_of

# Masks of PyTorch's transformers that all rows share when they have two axes.
_SHARED = ("mask", "src_mask", "tgt_mask", "attn_mask")


@dataclass(frozen=True)
class ModelBatch:
    """Arguments of a model's call.

    Attributes
    ----------
    args, kwargs
        As the model takes them.
    axis
        Axis of the rows in tensors of three axes: 1 for PyTorch's transformers with
        ``batch_first=False``, else 0.
    n_rows
        Number of sequences or images.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    axis: int
    n_rows: int

    def pieces(self, size: int | None) -> Iterator["ModelBatch"]:
        """Yield the rows, at most `size` at a time."""
        step = self.n_rows if size is None else size
        for start in range(0, self.n_rows, step):
            stop = min(start + step, self.n_rows)
            yield ModelBatch(
                tuple(self._cut("", x, start, stop) for x in self.args),
                {k: self._cut(k, x, start, stop) for k, x in self.kwargs.items()},
                self.axis,
                stop - start,
            )

    def rows_of(self, name: str, x: Any) -> tuple[int, int] | None:
        """Return axis and length of the rows of an argument, or None if shared."""
        if not isinstance(x, Tensor) or x.ndim == 0:
            return None
        if name in _SHARED and x.ndim == 2:
            return None
        axis = self.axis if x.ndim == 3 and name not in _SHARED else 0
        return axis, x.shape[axis]

    def _cut(self, name: str, x: Any, start: int, stop: int) -> Any:
        rows = self.rows_of(name, x)
        if rows is None or stop - start == self.n_rows:
            return x
        # A mask of PyTorch may have a row for each head of each sequence.
        times = rows[1] // self.n_rows
        return x.narrow(rows[0], start * times, (stop - start) * times)


# What models raise at input that they cannot take.
_OF_MODELS = (
    TypeError,
    ValueError,
    RuntimeError,
    IndexError,
    AttributeError,
    AssertionError,
)


def read_batch(model: nn.Module, batch: Any) -> ModelBatch:
    """Return a batch as arguments of the model, on its device, or raise."""
    check_has_weights(model)
    device = device_of(model)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(batch, Mapping):
        kwargs = {str(k): _tensor(x, device) for k, x in batch.items()}
    else:
        n_times = 3 if isinstance(model, nn.MultiheadAttention) else 1
        args = (_tensor(batch, device),) * n_times
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim]
    if not tensors:
        contract = "a tensor, an array, or a mapping of them by the model's arguments"
        fail("batch", contract, batch, error=TypeError)
    # Tensors of three axes may have the tokens first; all others have rows first.
    axis = _row_axis(model)
    n_rows = tensors[0].shape[axis if tensors[0].ndim == 3 else 0]
    empty = [tuple(tensor.shape) for tensor in tensors if 0 in tensor.shape]
    if empty:
        got = Got(f"a tensor of shape {empty[0]}")
        fail("batch", "at least one row and one token", got)
    read = ModelBatch(args, kwargs, axis, n_rows)
    _check_rows(read)
    _check_ids(model, kwargs.get("input_ids"))
    _check_finite(read)
    return read


def check_has_weights(model: nn.Module) -> None:
    """Raise if parameters of the model are on the device ``meta``."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            got = Got(f"{name!r} on the device meta")
            contract = "a model whose parameters hold numbers"
            hint = "Load its weights first."
            fail("model", contract, got, hint=hint)


def run_model(model: nn.Module, batch: ModelBatch) -> Any:
    """Return what the model returns; an error inside it becomes one sentence."""
    try:
        with torch.no_grad():
            return model(*batch.args, **batch.kwargs)
    except UsageError:
        raise
    except _OF_MODELS as error:
        got = Got(f"one at which {type(model).__name__} raised {error!r}"[:400])
        fail("batch", "input that the model takes", got)


def output_tensor(output: Any) -> Tensor:
    """Return the tensor of a model's output: its logits, or else the first tensor."""
    if isinstance(output, Tensor):
        return output
    named = dict(output) if isinstance(output, Mapping) else {}
    several = output if isinstance(output, Sequence) else ()
    candidates = (named.get("logits"), *named.values(), *several)
    # A loss that was computed with the output is a single number.
    tensors = [x for x in candidates if isinstance(x, Tensor) and x.ndim]
    if not tensors:
        got = Got(f"one that returns {type(output).__name__}")
        fail("model", "a model that returns a tensor, or some with a name", got)
    return tensors[0]


def _tensor(value: Any, device: torch.device) -> Any:
    if isinstance(value, np.ndarray):
        array = as_numpy("batch", value)
        if array.dtype.kind not in "biuf" or array.dtype == np.longdouble:
            fail("batch", "arrays of numbers", array, error=TypeError)
        # PyTorch reads neither foreign byte orders nor backward strides.
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        return torch.from_numpy(plain).to(device)
    if not isinstance(value, Tensor):
        return value
    if value.is_meta or value.is_nested or value.layout != torch.strided:
        got = Got("a tensor on meta, a nested or a sparse one")
        fail("batch", "dense tensors that hold numbers", got)
    return value.detach().to(device)


def _row_axis(model: nn.Module) -> int:
    if isinstance(model, nn.TransformerEncoder):
        model = model.layers[0]
    if isinstance(model, nn.TransformerEncoderLayer):
        model = model.self_attn
    first = not isinstance(model, nn.MultiheadAttention) or model.batch_first
    return 0 if first else 1


def _check_rows(batch: ModelBatch) -> None:
    for name, x in batch.kwargs.items():
        rows = batch.rows_of(name, x)
        if rows is None or rows[1] == batch.n_rows:
            continue
        if name in _SHARED and rows[1] % batch.n_rows == 0:
            continue
        got = Got(f"{rows[1]} rows in {name!r}, {batch.n_rows} in the first tensor")
        fail("batch", "tensors with equal numbers of rows", got)


def _check_finite(batch: ModelBatch) -> None:
    """Raise if inputs contain NaN, or infinity outside of masks."""
    named = [("", x) for x in batch.args[:1]] + list(batch.kwargs.items())
    for name, x in named:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            continue
        x = x.float() if x.itemsize == 1 else x  # PyTorch tests no floats of 8 bits
        is_bad = x.isnan() if "mask" in name else ~x.isfinite()
        if is_bad.any():
            where = f" in {name!r}" if name else ""
            got = Got(f"{int(is_bad.sum())} of {x.numel()} that are not{where}")
            fail("batch", "of finite numbers", got)


def _check_ids(model: nn.Module, ids: Any) -> None:
    """Raise if ids or lengths exceed the sizes of the model's embeddings."""
    config = getattr(model, "config", None)
    if not isinstance(ids, Tensor) or config is None:
        return
    longest = longest_sequence(model)
    if longest is not None and ids.shape[-1] > longest:
        got = Got(f"{ids.shape[-1]} tokens")
        hint = "Truncate the sequences."
        fail("batch", f"at most {longest} tokens long", got, hint=hint)
    size = getattr(config, "vocab_size", None)
    if isinstance(size, int) and (int(ids.max()) >= size or int(ids.min()) < 0):
        bad = int(ids.max()) if int(ids.max()) >= size else int(ids.min())
        hint = "Use the model's own tokenizer."
        fail("batch", f"ids from 0 to {size - 1}", bad, hint=hint)


def longest_sequence(model: nn.Module) -> int | None:
    """Return the longest sequence of a Hugging Face model, or None if it is unknown."""
    config = getattr(model, "config", None)
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int):
        return None
    # RoBERTa and similar models start counting after the padding index.
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return longest - table.padding_idx - 1
    return longest
