"""Score one model on benchmark folders, batch by batch, on one process or many."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from eigenheads.extend import Got, fail
from eigenheads.extend.models import ATTACK_FUNCTIONS
from eigenheads.robustness import swap_words
from eigenheads_papers.recipes._batches import shares
from eigenheads_papers.recipes._images import ImageFolder, ImageReader
from eigenheads_papers.recipes._models import VisionTransformer
from eigenheads_papers.recipes._screened import ScreenedTransformer
from eigenheads_papers.recipes._tasks import score_classes, score_words
from eigenheads_papers.recipes._text import TextReader, read_text_words

_OWNER: Final = "evaluate"
# Errors of AlexNet on ImageNet-C, means over severities (Hendrycks, Dietterich 2019).
ALEXNET_ERRORS: Final[Mapping[str, float]] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
# This attack looks for the smallest change, so it has no budget.
_WITHOUT_BUDGET: Final = ("carlini-wagner",)
# The budget of this one is a sum of absolute changes, in whole ranges.
_SUMMED: Final = ("sparse-l1",)


class Outcome(NamedTuple):
    """Numbers of one condition: its table, name, metrics and count of examples."""

    table: str
    condition: str
    metrics: Mapping[str, float]
    n: int


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """Attacks on clean images.

    Attributes
    ----------
    names, budgets, units
        Every attack is made with every budget in every unit.
    n_attacked
        Number of images that are attacked; None attacks all.
    seed
        Seed of the attacks and of the choice of images.
    """

    names: Sequence[str] = ()
    budgets: Sequence[float] = (1.0,)
    units: Sequence[str] = ("pixel",)
    n_attacked: int | None = None
    seed: int = 0

    def each(self) -> Iterator[tuple[str, float | None, str]]:
        """Yield name, budget and unit of every attack."""
        for name in self.names:
            if name in _WITHOUT_BUDGET:
                yield name, None, ""
                continue
            for unit in self.units:
                for budget in self.budgets:
                    yield name, budget, unit


class Scorer:
    """Score one model, condition by condition."""

    def __init__(
        self,
        model: VisionTransformer | ScreenedTransformer | nn.Module,
        record: Mapping[str, Any],
        accelerator: Accelerator,
        *,
        batch_size: int,
        n_threads: int,
    ) -> None:
        self.model, self.record, self.accelerator = model, record, accelerator
        self.batch_size, self.n_threads = batch_size, n_threads

    # Images

    def images(
        self,
        *,
        data: Path | None,
        corrupted: Path | None,
        natural: Mapping[str, Path],
        outliers: Path | None,
        attacks: AttackPlan,
    ) -> Iterator[Outcome]:
        """Yield the outcomes of all conditions."""
        if data is not None:
            clean = self._open(data / "val")
            yield self._accuracy("clean", clean)
            chosen = self._chosen(clean, attacks)
            for name, budget, unit in attacks.each():
                yield self._attacked(chosen, name, budget, unit, attacks.seed)
            if outliers is not None:
                yield self._outliers(clean, outliers)
        for name, folder in natural.items():
            yield self._accuracy(name, self._open(folder))
        if corrupted is not None:
            yield from self._corrupted(corrupted)

    def _open(self, folder: Path) -> ImageReader:
        images = ImageFolder.open(folder, owner=_OWNER, classes=self.record["classes"])
        return self._reader(images)

    def _reader(self, images: ImageFolder) -> ImageReader:
        size = int(self.record["size"]["image"])
        return ImageReader(images, size=size, n_threads=self.n_threads, owner=_OWNER)

    def _batches(self, reader: ImageReader) -> Iterator[tuple[Tensor, Tensor]]:
        device = self.accelerator.device
        for indices in shares(len(reader), self.batch_size, self.accelerator):
            inputs, targets = reader.read(indices, seed=(0,), first=0)
            yield inputs.to(device), targets.to(device)

    def _gathered(self, sums: Tensor) -> Tensor:
        return self.accelerator.reduce(sums.to(self.accelerator.device)).cpu()

    @torch.no_grad()
    def _accuracy(self, condition: str, reader: ImageReader) -> Outcome:
        present = reader.folder.masked()
        sums = torch.zeros(4, dtype=torch.float64)
        for images, labels in self._batches(reader):
            logits = self.model(images)
            # Classes without images here cannot be the answer, so they are never
            # predicted.
            if present is not None:
                hidden = ~present.to(logits.device)
                logits = logits.masked_fill(hidden, -math.inf)
            sums += score_classes(logits, labels)
        _, best, five, n = self._gathered(sums).tolist()
        metrics = {"top-1": best / n, "top-5": five / n}
        return Outcome("accuracy", condition, metrics, int(n))

    def screened(self, data: Path, n_calibration: int, seed: int) -> "Scorer":
        """Return the scorer of the same model behind a screen of its tokens.

        The screen is fitted to training images, which are no part of the evaluation.
        """
        reader = self._open(data / "train")
        chosen = reader.folder
        if n_calibration < len(reader):
            rng = np.random.default_rng(seed)
            picked = rng.choice(len(reader), n_calibration, replace=False)
            chosen = chosen.subset(np.sort(picked).tolist())
        assert isinstance(self.model, VisionTransformer)
        images = _Calibration(self._reader(chosen), self.batch_size)
        model = ScreenedTransformer(self.model, images).eval()
        return Scorer(
            model.to(self.accelerator.device),
            self.record,
            self.accelerator,
            batch_size=self.batch_size,
            n_threads=self.n_threads,
        )

    def _chosen(self, reader: ImageReader, attacks: AttackPlan) -> ImageReader:
        """Return the images that are attacked: the same for every attack."""
        n, total = attacks.n_attacked, len(reader)
        if n is None or n >= total:
            return reader
        chosen = np.random.default_rng(attacks.seed).choice(total, n, replace=False)
        return self._reader(reader.folder.subset(np.sort(chosen).tolist()))

    def _attacked(
        self, reader: ImageReader, name: str, budget: float | None, unit: str, seed: int
    ) -> Outcome:
        """Return the accuracy of images that are right before and after an attack."""
        attack = ATTACK_FUNCTIONS[name]
        options = {} if budget is None else {"budget": self._size(name, budget, unit)}
        right = torch.zeros(3, dtype=torch.float64)
        for number, (images, labels) in enumerate(self._batches(reader)):
            # Every batch has its own seed: its attack does not depend on the batches
            # before.
            torch.manual_seed(seed + number)
            moved = attack(self.model, images, labels, **options)
            with torch.no_grad():
                before = self.model(images)
                after = self.model(moved)
            hits = []
            for k in (1, 5):
                among = [
                    (logits.topk(min(k, logits.shape[1])).indices == labels[:, None])
                    for logits in (before, after)
                ]
                hits.append(float((among[0].any(1) & among[1].any(1)).sum()))
            right += torch.tensor([*hits, len(labels)], dtype=torch.float64)
        one, five, n = self._gathered(right).tolist()
        text = "" if budget is None else f", budget {budget:g}/255 ({unit})"
        if name in _SUMMED:
            text = f", budget {budget:g} in sum ({unit})"
        metrics = {"top-1": one / n, "top-5": five / n}
        return Outcome("attack", name + text, metrics, int(n))

    def _size(self, name: str, budget: float, unit: str) -> float | Tensor:
        """Return a budget in units of pixels."""
        if unit == "pixel":
            return budget
        # The authors perturb normalised images: 1/255 there is σ/255 of a pixel, with
        # the deviation σ of each channel.
        deviations = torch.as_tensor(self.model.std).view(-1, 1, 1)
        return budget * (float(deviations.mean()) if name in _SUMMED else deviations)

    @torch.no_grad()
    def _outliers(self, clean: ImageReader, outliers: Path) -> Outcome:
        """Return how well low confidence tells images of foreign classes."""
        from sklearn.metrics import average_precision_score

        foreign = self._reader(ImageFolder.open(outliers, owner=_OWNER))
        scores, labels = [], []
        for reader, label in ((clean, 0.0), (foreign, 1.0)):
            for images, _ in self._batches(reader):
                doubt = 1.0 - self.model(images).softmax(-1).amax(-1)
                scores.append(doubt)
                labels.append(torch.full_like(doubt, label))
        gather = self.accelerator.gather_for_metrics
        # Processes may hold different numbers of images. They pad with -1, which is
        # neither a score nor a label, and the padding is removed after gathering.
        if self.accelerator.num_processes > 1:
            scores = [self.accelerator.pad_across_processes(torch.cat(scores), 0, -1)]
            labels = [self.accelerator.pad_across_processes(torch.cat(labels), 0, -1)]
        truth = gather(torch.cat(labels)).cpu()
        doubt = gather(torch.cat(scores)).cpu()
        real = truth >= 0
        area = average_precision_score(truth[real].numpy(), doubt[real].numpy())
        return Outcome("accuracy", "outliers", {"AUPR": float(area)}, int(real.sum()))

    def _corrupted(self, folder: Path) -> Iterator[Outcome]:
        """Yield the error of every corruption, and their mean relative to AlexNet."""
        names = [name for name in ALEXNET_ERRORS if (folder / name).is_dir()]
        if not names:
            contract = "a folder in ImageNet-C's layout (gaussian_noise/1/<class>/…)"
            fail("corrupted", contract, Got(str(folder)), owner=_OWNER)
        ratios = []
        for name in names:
            severities = sorted(p for p in (folder / name).iterdir() if p.is_dir())
            errors, count = [], 0
            for severity in severities:
                found = self._accuracy("", self._open(severity))
                errors.append(1.0 - found.metrics["top-1"])
                count += found.n
            # All severities count alike, whatever their numbers of images.
            error = float(np.mean(errors))
            ratios.append(error / ALEXNET_ERRORS[name])
            values = {"top-1": 1.0 - error, "corruption error": 100 * ratios[-1]}
            yield Outcome("corruption", f"corruption {name}", values, count)
        condition = f"mean of {len(names)} corruptions"
        mean = {"mCE": 100 * float(np.mean(ratios))}
        yield Outcome("corruption", condition, mean, len(names))

    # Text

    @torch.no_grad()
    def text(
        self, data: Path, word_shares: Sequence[float], seed: int
    ) -> Iterator[Outcome]:
        """Yield the perplexity of clean and of corrupted text."""
        vocabulary = self.record["vocabulary"]
        context = int(self.record["size"]["context"])
        words = read_text_words(data / "test.txt", owner=_OWNER)
        reader = TextReader(words, vocabulary, context=context)
        for share in (0.0, *word_shares):
            sums = torch.zeros(2, dtype=torch.float64)
            batches = shares(len(reader), self.batch_size, self.accelerator)
            for number, indices in enumerate(batches):
                ids, targets = reader.read(indices, seed=(0,), first=0)
                if share:
                    # The unknown word stands for the paper's "AAA".
                    rng = torch.Generator().manual_seed(seed + number)
                    ids = swap_words(ids, share, replacement=0, generator=rng)
                device = self.accelerator.device
                sums += score_words(self.model(ids.to(device)), targets.to(device))
            loss, n = self._gathered(sums).tolist()
            condition = f"{share:.0%} of the words swapped" if share else "clean"
            # The limit keeps the exponential finite for a model that diverged.
            metrics = {"perplexity": math.exp(min(loss / n, 700.0))}
            yield Outcome("perplexity", condition, metrics, int(n))


class _Calibration:
    """Batches of images without classes, read again in each iteration."""

    def __init__(self, reader: ImageReader, size: int) -> None:
        self._reader, self._size = reader, size

    def __iter__(self) -> Iterator[Tensor]:
        for begin in range(0, len(self._reader), self._size):
            places = range(begin, min(begin + self._size, len(self._reader)))
            yield self._reader.read(places, seed=(0,), first=0)[0]
