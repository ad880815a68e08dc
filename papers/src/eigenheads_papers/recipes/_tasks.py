"""Recipes as tasks: the model, its data, its training loss and its metrics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from eigenheads.extend import Got, check_choice, fail
from eigenheads_papers.recipes._augment import Augmentation, Augmenter
from eigenheads_papers.recipes._data import (
    ImageFolder,
    ImageReader,
    Reader,
    TextReader,
    make_vocabulary,
    read_text_words,
)
from eigenheads_papers.recipes._models import (
    VIT_BASE,
    VIT_TINY,
    AttentionChoice,
    LanguageModel,
    LanguageSize,
    VisionSize,
    VisionTransformer,
)


@dataclass(frozen=True, kw_only=True)
class TrainingSchedule:
    """Length of a training run and its step sizes.

    Attributes
    ----------
    epochs, batch_size
        Passes over the data, and examples per update, over all processes.
    learning_rate, final_learning_rate, warmup_epochs
        AdamW's step rises linearly, then falls along half a cosine.
    weight_decay
        Of AdamW; biases, norms and embeddings of positions are exempt.
    clip
        Largest norm of the gradient; infinity does not clip.
    average_decay
        Decay of the running average of the weights, which is what is evaluated.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    final_learning_rate: float = 1e-5
    warmup_epochs: float = 5.0
    weight_decay: float = 0.05
    clip: float = float("inf")
    average_decay: float = 0.99996


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Sizes of a run."""

    size: VisionSize | LanguageSize
    schedule: TrainingSchedule
    augmentation: Augmentation = field(default_factory=Augmentation.none)
    drop_path: float = 0.0
    n_words: int = 0


class AbstractTask(ABC):
    """A model to train and its data.

    Attributes
    ----------
    train, valid
        Examples to train on, and to evaluate on after every epoch.
    metrics
        Names of the sums that :meth:`score` returns, divided by their count.
    """

    name: str
    metrics: tuple[str, ...]
    train: Reader
    valid: Reader
    preset: Preset

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the model with fresh weights."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the training loss of a batch."""

    @abstractmethod
    def score(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of every metric over a batch, then the count."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return what :func:`rebuild_model` needs, as plain data."""


@final
class ImageTask(AbstractTask):
    """Classify images of an ImageNet-like folder."""

    name = "imagenet"
    metrics = ("loss", "top-1", "top-5")

    def __init__(
        self, data: Path, preset: Preset, attention: AttentionChoice, *, n_threads: int
    ) -> None:
        assert isinstance(preset.size, VisionSize)
        self.preset, self.attention, self.size = preset, attention, preset.size
        train = ImageFolder.open(data / "train")
        valid = ImageFolder.open(data / "val", classes=train.classes)
        self.classes = train.classes
        options: dict[str, Any] = {"size": self.size.image}
        self.train = ImageReader(
            train,
            smallest_crop=preset.augmentation.smallest_crop,
            n_threads=n_threads,
            **options,
        )
        self.valid = ImageReader(valid, n_threads=n_threads, **options)
        self._augment = Augmenter(preset.augmentation, len(self.classes))

    def build_model(self) -> nn.Module:
        """Return a vision transformer."""
        return VisionTransformer(
            len(self.classes),
            size=self.size,
            attention=self.attention,
            drop_path=self.preset.drop_path,
        )

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy with augmented images and soft targets."""
        images, soft = self._augment(inputs, targets)
        return nn.functional.cross_entropy(model(images).float(), soft)

    def score(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return sums of losses, hits among one and among five, and the count."""
        return score_classes(logits, targets)

    def record(self) -> dict[str, Any]:
        """Return size, attention and classes."""
        return {
            "task": self.name,
            "size": asdict(self.size),
            "attention": self.attention.record(),
            "classes": list(self.classes),
        }


@final
class TextTask(AbstractTask):
    """Predict the next word of a text."""

    name = "wikitext"
    metrics = ("loss",)

    def __init__(
        self, data: Path, preset: Preset, attention: AttentionChoice, *, n_threads: int
    ) -> None:
        del n_threads  # text is in memory
        assert isinstance(preset.size, LanguageSize)
        self.preset, self.attention, self.size = preset, attention, preset.size
        words = read_text_words(data / "train.txt")
        self.vocabulary = make_vocabulary(words, at_most=preset.n_words)
        context = self.size.context
        self.train = TextReader(words, self.vocabulary, context=context)
        held_out = read_text_words(data / "valid.txt")
        self.valid = TextReader(held_out, self.vocabulary, context=context)

    def build_model(self) -> nn.Module:
        """Return a causal language model."""
        n_words = len(self.vocabulary)
        return LanguageModel(n_words, size=self.size, attention=self.attention)

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of the next words."""
        logits = model(inputs).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def score(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of losses and the number of words."""
        return score_words(logits, targets)

    def record(self) -> dict[str, Any]:
        """Return size, attention and vocabulary."""
        return {
            "task": self.name,
            "size": asdict(self.size),
            "attention": self.attention.record(),
            "vocabulary": list(self.vocabulary),
        }


def score_classes(logits: Tensor, targets: Tensor) -> Tensor:
    """Return sums of losses, hits among one and among five, and the count."""
    logits = logits.double()
    loss = nn.functional.cross_entropy(logits, targets, reduction="sum")
    best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices
    hits = best == targets[:, None]
    sums = [loss, hits[:, 0].sum(), hits.sum(), torch.tensor(len(targets))]
    return torch.stack([value.double().cpu() for value in sums])


def score_words(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of losses and the number of words."""
    flat = logits.double().flatten(0, 1)
    loss = nn.functional.cross_entropy(flat, targets.flatten(), reduction="sum")
    return torch.stack([loss.cpu(), torch.tensor(float(targets.numel())).double()])


def check_record(record: Mapping[str, Any], *, n_tensors: int) -> None:
    """Raise ValueError unless a record names a task, its outputs and a credible depth.

    Every layer has tensors, so a model with more layers than its files have tensors
    is not built.
    """
    names = {ImageTask.name: "classes", TextTask.name: "vocabulary"}
    if record.get("task") not in list(names):
        raise ValueError("of no known task")
    outputs = record.get(names[record["task"]])
    if not isinstance(outputs, list) or not all(isinstance(x, str) for x in outputs):
        raise ValueError("without the names of its outputs")
    size = record.get("size")
    if not isinstance(size, dict) or not isinstance(size.get("depth"), int):
        raise ValueError("without its size")
    if size["depth"] > n_tensors:
        raise ValueError(f"of {size['depth']} layers in {n_tensors} tensors")


def rebuild_model(record: Mapping[str, Any]) -> nn.Module:
    """Return the model that a task's record describes, with fresh weights."""
    attention = AttentionChoice.read(record["attention"])
    if record["task"] == TextTask.name:
        size = LanguageSize(**record["size"])
        return LanguageModel(len(record["vocabulary"]), size=size, attention=attention)
    vision = VisionSize(**record["size"])
    return VisionTransformer(len(record["classes"]), size=vision, attention=attention)


# DeiT's recipe: 300 epochs, 1024 images per update.
_DEIT = TrainingSchedule(epochs=300, batch_size=1024, learning_rate=1e-3)
_TINY = Preset(
    size=VIT_TINY, schedule=_DEIT, augmentation=Augmentation(), drop_path=0.1
)
_LIGHT = replace(
    Augmentation.none(), smallest_crop=0.6, smoothing=0.1, n_policies=1, magnitude=1.0
)
_SMALL_VIT = VisionSize(image=28, patch=4, d_model=64, depth=4, n_heads=4)
_WIKITEXT = TrainingSchedule(
    epochs=120,
    batch_size=96,
    learning_rate=2.5e-4,
    warmup_epochs=2.0,
    weight_decay=0.0,
    clip=0.25,
)

PRESETS: Final[Mapping[str, Mapping[str, Preset]]] = {
    "imagenet": {
        "paper": _TINY,
        "paper-base": replace(_TINY, size=VIT_BASE),
        # A few minutes on two cores: 28 × 28 images, such as MNIST in folders.
        "small": Preset(
            size=_SMALL_VIT,
            schedule=TrainingSchedule(
                epochs=6,
                batch_size=128,
                learning_rate=2e-3,
                warmup_epochs=0.5,
                clip=1.0,
                average_decay=0.998,
            ),
            augmentation=replace(Augmentation.none(), smallest_crop=0.8),
        ),
        "smoke": Preset(
            size=replace(_SMALL_VIT, d_model=16, depth=2, n_heads=2, patch=7),
            schedule=TrainingSchedule(
                epochs=2, batch_size=8, learning_rate=1e-3, warmup_epochs=0.5
            ),
            augmentation=replace(_LIGHT, mixup=0.8, cutmix=1.0, erasing=0.25),
            drop_path=0.1,
        ),
    },
    "wikitext": {
        "paper": Preset(size=LanguageSize(), schedule=_WIKITEXT, n_words=267_735),
        "small": Preset(
            size=LanguageSize(context=64, d_model=64, d_hidden=256, depth=4, n_heads=4),
            schedule=replace(
                _WIKITEXT, epochs=4, batch_size=32, learning_rate=1e-3, clip=1.0
            ),
            n_words=5_000,
        ),
        "smoke": Preset(
            size=LanguageSize(context=16, d_model=16, d_hidden=32, depth=2, n_heads=2),
            schedule=replace(_WIKITEXT, epochs=2, batch_size=4, warmup_epochs=0.5),
            n_words=200,
        ),
    },
}
_TASKS: Final[Mapping[str, Callable[..., AbstractTask]]] = {
    ImageTask.name: ImageTask,
    TextTask.name: TextTask,
}
RECIPES: Final = tuple(_TASKS)


def open_task(
    recipe: str,
    data: Path,
    *,
    preset: str,
    attention: AttentionChoice,
    n_threads: int,
    changes: Mapping[str, Any] | None = None,
) -> AbstractTask:
    """Return the task of a recipe on the data of a folder.

    Parameters
    ----------
    recipe, preset
        Names.
    data
        For ``imagenet`` a folder with ``train`` and ``val``, each with one sub-folder
        per class; for ``wikitext`` one with ``train.txt`` and ``valid.txt``.
    attention
        The attention of the layers.
    n_threads
        Images decoded at the same time.
    changes
        Fields of the preset's schedule that differ, such as ``epochs``.
    """
    check_choice("recipe", recipe, RECIPES)
    check_choice("preset", preset, tuple(PRESETS[recipe]))
    if not data.is_dir():
        fail("data", "a folder that exists", Got(str(data)))
    chosen = PRESETS[recipe][preset]
    schedule = replace(chosen.schedule, **(changes or {}))
    chosen = replace(chosen, schedule=schedule)
    return _TASKS[recipe](data, chosen, attention, n_threads=n_threads)
