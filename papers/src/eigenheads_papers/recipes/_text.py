"""Tokenised text in a folder: ``train.txt``, ``valid.txt`` and ``test.txt``.

Words are separated by white space, as in WikiText; the end of a line is also a word.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from eigenheads.extend import Got, check_count, check_regular, fail

END_OF_LINE: Final = "<eos>"
UNKNOWN: Final = "<unk>"
# WikiText-103 has half a GiB; the words of a text take ten times as much in memory.
_MAX_BYTES: Final = 2**32


def read_text_words(path: Path, *, owner: str) -> list[str]:
    """Return the words of a text file, with `END_OF_LINE` after each line of words."""
    if not path.is_file():
        contract = "a folder with train.txt, valid.txt and test.txt"
        fail("data", contract, Got(f"no file {path}"), owner=owner)
    try:
        check_regular(path, _MAX_BYTES)
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        got = Got(f"{path} ({error.reason} at byte {error.start})")
        fail("data", "text in UTF-8", got, owner=owner)
    except ValueError as error:
        fail("data", "text files that can be read", Got(str(error)), owner=owner)
    return [
        word for line in lines if line.split() for word in (*line.split(), END_OF_LINE)
    ]


def make_vocabulary(words: Sequence[str], *, at_most: int) -> list[str]:
    """Return the most frequent words, after the unknown word; ties by spelling."""
    check_count("n_words", at_most, owner="train", minimum=2)
    counts = Counter(words)
    # The text may contain the unknown word itself, which has the first place already.
    counts.pop(UNKNOWN, None)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return [UNKNOWN, *ordered[: at_most - 1]]


class TextReader:
    """Windows of consecutive words, without overlap.

    Parameters
    ----------
    words
        The text.
    vocabulary
        Known words; the first one stands for all others.
    context
        Words that the model sees at once.
    """

    def __init__(
        self, words: Sequence[str], vocabulary: Sequence[str], *, context: int
    ) -> None:
        index = {word: number for number, word in enumerate(vocabulary)}
        ids = torch.tensor([index.get(word, 0) for word in words])
        # One word more than the inputs is needed: the target of the last input.
        n_windows = (len(ids) - 1) // context
        if n_windows < 1:
            contract = f"text of more than {context} words"
            fail("data", contract, Got(f"{len(ids)} words"), owner="train")
        self._inputs = ids[: n_windows * context].view(n_windows, context)
        self._targets = ids[1 : n_windows * context + 1].view(n_windows, context)

    def __len__(self) -> int:
        return len(self._inputs)

    def read(
        self, indices: Sequence[int], *, seed: tuple[int, ...], first: int
    ) -> tuple[Tensor, Tensor]:
        """Return windows of ids and, for each word, the id of the next one."""
        del seed, first  # nothing is random here; the signature is that of ImageReader
        chosen = list(indices)
        return self._inputs[chosen], self._targets[chosen]
