"""Evaluate checkpoints on benchmark folders: streaming, on one process or many.

No data set is held in memory: images are read, scored and dropped batch by batch.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch
from accelerate import Accelerator
from scipy import stats
from torch import Tensor, nn

from eigenheads._checks import Got, check_choice, check_count, fail
from eigenheads._files import write_atomically
from eigenheads.recipes._batches import shares
from eigenheads.recipes._checkpoints import load_state, load_weights
from eigenheads.recipes._images import ImageFolder, ImageReader
from eigenheads.recipes._tasks import rebuild_model, score_classes, score_words
from eigenheads.recipes._text import TextReader, read_text_words
from eigenheads.robustness import fgsm, pgd, spsa, square, swap_words

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
_ATTACKS: Final[Mapping[str, Callable[..., Tensor]]] = {
    "fgsm": fgsm,
    "pgd": pgd,
    "spsa": spsa,
    "square": square,
}


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """One number of one checkpoint.

    Attributes
    ----------
    checkpoint
        Number of the checkpoint, in the order given.
    condition
        Data or attack, such as ``"clean"`` or ``"imagenet-c: fog"``.
    metric
        Such as ``"top-1"``, ``"corruption error"``, ``"AUPR"`` or ``"perplexity"``.
    value
        The number; shares are between 0 and 1.
    n
        Examples that it is made from.
    """

    checkpoint: int
    condition: str
    metric: str
    value: float
    n: int


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one or several checkpoints, with intervals over checkpoints."""

    rows: tuple[EvaluationRow, ...]
    confidence: float = 0.95

    def summary(self) -> list[dict[str, Any]]:
        """Return mean and interval over checkpoints of every number.

        The half width is Student's, over checkpoints (training runs); NaN for one.
        """
        groups: dict[tuple[str, str], list[float]] = {}
        for row in self.rows:
            groups.setdefault((row.condition, row.metric), []).append(row.value)
        found = []
        for (condition, metric), values in groups.items():
            n = len(values)
            half = math.nan
            if n > 1:
                quantile = stats.t.ppf((1 + self.confidence) / 2, n - 1)
                half = float(quantile * np.std(values, ddof=1) / math.sqrt(n))
            found.append(
                {
                    "condition": condition,
                    "metric": metric,
                    "mean": float(np.mean(values)),
                    "half_width": half,
                    "n_checkpoints": n,
                }
            )
        return found

    def to_markdown(self) -> str:
        """Return the summary as a table; shares are in percent."""
        lines = ["| condition | metric | value |", "|---|---|--:|"]
        for entry in self.summary():
            is_share = entry["metric"] not in ("perplexity", "mCE", "corruption error")
            factor, unit = (100.0, " %") if is_share else (1.0, "")
            text = f"{factor * entry['mean']:.2f}"
            if entry["n_checkpoints"] > 1:
                text += f" ± {factor * entry['half_width']:.2f}"
            lines.append(f"| {entry['condition']} | {entry['metric']} | {text}{unit} |")
        return "\n".join(lines) + "\n"

    def save(self, folder: str | Path) -> Path:
        """Write ``evaluation.json`` and ``evaluation.md`` into a folder; return it."""
        folder = Path(folder)
        record = {
            "rows": [asdict(row) for row in self.rows],
            # NaN is no JSON: an interval of one checkpoint is null.
            "summary": [
                {
                    name: None if isinstance(value, float) and value != value else value
                    for name, value in entry.items()
                }
                for entry in self.summary()
            ],
        }
        text = json.dumps(record, indent=1, allow_nan=False)
        for name, content in (
            ("evaluation.json", text),
            ("evaluation.md", self.to_markdown()),
        ):
            write_atomically(folder / name, partial(_write_text, content))
        return folder


def _write_text(text: str, file: IO[bytes]) -> None:
    file.write(text.encode("utf-8"))


def evaluate_checkpoints(
    paths: Sequence[str | Path],
    *,
    data: str | Path | None = None,
    corrupted: str | Path | None = None,
    natural: Mapping[str, str | Path] | None = None,
    outliers: str | Path | None = None,
    attacks: Sequence[str] = (),
    budgets: Sequence[float] = (1.0,),
    units: str = "pixel",
    n_attacked: int | None = None,
    word_shares: Sequence[float] = (0.1, 0.2, 0.3),
    batch_size: int = 64,
    seed: int = 0,
    n_threads: int = 4,
    progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Evaluate checkpoints that :func:`train_model` wrote.

    Parameters
    ----------
    paths
        Folders of checkpoints, or of runs (their ``model/``): one per training run.
    data
        Folder of clean data, ``val/<class>/*`` or ``test.txt``.
    corrupted
        Folder in ImageNet-C's layout, ``<corruption>/<severity>/<class>/*``.
    natural
        Folders of other images of some of the classes, by name, such as ImageNet-A and
        ImageNet-R; only the classes that have a sub-folder can be predicted.
    outliers
        Folder of images of other classes, such as ImageNet-O's, against the clean
        images: area under the precision-recall curve.
    attacks, budgets, units, n_attacked
        Attacks on the clean images, their budgets in 1/255 of pixels or, with
        ``units="normalised"``, of images divided by the standard deviation of their
        channels, and the number of images that are attacked (all by default).
    word_shares
        Shares of words of a text that are replaced by the unknown word.
    batch_size, n_threads
        Examples at a time, and images decoded at the same time.
    seed
        Seed of attacks and replaced words.
    progress
        Called with a line when a condition is done.

    Returns
    -------
    evaluation
        Rows per checkpoint and their summary.
    """
    check_choice("units", units, ("pixel", "normalised"), owner=_OWNER)
    check_count("batch_size", batch_size, owner=_OWNER)
    for name in attacks:
        check_choice("attacks", name, tuple(_ATTACKS), owner=_OWNER)
    if not paths:
        fail("checkpoint", "at least one folder", Got("none"), owner=_OWNER)
    if data is None and corrupted is None and not natural:
        fail("data", "a folder of examples", Got("none"), owner=_OWNER)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    rows: list[EvaluationRow] = []
    for number, path in enumerate(paths):
        model, record = load_checkpoint(path)
        scorer = _Scorer(
            model.to(accelerator.device).eval(),
            record,
            accelerator,
            batch_size=batch_size,
            n_threads=n_threads,
        )
        # Both branches return generators: a condition is measured when the loop below
        # asks for it.
        if record["task"] == "wikitext":
            conditions: Iterable[tuple[str, dict[str, float], int]]
            conditions = scorer.text(_folder(data), word_shares, seed)
        else:
            conditions = scorer.images(
                data=None if data is None else _folder(data),
                corrupted=None if corrupted is None else _folder(corrupted),
                natural={k: _folder(v) for k, v in (natural or {}).items()},
                outliers=None if outliers is None else _folder(outliers),
                attacks=[(name, size) for name in attacks for size in budgets],
                units=units,
                n_attacked=n_attacked,
                seed=seed,
            )
        for condition, values, n in conditions:
            for metric, value in values.items():
                rows.append(
                    EvaluationRow(
                        checkpoint=number,
                        condition=condition,
                        metric=metric,
                        value=value,
                        n=n,
                    )
                )
            if progress is not None and accelerator.is_main_process:
                progress(f"{path}: {condition} ({n} examples)")
    return Evaluation(tuple(rows))


def load_checkpoint(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return the averaged model of a checkpoint or run, and its record."""
    folder = Path(path)
    if (folder / "model" / "state.json").is_file():
        folder = folder / "model"
    state = load_state(folder, owner=_OWNER)
    record: dict[str, Any] = state["record"]
    contract = "a checkpoint that `eigenheads train` wrote"
    try:
        model = rebuild_model(record)
    except (KeyError, TypeError, ValueError) as error:
        got = Got(f"{folder}, whose record is not that of a model ({error})")
        fail("checkpoint", contract, got, owner=_OWNER)
    # A checkpoint holds current and averaged weights. The final model holds the
    # averaged weights only, as model.safetensors.
    average = folder / "average.safetensors"
    weights = load_weights(
        average if average.is_file() else folder / "model.safetensors", owner=_OWNER
    )
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        got = Got(f"{folder}, whose tensors do not fit ({str(error)[:120]})")
        fail("checkpoint", contract, got, owner=_OWNER)
    return model, record


def _folder(path: str | Path | None) -> Path:
    if path is None or not Path(path).is_dir():
        fail("data", "a folder that exists", Got(str(path)), owner=_OWNER)
    return Path(path)


class _Scorer:
    """Score one model, condition by condition."""

    def __init__(
        self,
        model: nn.Module,
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
        attacks: Sequence[tuple[str, float]],
        units: str,
        n_attacked: int | None,
        seed: int,
    ) -> Iterator[tuple[str, dict[str, float], int]]:
        """Yield condition, metrics and number of examples."""
        if data is not None:
            clean = self._open(data / "val")
            yield self._accuracy("clean", clean)
            for name, budget in attacks:
                yield self._attacked(clean, name, budget, units, n_attacked, seed)
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
    def _accuracy(
        self, condition: str, reader: ImageReader
    ) -> tuple[str, dict[str, float], int]:
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
        return condition, {"top-1": best / n, "top-5": five / n}, int(n)

    def _attacked(
        self,
        reader: ImageReader,
        name: str,
        budget: float,
        units: str,
        n_attacked: int | None,
        seed: int,
    ) -> tuple[str, dict[str, float], int]:
        """Return the accuracy of images that are right before and after an attack."""
        total = len(reader)
        if n_attacked is not None and n_attacked < total:
            chosen = np.random.default_rng(seed).choice(total, n_attacked, False)
            reader = self._reader(reader.folder.subset(np.sort(chosen).tolist()))
        size = budget
        if units == "normalised":
            # The authors perturb normalised images: 1/255 there is σ/255 of a pixel.
            size *= float(torch.as_tensor(self.model.std).mean())
        right = torch.zeros(2, dtype=torch.float64)
        for number, (images, labels) in enumerate(self._batches(reader)):
            # Every batch has its own seed: its attack does not depend on the batches
            # before.
            torch.manual_seed(seed + number)
            moved = _ATTACKS[name](self.model, images, labels, budget=size)
            with torch.no_grad():
                before = self.model(images).argmax(-1) == labels
                after = self.model(moved).argmax(-1) == labels
            hits = float((before & after).sum())
            right += torch.tensor([hits, len(labels)], dtype=torch.float64)
        hits, n = self._gathered(right).tolist()
        condition = f"{name}, budget {budget:g}/255 ({units})"
        return condition, {"top-1": hits / n}, int(n)

    @torch.no_grad()
    def _outliers(
        self, clean: ImageReader, outliers: Path
    ) -> tuple[str, dict[str, float], int]:
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
        return "outliers", {"AUPR": float(area)}, int(real.sum())

    def _corrupted(self, folder: Path) -> Iterator[tuple[str, dict[str, float], int]]:
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
                _, found, n = self._accuracy("", self._open(severity))
                errors.append(1.0 - found["top-1"])
                count += n
            # All severities count alike, whatever their numbers of images.
            error = float(np.mean(errors))
            ratios.append(error / ALEXNET_ERRORS[name])
            values = {"top-1": 1.0 - error, "corruption error": 100 * ratios[-1]}
            yield f"corruption {name}", values, count
        condition = f"mean of {len(names)} corruptions"
        yield condition, {"mCE": 100 * float(np.mean(ratios))}, len(names)

    # Text

    @torch.no_grad()
    def text(
        self, data: Path, word_shares: Sequence[float], seed: int
    ) -> Iterator[tuple[str, dict[str, float], int]]:
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
            yield condition, {"perplexity": math.exp(min(loss / n, 700.0))}, int(n)
