"""Fine-tune a sentence encoder with another attention, and measure it."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from eigenheads.adapters import swap_attention, watch_attention
from eigenheads.extend import FloatArray, generator
from eigenheads.extend.models import Encoded, corrupt_texts, read_labelled_texts
from eigenheads_papers._models import minilm
from eigenheads_papers._training import make_updates, rising_then_falling, seeded
from eigenheads_papers.teo2024.inputs import SentenceSplit

if TYPE_CHECKING:
    from eigenheads_papers.teo2024.finetune import FineTuning

# Sentences on which the pursuits are measured.
_LOOKED_AT = 200
_EVALUATED = 100
# Batches whose sentences are sorted by length together, so that few tokens are padding.
_SORTED = 10


class SentenceClassifier(nn.Module):
    """An encoder, the mean of its tokens, and a linear classifier."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, 2)  # type: ignore[union-attr, arg-type]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return logits."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(states.dtype)
        logits: Tensor = self.head((states * weights).sum(1) / weights.sum(1))
        return logits


def measure_swapped(
    how: "FineTuning", swap: Mapping[str, Any], seed: int, split: SentenceSplit
) -> FloatArray:
    """Return accuracies in percent, shares of S, the self-weight, a linear baseline.

    `swap` has the arguments of ``swap_attention``; an empty one swaps nothing.
    """
    encoder, tokenizer = minilm()
    with seeded(seed % 2**32):
        model = SentenceClassifier(deepcopy(encoder)).train()
        if swap:
            swap_attention(model.encoder, **swap)
        if how.rounded:
            _round_products(model.encoder)
        _fine_tune(model, how, tokenizer, seed, split)
    model.eval()
    y = torch.from_numpy(split.test_classes)
    texts, _ = read_labelled_texts((list(split.test), y), tokenizer, None)
    assert texts is not None
    # Corruptions are drawn per seed, and are the same for every kind.
    corrupted = [
        corrupt_texts(texts, "replaced", share, seed % 2**32) for share in how.shares
    ]
    corrupted.append(corrupt_texts(texts, "typos", how.typos, seed % 2**32))
    accuracies = [
        100 * float((_predict(model, encoded, how) == y).double().mean())
        for encoded in (texts.clean, *corrupted)
    ]
    shares = [
        _look_inside(model, encoded, how)
        for encoded in (texts.clean, corrupted[len(how.shares) - 1])
    ]
    (clean, self_weight), (replaced, _) = shares
    return np.array(
        [*accuracies, clean, replaced, self_weight, _linear_accuracy(split)]
    )


def _round_products(encoder: nn.Module) -> None:
    """Let linear layers multiply in bfloat16, which takes 0.6 of the time."""
    for module in encoder.modules():
        if isinstance(module, nn.Linear):
            module.forward = partial(_rounded_linear, module)  # type: ignore[method-assign]


def _rounded_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return a linear layer of rounded factors; products are summed in float32."""
    half = torch.bfloat16
    bias = None if layer.bias is None else layer.bias.to(half)
    return F.linear(x.to(half), layer.weight.to(half), bias).to(x.dtype)


def _fine_tune(
    model: SentenceClassifier,
    how: "FineTuning",
    tokenizer: Any,
    seed: int,
    split: SentenceSplit,
) -> None:
    """Train in place by AdamW; the embeddings stay as they are."""
    y = torch.from_numpy(split.train_classes)
    texts, _ = read_labelled_texts((list(split.train), y), tokenizer, None)
    assert texts is not None
    embeddings = {id(weight) for weight in model.encoder.embeddings.parameters()}  # type: ignore[union-attr]
    body = [
        weight for weight in model.encoder.parameters() if id(weight) not in embeddings
    ]
    for weight in model.encoder.embeddings.parameters():  # type: ignore[union-attr]
        weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(
        [
            {"params": body, "lr": how.learning_rate},
            {"params": model.head.parameters(), "lr": how.head_rate},
        ],
        weight_decay=0.01,
    )
    batches = list(_batches(texts.clean, how, generator(seed)))

    def losses() -> Iterator[Tensor]:
        for rows in batches:
            ids, mask = _trimmed(texts.clean, rows, how.n_tokens)
            yield F.cross_entropy(model(ids, mask), y[rows])

    make_updates(optimizer, losses(), rising_then_falling(len(batches)), clip=1.0)


def _batches(
    encoded: Encoded, how: "FineTuning", rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each batch of all epochs; a last small one is left out."""
    lengths = encoded.mask.sum(1).numpy()
    size = how.batch_size
    for _ in range(how.n_epochs):
        order = rng.permutation(len(lengths))
        batches: list[NDArray[np.int64]] = []
        for start in range(0, len(order), _SORTED * size):
            group = order[start : start + _SORTED * size]
            group = group[np.argsort(lengths[group], kind="stable")]
            batches += [group[i : i + size] for i in range(0, len(group), size)]
        whole = [batch for batch in batches if len(batch) == size]
        for place in rng.permutation(len(whole)):
            yield whole[place]


def _trimmed(encoded: Encoded, rows: Any, n_tokens: int) -> tuple[Tensor, Tensor]:
    """Return ids and masks without columns of padding alone, cut to `n_tokens`."""
    mask = encoded.mask[rows]
    width = min(int(mask.sum(1).max()), n_tokens)
    return encoded.ids[rows][:, :width], mask[:, :width]


@torch.no_grad()
def _predict(model: SentenceClassifier, encoded: Encoded, how: "FineTuning") -> Tensor:
    classes = torch.empty(len(encoded.ids), dtype=torch.long)
    for rows in torch.split(encoded.mask.sum(1).argsort(), _EVALUATED):
        classes[rows] = model(*_trimmed(encoded, rows, how.n_tokens)).argmax(1)
    return classes


@torch.no_grad()
def _look_inside(
    model: SentenceClassifier, encoded: Encoded, how: "FineTuning"
) -> tuple[float, float]:
    """Return the share of S in the last iteration, and the self-weight there.

    Both are means over heads and layers; without a pursuit, S is empty and the
    self-weight is not measured.
    """
    from eigenheads.adapters import attention_summary

    if "rpc" not in str(attention_summary(model.encoder)):
        return 0.0, np.nan
    with watch_attention(model.encoder) as watched:
        model(*_trimmed(encoded, slice(_LOOKED_AT), how.n_tokens))
    flagged = [float(layer.flagged[-1].mean()) for layer in watched.values()]
    weights = [float(layer.self_weight[-1].mean()) for layer in watched.values()]
    return float(np.mean(flagged)), float(np.mean(weights))


def _linear_accuracy(split: SentenceSplit) -> float:
    """Return the accuracy of a logistic regression on words, in percent."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        CountVectorizer(binary=True), LogisticRegression(C=0.3, max_iter=200)
    )
    model.fit(list(split.train), split.train_classes)
    return 100 * float(model.score(list(split.test), split.test_classes))
