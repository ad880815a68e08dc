"""Remove heads from a model, and compare the effect with that of random heads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_items,
    fail,
)
from eigenheads._errors import naming_errors, require
from eigenheads._modules import evaluating
from eigenheads._notebook import format_number, html_table
from eigenheads._parallel import advance, progress_bar
from eigenheads._rng import generator
from eigenheads._typing import FloatArray
from eigenheads.adapters._batch import ModelBatch, output_tensor, run_model
from eigenheads.adapters._capture import CapturedLayer, PreparedModel, as_numbers
from eigenheads.adapters._family import AttentionLayer
from eigenheads.adapters._sources import tokenize_texts
from eigenheads.probes import ModelProbe, Statistic
from eigenheads.probes._result import LEVEL

if TYPE_CHECKING:
    import pandas as pd

HeadSet = tuple[tuple[int, int], ...]  # (layer, head)
Metric = Callable[[Any, Any], Tensor]
How = Literal["mean", "resample", "zero"]

_NULL = "random heads"
_EFFECT = "effect"
# Tokens from which the length of a removed part is estimated.
_N_TOKENS = 1024
_N_SHOWN = 10
# A normal variable exceeds its mean by less than this with probability .8.
_POWER = 0.84


@dataclass(frozen=True, eq=False)
class Ablation:
    """Effects of removing heads, beside those of random heads.

    Attributes
    ----------
    heads
        The sets that were removed, each a tuple of (layer, head).
    effects
        Metric without the heads minus metric of the intact model, (sets, sequences).
    draws
        Mean effect of each random set, (sets, draws).
    settings
        Metric, kind of removal, seed.

    Examples
    --------
    >>> import numpy as np
    >>> heads = (((0, 0),), ((0, 1),))
    >>> effects = np.array([[3.0, 5.0], [0.1, -0.1]])
    >>> ablation = Ablation(heads, effects, np.ones((2, 39)))
    >>> ablation.effect
    array([4., 0.])
    >>> ablation.stands_out()
    array([ True, False])
    """

    heads: Sequence[HeadSet]
    effects: FloatArray
    draws: FloatArray
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def effect(self) -> FloatArray:
        """Mean effect over the sequences, by set."""
        return self.effects.mean(axis=1)

    @property
    def standard_error(self) -> FloatArray:
        """Standard error of the mean effect, from pairs of the same sequence."""
        n = self.effects.shape[1]
        if n < 2:
            return np.full(len(self.effects), np.nan)
        return np.std(self.effects, axis=1, ddof=1) / np.sqrt(n)

    @cached_property
    def _probe(self) -> ModelProbe:
        # One family of tests: the probe of a model with one layer of these sets.
        size, draws = np.abs(self.effect)[None], np.abs(self.draws)[None]
        about = "Absolute mean effect."
        effect = Statistic(_EFFECT, size, {_NULL: draws}, "greater", about)
        return ModelProbe([0], ["ablation"], {_EFFECT: effect})

    @property
    def p_value(self) -> FloatArray:
        """Share of random heads with at least this effect, up or down (+1 rule)."""
        return self._probe[_EFFECT].p_value[_NULL][0]

    @property
    def q_value(self) -> FloatArray:
        """P-values corrected for all sets, as :meth:`ModelProbe.q_value` does."""
        return self._probe.q_value(_EFFECT, _NULL)[0]

    @property
    def detectable(self) -> FloatArray:
        """Effect that would exceed all random heads with probability .8, by set."""
        largest = np.abs(self.draws).max(axis=1, initial=0.0)
        return largest + _POWER * np.nan_to_num(self.standard_error)

    def stands_out(self, level: float = LEVEL) -> Any:
        """Return which sets have a larger effect than random heads: q <= `level`."""
        return self._probe.stands_out(_EFFECT, level)[0]

    def needs(self, level: float = LEVEL) -> int | None:
        """Return the draws that decide sets which are undecided now; None if none is.

        A set is undecided if it exceeds all random heads and there are too few of them.
        """
        (row,) = self._probe.summary(level) if self.draws.shape[1] else ({},)
        needed: int | None = row.get("n_needed")
        return needed

    def to_records(self) -> list[dict[str, Any]]:
        """Return one row per set, the largest effect first."""
        columns = {
            "effect": self.effect,
            "standard_error": self.standard_error,
            "of_random_heads": np.abs(self.draws).mean(axis=1)
            if self.draws.shape[1]
            else np.full(len(self.effects), np.nan),
            "p_value": self.p_value,
            "q_value": self.q_value,
            "detectable": self.detectable,
        }
        order = np.argsort(-np.abs(self.effect), kind="stable")
        return [
            {
                "heads": _set_text(self.heads[place]),
                **{name: float(numbers[place]) for name, numbers in columns.items()},
            }
            for place in order
        ]

    def to_frame(self) -> "pd.DataFrame":
        """Return the rows as a pandas table (extra ``frame``)."""
        pd = require("pandas", "pandas", extra="frame")
        return pd.DataFrame.from_records(self.to_records())

    def __str__(self) -> str:
        """Return the largest effects, one per line, and what can be decided."""
        n_draws = self.draws.shape[1]
        lines = [self._title]
        for row in self.to_records()[:_N_SHOWN]:
            line = f"  {row['heads']}: {format_number(row['effect'])}"
            line += f" ± {format_number(row['standard_error'])}"
            if n_draws:
                line += f", random heads {format_number(row['of_random_heads'])}"
                line += f", q = {row['q_value']:.2g}"
            lines.append(line)
        n_more = len(self.heads) - _N_SHOWN
        lines += [f"  and {n_more} more"] if n_more > 0 else []
        return "\n".join([*lines, *([self._verdict] if n_draws else [])])

    def __repr__(self) -> str:
        return f"<{self._title}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        header = ["heads", "effect", "standard error", "random heads", "p", "q"]
        rows = [
            [row["heads"], *(format_number(x) for x in list(row.values())[1:-1])]
            for row in self.to_records()
        ]
        notes = [self._verdict] if self.draws.shape[1] else []
        return html_table(self._title, header, rows, notes=notes)

    @property
    def _title(self) -> str:
        n_sequences = self.effects.shape[1]
        return (
            f"Ablation: {len(self.heads)} sets of heads, {n_sequences} sequences, "
            f"{self.draws.shape[1]} random sets each, "
            f"metric {self.settings.get('metric', '?')}"
        )

    @property
    def _verdict(self) -> str:
        n_found, needed = int(self.stands_out().sum()), self.needs()
        text = f"{n_found} of {len(self.heads)} have more effect than random heads"
        text += f" (q <= {LEVEL})."
        if needed is not None:
            text += f" Too few random heads to tell: needs {needed} draws."
        if n_found < len(self.heads):
            least = format_number(float(np.median(self.detectable)))
            text += f" An effect of {least} would have been seen (median, power 0.8)."
        return text


def ablate_heads(  # noqa: PLR0913 -- keyword-only, each with a default
    model: nn.Module,
    batch: Any = None,
    metric: str | Metric = "change",
    *,
    heads: Sequence[Any] | None = None,
    how: How = "mean",
    null: Literal["matched"] | None = "matched",
    n_draws: int = 39,
    texts: Sequence[str] | None = None,
    tokenizer: Any = None,
    batch_size: int | None = 8,
    seed: int = 0,
    progress: bool = False,
) -> Ablation:
    r"""Measure what a model loses without some of its heads, against random heads.

    The outputs of a head are replaced before the output projection of its layer, on all
    tokens. The weights are not changed, and the model is as before at the end.

    Parameters
    ----------
    model, batch, batch_size
        As in :func:`capture_heads`.
    metric
        One number per sequence, compared with that of the intact model:

        - ``"change"``: length of the change of the output, relative to the output;
        - ``"kl"``: Kullback-Leibler divergence from the intact output, read as logits;
        - ``"loss"``: cross-entropy of the batch's ``labels``, or of the next token;
        - a function ``f(output, batch) -> (rows,)`` of the model's output and the
          arguments of the call.
    heads
        Sets that are removed one after the other: pairs ``(layer, head)``, or lists of
        pairs that are removed together. None means all heads of the model, one by one.
    how
        The outputs become their ``"mean"`` over all tokens of the batch, those of
        random tokens of other sequences (``"resample"``), or ``"zero"``.
    null
        ``"matched"``: random heads of the same layer, of which the same length of
        output is removed. None for none.
    n_draws
        Random heads per set. Each costs one pass over the batch; with 39 a single head
        can stand out among any number of heads.
    texts, tokenizer
        Texts instead of a batch; see :class:`Capture`.
    seed
        Seed of the random heads and tokens: equal calls have equal results.
    progress
        Whether to report progress on standard error.

    Returns
    -------
    ablation
        Effects per sequence, p- and q-values.

    Notes
    -----
    With the outputs :math:`x` of all heads of a layer, :math:`r` in their place and the
    columns :math:`P` of a head, the layer reads :math:`x + (r - x) P P^\top`. A random
    head takes as many random orthonormal columns :math:`U` instead, and the step is
    multiplied such that the output of the layer moves as far, in mean square. In an
    untrained model heads are such random columns up to rotation, so that p-values are
    uniform; heads that stand out are more than a random part of their layer.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    >>> ablation = ablate_heads(layer, torch.randn(3, 5, 8), n_draws=19)
    >>> ablation.effects.shape, ablation.draws.shape
    ((2, 3), (2, 19))
    """
    check_choice("how", how, ("mean", "resample", "zero"))
    if null is not None:
        check_choice("null", null, ("matched",))
    n_draws = check_count("n_draws", n_draws) if null else 0
    seed = check_count("seed", seed, minimum=0, maximum=2**32 - 1)
    measure = _measure(metric)
    check_flag("progress", progress)
    if (batch is None) == (texts is None):
        fail("batch", "given, or `texts`, but not both", Got(type(batch).__name__))
    if texts is not None:
        batch = tokenize_texts(model, texts, tokenizer)
    prepared = PreparedModel.read(model, batch, None, batch_size, 2**30, False)
    layers = _read_layers(prepared, heads, how, seed)
    sets = _read_sets(heads, layers)
    n_rows = prepared.batch.n_rows
    effects = np.zeros((len(sets), n_rows))
    draws = np.zeros((len(sets), n_draws))
    n_pieces = -(-n_rows // (batch_size or n_rows))
    total = float(n_pieces * len(sets) * (1 + n_draws))
    bar = progress_bar(total, description="ablation") if progress else nullcontext()
    start = 0
    with bar, evaluating(model):
        for piece in prepared.batch.pieces(batch_size):
            rows = slice(start, start + piece.n_rows)
            start = rows.stop
            intact = run_model(model, piece)
            compare = partial(_effect, model, piece, rows, measure, intact)
            for place, members in enumerate(sets):
                effects[place, rows] = compare(_own_columns(members, layers))
                for draw in range(n_draws):
                    parts = _random_columns(members, layers, seed, draw)
                    draws[place, draw] += compare(parts).sum() / n_rows
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
    settings = {"model": type(model).__name__, "metric": name, "how": how, "seed": seed}
    return Ablation(sets, effects, draws, settings)


def _effect(
    model: nn.Module,
    piece: ModelBatch,
    rows: slice,
    measure: Callable[[Any, ModelBatch, Any], FloatArray],
    intact: Any,
    parts: "list[_Columns]",
) -> FloatArray:
    """Return the metric without some columns minus that of the intact model, by row."""
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part.removed(rows))
        output = run_model(model, piece)
    advance(1.0)
    return measure(output, piece, intact) - measure(intact, piece, intact)


# --- Heads and what is put in their place ---------------------------------------------


@dataclass(frozen=True, eq=False)
class _Outputs:
    """Outputs of all heads of a layer on the batch, and what replaces them."""

    layer: AttentionLayer
    n_heads: int
    replacement: Tensor  # (width,), or (rows, tokens, width)
    steps: FloatArray  # what replaces minus what is replaced, (some tokens, width)
    projection: FloatArray  # (d_model, width)

    @property
    def width(self) -> int:
        """Number of columns of all heads together."""
        return self.projection.shape[1]

    def length(self, columns: FloatArray) -> float:
        """Return the root mean square by which the output of the layer moves."""
        steps, written = self.steps @ columns, self.projection @ columns
        squares = np.einsum("ij,ij->", steps.T @ steps, written.T @ written)
        return float(np.sqrt(squares / len(steps)))


@dataclass(frozen=True, eq=False)
class _Columns:
    """Orthonormal columns of a layer's outputs, to be replaced by a multiple."""

    outputs: _Outputs
    columns: FloatArray
    multiple: float = 1.0

    def removed(self, rows: slice) -> Any:
        """Return a context in which the columns are replaced, for rows of the batch."""
        layer = self.outputs.layer

        def change(x: Tensor) -> Tensor:
            whole = self.outputs.replacement
            given = whole if whole.ndim == 1 else whole[rows, : x.shape[1]]
            columns = torch.from_numpy(self.columns).to(x)
            step = ((given.to(x) - x) @ columns) @ columns.T
            return x + self.multiple * step

        return layer.family.edit(layer, change)


def _own_columns(members: HeadSet, layers: Mapping[int, _Outputs]) -> list[_Columns]:
    return [
        _Columns(layers[layer], _columns_of(layers[layer], chosen))
        for layer, chosen in _by_layer(members)
    ]


def _random_columns(
    members: HeadSet, layers: Mapping[int, _Outputs], seed: int, draw: int
) -> list[_Columns]:
    """Return random columns in place of those of a set, of equal effect on layers."""
    parts = []
    for layer, chosen in _by_layer(members):
        outputs = layers[layer]
        own = _columns_of(outputs, chosen)
        rng = generator(seed, layer, chosen[0], len(chosen), draw)
        columns, _ = np.linalg.qr(rng.standard_normal(own.shape))
        length = outputs.length(columns)
        multiple = outputs.length(own) / length if length > 0 else 0.0
        parts.append(_Columns(outputs, columns, multiple))
    return parts


def _by_layer(members: HeadSet) -> Iterator[tuple[int, list[int]]]:
    for layer in sorted({layer for layer, _ in members}):
        yield layer, sorted(head for place, head in members if place == layer)


def _columns_of(outputs: _Outputs, heads: Sequence[int]) -> FloatArray:
    d_head = outputs.width // outputs.n_heads
    places = [d_head * head + place for head in heads for place in range(d_head)]
    return np.eye(outputs.width)[:, places]


def _read_layers(
    prepared: PreparedModel, heads: Sequence[Any] | None, how: str, seed: int
) -> dict[int, _Outputs]:
    """Return the outputs of all layers that the sets name; of all layers for None."""
    if how == "resample" and prepared.batch.n_rows < 2:
        fail(
            "batch", "at least two sequences for how='resample'", prepared.batch.n_rows
        )
    return {
        captured.layer: _read_layer(captured, layer, how, seed)
        for captured, layer in zip(prepared.captured(), prepared.layers, strict=True)
    }


def _read_layer(
    captured: CapturedLayer, layer: AttentionLayer, how: str, seed: int
) -> _Outputs:
    n_rows, n_heads, n_tokens, _ = captured.outputs.shape
    x = captured.outputs.swapaxes(1, 2).reshape(n_rows, n_tokens, -1)
    real = x[captured.mask]
    rng = generator(seed, captured.layer)
    if how == "resample":
        replacement = real[_donors(captured.mask, rng)]
    else:
        replacement = real.mean(axis=0) if how == "mean" else np.zeros_like(real[0])
    steps = (replacement - x)[captured.mask]
    if len(steps) > _N_TOKENS:
        steps = steps[rng.choice(len(steps), _N_TOKENS, replace=False)]
    projection = captured.w_output.swapaxes(0, 1).reshape(
        captured.w_output.shape[1], -1
    )
    return _Outputs(
        layer,
        n_heads,
        torch.from_numpy(replacement),
        steps.astype(np.float64),
        projection.astype(np.float64),
    )


def _donors(mask: Any, rng: np.random.Generator) -> Any:
    """Return for each token the index of a real token of another sequence."""
    owner = np.nonzero(mask)[0]
    donors = np.zeros(mask.shape, int)
    for row in range(len(mask)):
        donors[row] = rng.choice(np.flatnonzero(owner != row), mask.shape[1])
    return donors


def _read_sets(
    heads: Sequence[Any] | None, layers: Mapping[int, _Outputs]
) -> list[HeadSet]:
    """Return the sets of heads to remove, or raise."""
    if heads is None:
        return [
            ((layer, head),)
            for layer, outputs in layers.items()
            for head in range(outputs.n_heads)
        ]
    contract = "pairs (layer, head), or lists of pairs that are removed together"
    items = check_items("heads", heads, contract)
    if not items:
        fail("heads", contract, Got("none"))
    return [_read_set(item, layers, contract) for item in items]


def _read_set(item: Any, layers: Mapping[int, _Outputs], contract: str) -> HeadSet:
    members = [item] if _is_pair(item) else item
    is_list = isinstance(members, list | tuple) and len(members) > 0
    if not is_list or not all(_is_pair(member) for member in members):
        fail("heads", contract, item)
    chosen = []
    for layer, head in members:
        place = check_count("heads", layer, minimum=-len(layers)) % len(layers)
        if layer >= len(layers):
            fail("heads", f"in layers 0 to {len(layers) - 1}", (layer, head))
        n_heads = layers[place].n_heads
        if not 0 <= head < n_heads:
            fail("heads", f"heads 0 to {n_heads - 1} in layer {place}", (layer, head))
        chosen.append((place, int(head)))
    return tuple(sorted(set(chosen)))


def _is_pair(item: Any) -> bool:
    return (
        isinstance(item, tuple | list)
        and len(item) == 2
        and all(isinstance(x, int | np.integer) for x in item)
    )


def _set_text(members: HeadSet) -> str:
    """Return a set in words.

    Examples
    --------
    >>> _set_text(((0, 2),)), _set_text(((0, 2), (1, 3)))
    ('layer 0, head 2', 'heads 0.2, 1.3')
    """
    if len(members) == 1:
        return f"layer {members[0][0]}, head {members[0][1]}"
    return "heads " + ", ".join(f"{layer}.{head}" for layer, head in members)


# --- Metrics --------------------------------------------------------------------------


def _measure(metric: str | Metric) -> Callable[[Any, ModelBatch, Any], FloatArray]:
    """Return a function of output, arguments and intact output: one number per row."""
    if isinstance(metric, str):
        check_choice("metric", metric, list(_METRICS))
        built_in = _METRICS[metric]

        def measure(output: Any, piece: ModelBatch, intact: Any) -> FloatArray:
            numbers = built_in(output_tensor(output), piece, output_tensor(intact))
            return _per_row(numbers, piece, metric)

        return measure
    if not callable(metric):
        contract = f"a function, or one of {', '.join(map(repr, _METRICS))}"
        fail("metric", contract, metric, error=TypeError)

    def call(output: Any, piece: ModelBatch, intact: Any) -> FloatArray:
        given = piece.kwargs or (piece.args[0] if piece.args else None)
        with naming_errors("`metric`"):
            numbers = metric(output, given)
        return _per_row(torch.as_tensor(numbers), piece, "metric")

    return call


def _per_row(numbers: Tensor, piece: ModelBatch, name: str) -> FloatArray:
    if numbers.shape != (piece.n_rows,):
        got = Got(f"shape {tuple(numbers.shape)} for {piece.n_rows} rows")
        fail("metric", "one number per row of the batch", got)
    values = as_numbers(numbers).astype(np.float64)
    if not np.isfinite(values).all():
        fail("metric", "finite numbers", Got(f"others from {name!r}"))
    return values


def _change(output: Tensor, piece: ModelBatch, intact: Tensor) -> Tensor:
    """Return the length of the change relative to the intact output."""
    change = _rows(_weighted(output - intact, piece), piece).norm(dim=1)
    length = _rows(_weighted(intact, piece), piece).norm(dim=1)
    return change / length.clamp_min(torch.finfo(length.dtype).tiny)


def _divergence(output: Tensor, piece: ModelBatch, intact: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of each row, mean over its tokens."""
    before, after = (F.log_softmax(x.float(), dim=-1) for x in (intact, output))
    each = (before.exp() * (before - after)).sum(-1)
    if each.ndim == 1:
        return each
    shown = _weighted(torch.ones_like(each), piece)
    each, shown = (_rows(x, piece).flatten(1).sum(1) for x in (each * shown, shown))
    return each / shown


def _loss(output: Tensor, piece: ModelBatch, intact: Tensor) -> Tensor:
    """Return the cross-entropy of labels or next tokens, mean over the tokens."""
    labels, ids = (piece.kwargs.get(name) for name in ("labels", "input_ids"))
    if labels is None:
        if ids is None or output.ndim != 3 or output.shape[:2] != ids.shape:
            got = Got(
                "a batch without labels, and an output that is not of next tokens"
            )
            hint = "Pass a function (output, batch) -> one number per row."
            fail("metric", "'change', 'kl' or a function here", got, hint=hint)
        mask = piece.kwargs.get("attention_mask")
        labels = ids if mask is None else ids.masked_fill(mask == 0, -100)
    if output.ndim == 3:
        # As in Transformers: the labels of a decoder are its own tokens.
        is_next = ids is not None and labels.shape == ids.shape
        logits, wanted = (
            (output[:, :-1], labels[:, 1:]) if is_next else (output, labels)
        )
        each = F.cross_entropy(
            logits.float().transpose(1, 2), wanted, reduction="none", ignore_index=-100
        )
        n_wanted = (wanted != -100).sum(1).clamp_min(1)
        return each.sum(1) / n_wanted
    return F.cross_entropy(output.float(), labels, reduction="none")


_METRICS = {"change": _change, "kl": _divergence, "loss": _loss}


def _rows(x: Tensor, piece: ModelBatch) -> Tensor:
    """Return the numbers of each row of the batch, (rows, numbers)."""
    first = x.transpose(0, 1) if piece.axis and x.ndim >= 2 else x
    return first.float().flatten(1)


def _weighted(x: Tensor, piece: ModelBatch) -> Tensor:
    """Return an output with zeros at padding."""
    mask = piece.kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == x.shape[:2] and x.ndim >= 2:
        return x * (mask != 0).to(x).reshape(*mask.shape, *(1,) * (x.ndim - 2))
    return x
