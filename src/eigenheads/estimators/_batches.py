"""Data larger than memory, read in batches as often as a fit needs."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray
from scipy.sparse import issparse

from eigenheads._checks import (
    Got,
    check_count,
    fail,
    shown,
    without_traps,
)
from eigenheads._errors import public_call
from eigenheads._files import read_arrays, write_arrays
from eigenheads.estimators._bags import bag_rows, check_known_length

# Bags and targets, optionally with weights.
Batch: TypeAlias = tuple[Any, ...]
Pass: TypeAlias = Callable[[], Iterator[Batch]]


def row_blocks(X: Any, *, n_rows: int | None = None) -> Iterator[NDArray[Any]]:
    """Yield the rows of an array as NumPy arrays, block by block.

    Parameters
    ----------
    X : Dask array, or anything with a shape and slices
        Of a Dask array the blocks are its own chunks of rows, sparse if they are; one
        is in memory at a time. Of a NumPy array or a memory map, `n_rows` at a time.

    n_rows : int, default=None
        Rows per block if the array has no chunks; None means 65 536.

    Yields
    ------
    block : ndarray
        Consecutive rows, whole in all other axes; NaN as they are in `X`.

    Examples
    --------
    >>> [len(block) for block in row_blocks(np.zeros((5, 2)), n_rows=2)]
    [2, 2, 1]
    """
    if is_dask(X):
        whole = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
        for index in range(whole.numblocks[0]):
            block = whole.blocks[index].compute()
            yield block if issparse(block) else np.asarray(block)
        return
    step = 65_536
    if n_rows is not None:
        step = check_count("n_rows", n_rows)
    if not len(getattr(X, "shape", ())):
        contract = "an array with rows"
        fail("X", contract, X, error=TypeError)
    X = without_traps("X", X)
    for start in range(0, X.shape[0], step):
        yield np.asarray(X[start : start + step])


def is_dask(X: Any) -> bool:
    """Return whether this is a Dask array, without importing Dask."""
    return hasattr(X, "dask") and hasattr(X, "numblocks") and hasattr(X, "rechunk")


def is_stream(X: Any, y: Any) -> bool:
    """Return whether `X` comes in batches: of Dask, a callable or an iterable."""
    if is_dask(X):
        return True
    is_data = isinstance(X, list | tuple | str | bytes | dict) or is_torch_array(X)
    is_data = is_data or hasattr(X, "shape")  # which nested tensors do not answer
    is_batches = callable(X) or (hasattr(X, "__iter__") and not is_data)
    return y is None and is_batches and not hasattr(X, "__array__")


def start_stream(X: Any) -> Iterator[Any]:
    """Return an iterator over the batches of a callable or an iterable, or raise."""
    batches = X() if callable(X) else X
    if not isinstance(batches, Iterable):
        contract = "batches, or a function that returns an iterator over them"
        got = Got(f"a function that returned {shown(batches)}")
        fail("X", contract, got, error=TypeError)
    return iter(batches)


def read_stream(X: Any) -> Iterator[Batch]:
    """Yield the batches of a callable, an iterable or an iterator, or raise."""
    for index, batch in enumerate(start_stream(X)):
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            got = Got(f"a {type(batch).__name__} as batch {index}")
            contract = "batches (bags, targets) or (bags, targets, weights)"
            fail("X", contract, got)
        yield tuple(batch)


def batches_of_rows(X: Any) -> Iterator[Any]:
    """Yield the batches of a stream of rows one after the other; else `X` itself."""
    if is_dask(X):
        yield from row_blocks(X)
    elif is_stream(X, None):
        yield from start_stream(X)
    else:
        yield X


class RowBatches:
    """Arrays of rows that can be read again and again.

    The arrays of an iterator, which can be read once, are kept in files of a temporary
    folder while this is open.
    """

    def __init__(self, X: Any) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._paths: list[Path] = []
        self._source = X
        if not is_dask(X) and not callable(X) and iter(X) is X:
            self._folder = tempfile.TemporaryDirectory(prefix="eigenheads-")
            try:
                self._spool(X, Path(self._folder.name))
            except BaseException:
                self._folder.cleanup()
                raise

    def _spool(self, arrays: Iterator[Any], folder: Path) -> None:
        for index, rows in enumerate(arrays):
            self._paths.append(folder / f"{index}.safetensors")
            plain = rows.toarray() if issparse(rows) else rows
            dense = plain_array("X", plain)
            write_arrays(self._paths[-1], {"rows": dense})

    def __enter__(self) -> "RowBatches":
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def __iter__(self) -> Iterator[Any]:
        """Yield the arrays, one in memory at a time."""
        if self._folder is None:
            yield from batches_of_rows(self._source)
        for path in self._paths:
            yield read_arrays(path)["rows"]


class Batches:
    """Batches that can be read again and again.

    Batches of an iterator, which can be read once, are kept in files of a temporary
    folder while this is open.
    """

    def __init__(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if is_dask(X):
            self._pass: Pass = lambda: _dask_batches(X, y, sample_weight)
        elif not callable(X) and iter(X) is X:
            self._folder = tempfile.TemporaryDirectory(prefix="eigenheads-")
            try:
                self._pass = self._spool(X)
            except BaseException:
                self._folder.cleanup()
                raise
        else:
            self._pass = lambda: read_stream(X)

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def __iter__(self) -> Iterator[Batch]:
        """Yield bags, targets and weights (or None), batch after batch."""
        for batch in self._pass():
            yield (*batch, None)[:3]

    def _spool(self, batches: Iterator[Batch]) -> Pass:
        """Write the batches of an iterator to files; return their reader."""
        folder = Path(self._folder.name)  # type: ignore[union-attr]
        self._pass = lambda: read_stream(batches)
        paths = []
        for index, (bags, targets, weights) in enumerate(self):
            paths.append(folder / f"{index}.safetensors")
            _write_batch(paths[-1], bags, targets, weights)
        return lambda: map(_read_batch, paths)


def _dask_batches(X: Any, y: Any, sample_weight: Any) -> Iterator[Batch]:
    if y is None:
        raise ValueError(
            f"{public_call()} requires y to be passed, but the target y is None."
        )
    check_known_length(X)
    targets = plain_array("y", y)
    weights = None
    if sample_weight is not None:
        weights = plain_array("sample_weight", sample_weight)
    if targets.shape[:1] != X.shape[:1]:
        got = Got(f"{len(targets)} targets for {X.shape[0]} bags")
        fail("y", "one target per bag", got)
    start = 0
    for block in row_blocks(X):
        rows = slice(start, start + len(block))
        yield block, targets[rows], None if weights is None else weights[rows]
        start = rows.stop


def plain_array(name: str, value: Any) -> NDArray[Any]:
    """Return an array of numbers or texts, without a mask; raise if there is none."""
    array = np.asarray(without_traps(name, value))
    if array.dtype == object:  # numbers and texts find their own type
        try:
            array = np.array(array.tolist())
        except ValueError:  # of several lengths
            array = np.array(None)
    if array.dtype.kind not in "biufSU":
        fail(name, "an array of numbers or texts", value)
    return array


def _write_batch(path: Path, bags: Any, targets: Any, weights: Any) -> None:
    """Write one batch; bags of any lengths as one table and their lengths."""
    rows, lengths = bag_rows(bags)
    named = {
        "tokens": plain_array("X", rows),
        "targets": plain_array("y", targets),
    }
    if lengths is not None:
        named["lengths"] = lengths
    if weights is not None:
        named["weights"] = plain_array("sample_weight", weights)
    write_arrays(path, named)


def _read_batch(path: Path) -> Batch:
    stored: dict[str, NDArray[Any]] = dict(read_arrays(path))
    bags: Any = stored["tokens"]
    if "lengths" in stored:
        bags = np.split(bags, np.cumsum(stored["lengths"])[:-1])
    return bags, stored["targets"], stored.get("weights")
