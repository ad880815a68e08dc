"""Data of the recipes: images in folders, texts, batches read ahead of the model."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from eigenheads.extend import (
    Got,
    check_count,
    check_regular,
    fail,
    for_workers,
    generator,
)

_SUFFIXES: Final = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
# Pillow looks at the content, not at the suffix, and for PostScript it would start
# another program.
_FORMATS: Final = ("JPEG", "PNG", "BMP", "WEBP")
# Larger images are refused before they are decoded, larger files before they are read.
_MAX_PIXELS: Final = 100_000_000
_MAX_IMAGE_BYTES: Final = 2**30
END_OF_LINE: Final = "<eos>"
UNKNOWN: Final = "<unk>"
# WikiText-103 has half a GiB; the words of a text take ten times as much in memory.
_MAX_TEXT_BYTES: Final = 2**32
# Parts of batches that are read while the model computes.
_AHEAD: Final = 2


class Reader(Protocol):
    """Examples that can be read by number."""

    def __len__(self) -> int: ...

    def read(
        self, indices: Sequence[int], *, seed: tuple[int, ...], first: int
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a batch."""


# --- Images in folders, one per class, as ImageNet is laid out -----------------------


@dataclass(frozen=True)
class ImageFolder:
    """Paths and classes of the images below a folder.

    Attributes
    ----------
    paths
        Files, sorted by class and name.
    labels
        Class of each file, an index into `classes`.
    classes
        Names of the sub-folders, sorted; for ImageNet these are WordNet ids.
    """

    paths: tuple[Path, ...]
    labels: Tensor
    classes: tuple[str, ...]

    @classmethod
    def open(
        cls, folder: Path, *, classes: Sequence[str] | None = None
    ) -> "ImageFolder":
        """List the images of a folder.

        Parameters
        ----------
        folder
            Holds one sub-folder of images per class.
        classes
            Known classes. The folder may hold some of them only, but no others.
        """
        if not folder.is_dir():
            contract = "a folder with one sub-folder of images per class"
            fail("data", contract, Got(f"{folder}, which does not exist"))
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        if not names:
            contract = "a folder with one sub-folder of images per class"
            got = Got(f"{folder}, which has no sub-folders")
            fail("data", contract, got)
        index_of = tuple(names) if classes is None else tuple(classes)
        index = {name: number for number, name in enumerate(index_of)}
        paths: list[Path] = []
        labels: list[int] = []
        for name in names:
            if name not in index:
                contract = "a folder of classes that the model was trained on"
                got = Got(f"{folder / name}")
                fail("data", contract, got)
            files = sorted(
                path
                for path in (folder / name).iterdir()
                if path.suffix.lower() in _SUFFIXES
            )
            if not files:
                got = Got(f"{folder / name}, which holds none")
                hint = "Remove the empty folder, or add images to it."
                fail("data", "images in every class", got, hint=hint)
            paths += files
            labels += [index[name]] * len(files)
        return cls(tuple(paths), torch.tensor(labels), index_of)

    def __len__(self) -> int:
        return len(self.paths)

    def masked(self) -> Tensor | None:
        """Return which classes occur here, or None if all of them do."""
        present = torch.zeros(len(self.classes), dtype=torch.bool)
        present[self.labels] = True
        return None if bool(present.all()) else present

    def subset(self, indices: Sequence[int]) -> "ImageFolder":
        """Return the images with these numbers."""
        paths = tuple(self.paths[index] for index in indices)
        return replace(self, paths=paths, labels=self.labels[list(indices)])


def read_image(path: Path) -> Image.Image:
    """Return an image as RGB, or raise one sentence that names the file."""
    try:
        check_regular(path, _MAX_IMAGE_BYTES)
        with path.open("rb") as file, Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise ValueError(f"{image.width} × {image.height} pixels")
            return image.convert("RGB")
    except Exception as error:  # decoders of damaged files raise errors of many kinds
        reason = " ".join(str(error).split())[:80]
        got = Got(f"{path} ({type(error).__name__}: {reason})")
        hint = "Remove or replace this file."
        fail("data", "images that can be decoded", got, hint=hint)


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to 8/7 of `size`, as 256 to 224, and cut the centre."""
    shorter = min(image.width, image.height)
    # The cut and the resize are one operation, without an intermediate image.
    side = shorter * 7 / 8
    start, top = (image.width - side) / 2, (image.height - side) / 2
    box = (start, top, start + side, top + side)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def random_crop(
    image: Image.Image, size: int, rng: np.random.Generator, *, smallest: float
) -> Image.Image:
    """Cut a random rectangle and resize it to a square.

    Its area is uniform from `smallest` to all of the image's, and the logarithm of its
    aspect ratio is uniform from log 3/4 to log 4/3. After ten rectangles that do not
    fit, the centre is cut.
    """
    area = image.width * image.height
    for _ in range(10):
        target = area * rng.uniform(smallest, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = math.sqrt(target * ratio), math.sqrt(target / ratio)
        if width <= image.width and height <= image.height:
            start = rng.uniform(0.0, image.width - width)
            top = rng.uniform(0.0, image.height - height)
            box = (start, top, start + width, top + height)
            return image.resize((size, size), Image.Resampling.BICUBIC, box=box)
    return centre_crop(image, size)


class ImageReader:
    """Read batches of images in threads; Pillow decodes without the interpreter lock.

    Parameters
    ----------
    folder
        The images.
    size
        Side of the square that the model takes.
    smallest_crop
        Smallest share of the area that a random crop keeps; 1 cuts the centre.
    n_threads
        Images decoded at the same time.
    """

    def __init__(
        self,
        folder: ImageFolder,
        *,
        size: int,
        smallest_crop: float = 1.0,
        n_threads: int = 4,
    ) -> None:
        self.folder, self.size = folder, size
        self.smallest_crop = smallest_crop
        self._pool = ThreadPoolExecutor(n_threads)

    def __len__(self) -> int:
        return len(self.folder)

    def read(
        self, indices: Sequence[int], *, seed: tuple[int, ...], first: int
    ) -> tuple[Tensor, Tensor]:
        """Return images ``(batch, 3, size, size)``, entries 0 to 1, and classes.

        A crop depends on `seed` and on the image's place in the global batch, in which
        this part begins at `first`. So neither a resumed run nor another number of
        processes changes a pixel.
        """
        places = range(first, first + len(indices))
        read = self._pool.map(
            for_workers(lambda index, place: self._one(index, (*seed, place))),
            indices,
            places,
        )
        images = torch.stack(list(read)).permute(0, 3, 1, 2).float() / 255.0
        return images.contiguous(), self.folder.labels[list(indices)]

    def _one(self, index: int, seed: tuple[int, ...]) -> Tensor:
        image = read_image(self.folder.paths[index])
        if self.smallest_crop < 1.0:
            rng = generator(seed)
            image = random_crop(image, self.size, rng, smallest=self.smallest_crop)
        else:
            image = centre_crop(image, self.size)
        return torch.from_numpy(np.array(image))


# --- Texts: train.txt, valid.txt and test.txt ----------------------------------------
# Words are separated by white space, as in WikiText; the end of a line is also a word.


def read_text_words(path: Path) -> list[str]:
    """Return the words of a text file, with `END_OF_LINE` after each line of words."""
    if not path.is_file():
        contract = "a folder with train.txt, valid.txt and test.txt"
        fail("data", contract, Got(f"no file {path}"))
    try:
        check_regular(path, _MAX_TEXT_BYTES)
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        got = Got(f"{path} ({error.reason} at byte {error.start})")
        fail("data", "text in UTF-8", got)
    except ValueError as error:
        fail("data", "text files that can be read", Got(str(error)))
    return [
        word for line in lines if line.split() for word in (*line.split(), END_OF_LINE)
    ]


def make_vocabulary(words: Sequence[str], *, at_most: int) -> list[str]:
    """Return the most frequent words, after the unknown word; ties by spelling."""
    check_count("n_words", at_most, minimum=2)
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
            fail("data", contract, Got(f"{len(ids)} words"))
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


# --- Batches -------------------------------------------------------------------------


class Place(NamedTuple):
    """Examples to read: numbers, the seed of their crops, the place in the batch."""

    indices: list[int]
    seed: tuple[int, ...]
    first: int


class Prefetch:
    """Read parts of batches in order, in a thread, some of them ahead of the model."""

    def __init__(
        self, places: Iterator[Place], reader: Reader, device: torch.device
    ) -> None:
        self._places, self._reader, self._device = places, reader, device
        self._pool = ThreadPoolExecutor(1)
        self._waiting: list[Future[tuple[Tensor, Tensor]]] = []

    def __enter__(self) -> "Prefetch":
        for _ in range(_AHEAD):
            self._submit()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def next(self) -> tuple[Tensor, Tensor]:
        """Return the next part of a batch, on the device."""
        # The next part is requested before the wait, so that reading stays ahead.
        self._submit()
        inputs, targets = self._waiting.pop(0).result()
        return inputs.to(self._device), targets.to(self._device)

    def _submit(self) -> None:
        place = next(self._places, None)
        if place is not None:
            self._waiting.append(self._pool.submit(for_workers(self._read), place))

    def _read(self, place: Place) -> tuple[Tensor, Tensor]:
        return self._reader.read(place.indices, seed=place.seed, first=place.first)


def epoch_order(n: int, *, seed: int, epoch: int, repeats: int) -> NDArray[np.int64]:
    """Return the numbers of the examples of an epoch, in order.

    With `repeats` > 1, each of the first ``n / repeats`` examples of a random order
    is repeated that many times in a row (repeated augmentation); an epoch still has
    n examples.
    """
    shuffled = generator((seed, epoch)).permutation(n)
    return np.repeat(shuffled, repeats)[:n]


def shares(n: int, batch_size: int, accelerator: Accelerator) -> Iterator[list[int]]:
    """Yield batches of this process' share of n examples."""
    # Interleaved shares differ by one example at most.
    mine = range(accelerator.process_index, n, accelerator.num_processes)
    for begin in range(0, len(mine), batch_size):
        yield list(mine[begin : begin + batch_size])
