"""Texts with classes: reading, corruption, and the conditions of their evaluation.

A text is a list of words, or of ids of tokens if only these are given. Corruptions act
on such lists, so one function serves both.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eigenheads._checks import Got, check_choice, check_count, fail
from eigenheads._modules import device_of, evaluating
from eigenheads._rng import generator
from eigenheads._typing import FloatArray
from eigenheads.robustness._plan import Condition, Conditions, Meter
from eigenheads.robustness._read import (
    logits_of,
    read_array,
)

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
Words = list[Any]


@dataclass(frozen=True)
class Encoded:
    """Ids of tokens ``(n, tokens)``, and which of them count."""

    ids: Tensor
    mask: Tensor


@dataclass(frozen=True, kw_only=True)
class TextSet:
    """Texts and their classes.

    Attributes
    ----------
    clean
        The texts as ids of tokens.
    y
        Classes.
    texts, tokenizer
        The texts themselves and what encodes them; None if only ids are given.
    special
        Ids that no corruption touches, such as those of class tokens.
    """

    clean: Encoded
    y: Tensor
    texts: tuple[str, ...] | None = None
    tokenizer: Callable[..., Any] | None = None
    special: frozenset[int] = field(default_factory=frozenset)

    @cached_property
    def pool(self) -> list[int]:
        """Ids that may replace others: all that occur, but for special ones."""
        ids = torch.unique(self.clean.ids[self.clean.mask.bool()]).tolist()
        return [number for number in ids if number not in self.special]

    @cached_property
    def words(self) -> list[str]:
        """Words of all texts, once each."""
        return sorted({word for text in self.texts or () for word in text.split()})


# --- Reading -------------------------------------------------------------------------


def read_labelled_texts(
    data: Any, tokenizer: Callable[..., Any] | None, special_ids: Sequence[int] | None
) -> tuple[TextSet | None, Any]:
    """Return texts with classes, or None and the data if it is of another kind.

    A loader must be looked into; the data that is returned then begins with the batch
    that was taken out.
    """
    if isinstance(data, Mapping):
        return _from_batches([data], tokenizer, special_ids), data
    if _is_pair(data):
        first, labels = data
        if isinstance(first, Mapping):
            batch = {**first, "labels": labels}
            return _from_batches([batch], tokenizer, special_ids), data
        if isinstance(first, Sequence) and first and isinstance(first[0], str):
            return _from_texts(first, labels, tokenizer), data
        array = check_plain_numbers("data[0]", first)
        if array.ndim == 2 and array.dtype.kind in "iu":
            batch = {"input_ids": array, "labels": labels}
            return _from_batches([batch], tokenizer, special_ids), data
        return None, data
    if isinstance(data, Tensor | np.ndarray | str | bytes):
        return None, data
    if not isinstance(data, Iterable):
        return None, data
    return _from_loader(data, tokenizer, special_ids)


def check_plain_numbers(name: str, value: Any) -> NDArray[Any]:
    """Return `value` as an array, or raise; a tensor must have no gradients."""
    contract = "an array of numbers"
    if isinstance(value, Tensor) and value.requires_grad:
        got, hint = Got("a tensor that requires grad"), "Use `.detach()`."
        fail(name, contract, got, hint=hint)
    array: NDArray[Any] = read_array(name, value)
    if array.dtype.kind not in "biuf":
        fail(name, contract, value, error=TypeError)
    return array


def _is_pair(data: Any) -> bool:
    is_pair = isinstance(data, Sequence) and len(data) == 2
    return is_pair and not isinstance(data, str | bytes)


def _from_loader(
    data: Iterable[Any], tokenizer: Any, special_ids: Sequence[int] | None
) -> tuple[TextSet | None, Any]:
    batches_left = iter(data)
    first = next(batches_left, None)
    # A list can be read again; of other loaders, the first batch is put back.
    is_kept = first is None or isinstance(data, Sequence)
    again: Iterable[Any] = data if is_kept else _put_back([first], batches_left)
    if not isinstance(first, Mapping):
        return None, again
    batches = list(again)
    return _from_batches(batches, tokenizer, special_ids), data


def _put_back(first: list[Any], batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batch that was taken out, then the others; keep none of them."""
    yield first.pop()
    yield from batches


def _from_texts(texts: Sequence[str], labels: Any, tokenizer: Any) -> TextSet:
    if not callable(tokenizer):
        contract = "a callable from texts to ids, such as Hugging Face's tokenizers"
        fail("tokenizer", contract, tokenizer)
    if not all(isinstance(text, str) for text in texts):
        fail("data[0]", "a list of texts", Got("other things in it"))
    return TextSet(
        clean=_encode(tokenizer, list(texts)),
        y=_read_classes(labels, len(texts)),
        texts=tuple(texts),
        tokenizer=tokenizer,
        special=frozenset(getattr(tokenizer, "all_special_ids", ())),
    )


def _encode(tokenizer: Callable[..., Any], texts: list[str]) -> Encoded:
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        contract = "a callable that returns a mapping with input_ids"
        fail("tokenizer", contract, Got(type(batch).__name__))
    return _read_encoded(batch)


def _from_batches(
    batches: Sequence[Mapping[str, Any]], tokenizer: Any, special: Sequence[int] | None
) -> TextSet:
    """Return the texts of batches as Hugging Face's models take them."""
    for batch in batches:
        missing = [
            names
            for names in (("input_ids",), ("labels", "label"))
            if not isinstance(batch, Mapping) or not any(n in batch for n in names)
        ]
        if missing:
            contract = "batches with input_ids and labels"
            fail("data", contract, Got(f"one without {missing[0][0]}"))
        check_batch(batch)
        pairs = batch.get("token_type_ids")
        if pairs is not None and bool(torch.as_tensor(pairs).any()):
            contract = "single texts, whose token_type_ids are zero"
            fail("data", contract, Got("pairs of texts"))
    read = [_read_encoded(batch) for batch in batches]
    width = max(encoded.ids.shape[1] for encoded in read)
    padded = [
        [
            torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]))
            for tensor in (encoded.ids, encoded.mask)
        ]
        for encoded in read
    ]
    ids, mask = (torch.cat(parts) for parts in zip(*padded, strict=True))
    labels = [
        np.atleast_1d(np.asarray(batch.get("labels", batch.get("label"))))
        for batch in batches
    ]
    special_numbers = (
        special if special is not None else getattr(tokenizer, "all_special_ids", ())
    )
    for encoded in special_numbers:
        check_count("special_ids", encoded, minimum=0)
    return TextSet(
        clean=Encoded(ids, mask),
        y=_read_classes(np.concatenate(labels), len(ids)),
        special=frozenset(int(encoded) for encoded in special_numbers),
    )


def check_batch(batch: Mapping[str, Any]) -> None:
    """Raise unless the parts of a batch that are read are arrays of numbers."""
    for name in ("input_ids", "attention_mask", "token_type_ids", "labels", "label"):
        if name == "input_ids" or batch.get(name) is not None:
            check_plain_numbers(name, batch[name])


def _read_encoded(batch: Mapping[str, Any]) -> Encoded:
    check_batch(batch)
    ids = torch.as_tensor(batch["input_ids"]).cpu()
    mask = batch.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else torch.as_tensor(mask).cpu()
    is_whole = ids.ndim == 2 and not ids.is_floating_point() and 0 not in ids.shape
    if not is_whole or mask.shape != ids.shape or bool((ids < 0).any()):
        contract = "ids >= 0 of shape (n, tokens), with masks of the same shape"
        got = Got(f"shapes {tuple(ids.shape)} and {tuple(mask.shape)}")
        fail("input_ids", contract, got)
    return Encoded(ids.long(), mask.long())


def _read_classes(labels: Any, n: int) -> Tensor:
    y = torch.as_tensor(check_plain_numbers("labels", labels))
    if y.shape != (n,) or y.is_floating_point() or bool((y < 0).any()):
        contract = f"{n} whole numbers >= 0: a class per text"
        fail("labels", contract, Got(f"shape {tuple(y.shape)}"))
    return y.long()


# --- Corruption ----------------------------------------------------------------------


def _typos(
    words: Words, *, share: float, rng: np.random.Generator, pool: Words
) -> Words:
    """Make one typing mistake in each chosen word."""
    return [
        _mistyped(word, rng) if hit else word
        for word, hit in zip(words, rng.random(len(words)) < share, strict=True)
    ]


def _mistyped(word: str, rng: np.random.Generator) -> str:
    if len(word) < 2:
        return word
    at = int(rng.integers(len(word) - 1))
    letter = _LETTERS[int(rng.integers(len(_LETTERS)))]
    kind = int(rng.integers(4))
    if kind == 0:  # two neighbouring letters exchanged
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == 1:  # a letter left out
        return word[:at] + word[at + 1 :]
    if kind == 2:  # a wrong letter
        return word[:at] + letter + word[at + 1 :]
    return word[:at] + letter + word[at:]  # a letter too many


def _drop(
    words: Words, *, share: float, rng: np.random.Generator, pool: Words
) -> Words:
    """Leave out each chosen word; one word stays in any case."""
    is_kept = rng.random(len(words)) >= share
    if len(words) and not is_kept.any():
        is_kept[int(rng.integers(len(words)))] = True
    return [word for word, stays in zip(words, is_kept, strict=True) if stays]


def _swap(
    words: Words, *, share: float, rng: np.random.Generator, pool: Words
) -> Words:
    """Exchange each chosen word with the next one."""
    result = list(words)
    for at in range(len(result) - 1):
        if rng.random() < share:
            result[at], result[at + 1] = result[at + 1], result[at]
    return result


def _insert(
    words: Words, *, share: float, rng: np.random.Generator, pool: Words
) -> Words:
    """Put a random word after each chosen one."""
    result: Words = []
    for word in words:
        result.append(word)
        if rng.random() < share and pool:
            result.append(pool[int(rng.integers(len(pool)))])
    return result


def _replace(
    words: Words, *, share: float, rng: np.random.Generator, pool: Words
) -> Words:
    """Replace each chosen word by a random one."""
    hits = rng.random(len(words)) < share
    return [
        pool[int(rng.integers(len(pool)))] if hit and pool else word
        for word, hit in zip(words, hits, strict=True)
    ]


_KINDS: Final[Mapping[str, Callable[..., Words]]] = {
    "typos": _typos,
    "dropped": _drop,
    "swapped": _swap,
    "inserted": _insert,
    "replaced": _replace,
}
TEXT_CORRUPTIONS: Final = tuple(_KINDS)
# Tokens are replaced after the encoding, so that unknown words play no role.
_ON_TOKENS: Final = ("replaced",)


def corrupt_texts(data: TextSet, kind: str, share: float, seed: int) -> Encoded:
    """Return corrupted texts as ids; each text has random numbers of its own."""
    place = TEXT_CORRUPTIONS.index(kind)

    def rng(number: int) -> np.random.Generator:
        key = (place, number)
        return generator(seed, *key)

    if data.texts is not None and data.tokenizer and kind not in _ON_TOKENS:
        changed = [
            _KINDS[kind](text.split(), share=share, rng=rng(number), pool=data.words)
            for number, text in enumerate(data.texts)
        ]
        return _encode(data.tokenizer, [" ".join(words) for words in changed])
    rows = [
        _corrupted_row(
            data, number, partial(_KINDS[kind], share=share, rng=rng(number))
        )
        for number in range(len(data.y))
    ]
    ids, mask = torch.zeros_like(data.clean.ids), torch.zeros_like(data.clean.mask)
    for number, row in enumerate(rows):
        # Padding keeps the id that it had in this text, if it had any.
        ids[number] = data.clean.ids[number, -1]
        ids[number, : len(row)] = torch.tensor(row, dtype=ids.dtype)
        mask[number, : len(row)] = 1
    return Encoded(ids, mask)


def _corrupted_row(data: TextSet, number: int, change: Callable[..., Words]) -> Words:
    """Return the ids of one text; special ones at its ends keep their places."""
    ids = data.clean.ids[number][data.clean.mask[number].bool()].tolist()
    begin, end = 0, len(ids)
    while begin < end and ids[begin] in data.special:
        begin += 1
    while end > begin and ids[end - 1] in data.special:
        end -= 1
    changed = change(ids[begin:end], pool=data.pool)
    room = data.clean.ids.shape[1] - begin - (len(ids) - end)
    return [*ids[:begin], *changed[:room], *ids[end:]]


# --- Conditions ----------------------------------------------------------------------


def plan_texts(
    data: TextSet, kinds: Sequence[str] | None, shares: Sequence[float], seed: int
) -> Conditions:
    """Return the conditions for texts; batches are (index, classes)."""
    possible = TEXT_CORRUPTIONS if data.texts is not None else TEXT_CORRUPTIONS[1:]
    for kind in kinds or ():
        check_choice("corruptions", kind, possible)
    plan = Conditions([Condition(condition="clean", start=partial(_right, data, None))])
    groups: dict[str, tuple[int, ...]] = {}
    for kind in possible if kinds is None else kinds:
        begin = len(plan.conditions)
        for share in shares:
            plan.conditions.append(
                Condition(
                    condition=_condition(data, kind),
                    level=share,
                    start=partial(_right, data, _Corrupted(data, kind, share, seed)),
                )
            )
        if shares:
            groups[_condition(data, kind)] = tuple(range(begin, len(plan.conditions)))
    plan.add_means(groups, None)
    return plan


def _condition(data: TextSet, kind: str) -> str:
    if kind == "typos":
        return kind
    is_word = data.texts is not None and kind not in _ON_TOKENS
    return f"{'words' if is_word else 'tokens'} {kind}"


class _Corrupted:
    """Corrupted texts, computed when the first model needs them."""

    def __init__(self, data: TextSet, kind: str, share: float, seed: int) -> None:
        self._make = partial(corrupt_texts, data, kind, share, seed)

    @cached_property
    def encoded(self) -> Encoded:
        """The texts as ids."""
        return self._make()


def _right(data: TextSet, corrupted: _Corrupted | None, model: Any) -> Meter:
    """Return a meter of texts that are classified correctly."""
    run, device = _caller(model), device_of(model)

    def measure(index: Tensor, y: Tensor) -> FloatArray:
        shown = data.clean if corrupted is None else corrupted.encoded
        ids, mask = shown.ids[index], shown.mask[index]
        with evaluating(model), torch.no_grad():
            logits = run(ids.to(device), mask.to(device)).cpu()
        if logits.ndim != 2 or len(logits) != len(y):
            got = Got(f"one that returns shape {tuple(logits.shape)}")
            contract = "a model that returns logits of shape (n, classes)"
            fail("model", contract, got)
        return (logits.argmax(1) == y).double()[:, None].numpy()

    return measure


def _caller(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function of ids and masks to logits, as far as the model takes both."""
    target = model.forward if isinstance(model, nn.Module) else model
    try:
        names = set(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        names = set()
    if "attention_mask" in names:
        return lambda ids, mask: logits_of(partial(model, attention_mask=mask))(ids)
    return lambda ids, mask: logits_of(model)(ids)
