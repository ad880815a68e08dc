"""Evaluate checkpoints on benchmark folders: streaming, on one process or many.

No data set is held in memory: images are read, scored and dropped batch by batch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from eigenheads.extend import (
    FloatArray,
    Got,
    check_choice,
    check_count,
    check_flag,
    check_items,
    check_number,
    check_path,
    fail,
    generator,
    torch_generator,
)
from eigenheads.robustness import (
    ALEXNET_ERRORS,
    ATTACKS,
    RobustnessPlan,
    RobustnessRow,
    evaluate_robustness,
    swap_words,
)
from eigenheads_papers.recipes._checkpoints import load_checkpoint
from eigenheads_papers.recipes._data import (
    ImageFolder,
    ImageReader,
    TextReader,
    read_text_words,
    shares,
)
from eigenheads_papers.recipes._models import ScreenedTransformer, VisionTransformer
from eigenheads_papers.recipes._tables import (
    EvaluatedModel,
    Evaluation,
    EvaluationRow,
    describe_model,
)
from eigenheads_papers.recipes._tasks import score_words
from eigenheads_papers.teo2024.attacks import (
    PAPERS_ATTACKS,
    carlini_wagner,
    sparse_l1_descent,
)

# Largest seed that PyTorch takes.
_MAX_SEED: Final = 2**63 - 1
# All attacks by name: the library's, and two that only the paper has.
_ATTACKS: Final[Mapping[str, Callable[..., Tensor]]] = {**ATTACKS, **PAPERS_ATTACKS}


class Outcome(NamedTuple):
    """Numbers of one condition: its table, name, metrics and count of examples."""

    table: str
    condition: str
    metrics: Mapping[str, float]
    n: int

    @classmethod
    def of(
        cls, table: str, condition: str, rows: Mapping[str, RobustnessRow]
    ) -> "Outcome":
        """Make an outcome of rows of the library's evaluator, by metric."""
        values = {metric: row.value for metric, row in rows.items()}
        return cls(table, condition, values, next(iter(rows.values())).n_examples)


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

    def of_paper(self, unit: str, std: Tensor) -> dict[str, Callable[..., Tensor]]:
        """Return the attacks that only the paper has, by their conditions.

        That of Carlini and Wagner looks for the smallest change, so it has no budget.
        The budget of the sparse one is a sum of absolute changes, in whole ranges.
        """
        attacks: dict[str, Callable[..., Tensor]] = {}
        if "carlini-wagner" in self.names and unit == self.units[0]:
            attacks["carlini-wagner"] = carlini_wagner
        if "sparse-l1" in self.names:
            scale = 1.0 if unit == "pixel" else float(std.mean())
            for budget in self.budgets:
                attacks[f"sparse-l1, budget {budget:g} in sum ({unit})"] = partial(
                    sparse_l1_descent, budget=scale * budget
                )
        return attacks


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
    screened: bool = False,
    n_calibration: int = 1000,
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
        Runs whose attention has the same options make one column of the tables.
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
        Attacks on the clean images, some of
        :data:`eigenheads.robustness.ATTACKS`, ``"carlini-wagner"`` and
        ``"sparse-l1"``; their budgets in 1/255 of pixels, with ``units="normalised"``
        of images divided by the standard deviation of their channels, or with
        ``units="both"`` in each; and the number of images that are attacked (all by
        default).
    screened, n_calibration
        Whether to evaluate each image model a second time behind a screen of its
        tokens (as :func:`eigenheads.adapters.screen_tokens`), and the number of
        training images that the screen is fitted to.
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
    check_choice("units", units, ("pixel", "normalised", "both"))
    batch_size = check_count("batch_size", batch_size)
    n_calibration = check_count("n_calibration", n_calibration)
    n_threads = check_count("n_threads", n_threads)
    seed = check_count("seed", seed, minimum=0, maximum=_MAX_SEED)
    screened = check_flag("screened", screened)
    if n_attacked is not None:
        n_attacked = check_count("n_attacked", n_attacked)
    if progress is not None and not callable(progress):
        fail("progress", "a function or None", progress, error=TypeError)
    attacks = check_items("attacks", attacks, "a sequence of names")
    for name in attacks:
        check_choice("attacks", name, _ATTACKS)
    budgets = _check_numbers("budgets", budgets, maximum=math.inf)
    word_shares = _check_numbers("word_shares", word_shares, maximum=1.0)
    paths = _check_folders(paths, natural)
    if data is None and (screened or (corrupted is None and not natural)):
        fail("data", "a folder of examples", Got("none"))
    plan = AttackPlan(
        names=attacks,
        budgets=budgets,
        units=("pixel", "normalised") if units == "both" else (units,),
        n_attacked=n_attacked,
        seed=seed,
    )
    folders: dict[str, Any] = {
        "data": None if data is None else _folder(data),
        "corrupted": None if corrupted is None else _folder(corrupted),
        "natural": {k: _folder(v) for k, v in (natural or {}).items()},
        "outliers": None if outliers is None else _folder(outliers),
    }
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    collected = _Collected(progress if accelerator.is_main_process else None)
    for path in paths:
        model, state = load_checkpoint(path)
        scorer = Scorer(
            model.to(accelerator.device).eval(),
            state["record"],
            accelerator,
            batch_size=batch_size,
            n_threads=n_threads,
        )
        described = describe_model(str(path), state)
        if described.task == "wikitext":
            collected.add(described, scorer.text(_folder(data), word_shares, seed))
            continue
        collected.add(described, scorer.images(**folders, attacks=plan))
        if screened:
            behind = scorer.screened(_folder(data), n_calibration, seed)
            variant = f"{described.variant} + screen"
            described = replace(described, variant=variant, screened=True)
            collected.add(described, behind.images(**folders, attacks=plan))
    return Evaluation(tuple(collected.rows), tuple(collected.models))


class _Collected:
    """Rows of the models that were evaluated so far."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        self.models: list[EvaluatedModel] = []
        self.rows: list[EvaluationRow] = []
        self._progress = progress

    def add(self, model: EvaluatedModel, outcomes: Iterable[Outcome]) -> None:
        """Add a model; each condition is measured when the loop reaches it."""
        self.models.append(model)
        screen = " + screen" if model.screened else ""
        for outcome in outcomes:
            for metric, value in outcome.metrics.items():
                self.rows.append(
                    EvaluationRow(
                        checkpoint=len(self.models) - 1,
                        table=outcome.table,
                        condition=outcome.condition,
                        metric=metric,
                        value=value,
                        n=outcome.n,
                    )
                )
            if self._progress is not None:
                about = f"{outcome.condition} ({outcome.n} examples)"
                self._progress(f"{model.name}{screen}: {about}")


def _check_numbers(name: str, values: object, *, maximum: float) -> list[float]:
    items = check_items(name, values, "a sequence of numbers")
    return [check_number(name, item, minimum=0.0, maximum=maximum) for item in items]


def _check_folders(paths: object, natural: object) -> list[Any]:
    if natural is not None and not isinstance(natural, Mapping):
        fail("natural", "a mapping of names to folders", natural)
    contract = "a sequence of folders, at least one"
    folders = check_items("checkpoint", paths, contract)
    if not folders:
        fail("checkpoint", contract, Got("none"))
    return [check_path("checkpoint", path) for path in folders]


def _folder(path: str | Path | None) -> Path:
    if path is None:
        fail("data", "a folder that exists", Got("none"))
    folder = check_path("data", path)
    if not folder.is_dir():
        fail("data", "a folder that exists", Got(repr(str(path))))
    return folder


# --- Scores of one model -------------------------------------------------------------


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
            foreign = None
            if outliers is not None:
                foreign = self._reader(ImageFolder.open(outliers))
            yield from self._accuracy("clean", clean, outliers=foreign)
            yield from self._attacked(self._chosen(clean, attacks), attacks)
        for name, folder in natural.items():
            yield from self._accuracy(name, self._open(folder))
        if corrupted is not None:
            yield from self._corrupted(corrupted)

    def _open(self, folder: Path) -> ImageReader:
        images = ImageFolder.open(folder, classes=self.record["classes"])
        return self._reader(images)

    def _reader(self, images: ImageFolder) -> ImageReader:
        size = int(self.record["size"]["image"])
        return ImageReader(images, size=size, n_threads=self.n_threads)

    def _batches(self, reader: ImageReader) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process' share of the images, as :meth:`_evaluate` takes them."""
        for indices in shares(len(reader), self.batch_size, self.accelerator):
            yield reader.read(indices, seed=(0,), first=0)

    def _evaluate(
        self,
        reader: ImageReader | None,
        *,
        attacks: Mapping[str, Any] | None = None,
        outliers: ImageReader | None = None,
        budgets: Sequence[float] = (),
        seed: int = 0,
        **plan: Any,
    ) -> dict[tuple[str, float | None], dict[str, RobustnessRow]]:
        """Return the rows of the library's evaluator by condition, level and metric."""
        result = evaluate_robustness(
            self.model,
            None if reader is None else self._batches(reader),
            corruptions=(),
            attacks=attacks or {},
            outliers=None if outliers is None else self._batches(outliers),
            budgets=budgets,
            seed=seed,
            plan=RobustnessPlan(top=(1, 5), gather=self._joined, **plan),
        )
        rows: dict[tuple[str, float | None], dict[str, RobustnessRow]] = {}
        for row in result.rows:
            rows.setdefault((row.condition, row.level), {})[row.metric] = row
        return rows

    def _joined(self, outcomes: FloatArray) -> FloatArray:
        """Return the outcomes of all processes, which may have different numbers."""
        if self.accelerator.num_processes == 1:
            return outcomes
        rows = torch.from_numpy(outcomes).to(self.accelerator.device)
        # Outcomes are not negative, so that the padding can be told apart.
        padded = self.accelerator.pad_across_processes(rows, 0, -1)
        joined = self.accelerator.gather(padded).cpu().numpy()
        return np.asarray(joined[joined[:, 0] >= 0])

    def _accuracy(
        self,
        condition: str,
        reader: ImageReader,
        outliers: ImageReader | None = None,
    ) -> Iterator[Outcome]:
        # Classes without images here cannot be the answer, so they are never predicted.
        present = reader.folder.masked()
        classes = None if present is None else present.nonzero().flatten().tolist()
        rows = self._evaluate(reader, outliers=outliers, classes=classes)
        for (name, _), by_metric in rows.items():
            shown = condition if name == "clean" else name
            yield Outcome.of("accuracy", shown, by_metric)

    def _attacked(self, reader: ImageReader, plan: AttackPlan) -> Iterator[Outcome]:
        """Yield the accuracy of images that are right before and after each attack."""
        std = torch.as_tensor(self.model.std).flatten()
        for unit in plan.units if plan.names else ():
            rows = self._evaluate(
                reader,
                attacks={
                    **{name: {} for name in plan.names if name in ATTACKS},
                    **plan.of_paper(unit, std),
                },
                budgets=plan.budgets,
                seed=plan.seed,
                # The authors perturb normalised images: 1/255 there is σ/255 of a
                # pixel, with the deviation σ of each channel.
                budget_unit=unit,
                pixel_std=std.tolist(),
            )
            for (name, budget), by_metric in rows.items():
                text = "" if budget is None else f", budget {budget:g}/255 ({unit})"
                if name != "clean":
                    yield Outcome.of("attack", name + text, by_metric)

    def screened(self, data: Path, n_calibration: int, seed: int) -> "Scorer":
        """Return the scorer of the same model behind a screen of its tokens.

        The screen is fitted to training images, which are no part of the evaluation.
        """
        reader = self._open(data / "train")
        chosen = reader.folder
        if n_calibration < len(reader):
            rng = generator(seed)
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
        chosen = generator(attacks.seed).choice(total, n, replace=False)
        return self._reader(reader.folder.subset(np.sort(chosen).tolist()))

    def _corrupted(self, folder: Path) -> Iterator[Outcome]:
        """Yield the error of every corruption, and their mean relative to AlexNet."""
        names = [name for name in ALEXNET_ERRORS if (folder / name).is_dir()]
        if not names:
            contract = "a folder in ImageNet-C's layout (gaussian_noise/1/<class>/…)"
            fail("corrupted", contract, Got(str(folder)))
        ratios = []
        for name in names:
            severities = sorted(p for p in (folder / name).iterdir() if p.is_dir())
            loaders = {
                number: self._batches(self._open(severity))
                for number, severity in enumerate(severities, start=1)
            }
            rows = self._evaluate(
                None, corrupted={name: loaders}, relative_to=ALEXNET_ERRORS
            )
            mean = rows[name, None]
            ratios.append(mean["relative corruption error"].value)
            values = {
                "top-1": 1.0 - mean["mean corruption error"].value,
                "corruption error": 100 * ratios[-1],
            }
            count = len(severities) * mean["mean corruption error"].n_examples
            yield Outcome("corruption", f"corruption {name}", values, count)
        condition = f"mean of {len(names)} corruptions"
        values = {"mCE": 100 * float(np.mean(ratios))}
        yield Outcome("corruption", condition, values, len(names))

    @torch.no_grad()
    def text(
        self, data: Path, word_shares: Sequence[float], seed: int
    ) -> Iterator[Outcome]:
        """Yield the perplexity of clean and of corrupted text."""
        vocabulary = self.record["vocabulary"]
        context = int(self.record["size"]["context"])
        words = read_text_words(data / "test.txt")
        reader = TextReader(words, vocabulary, context=context)
        for share in (0.0, *word_shares):
            sums = torch.zeros(2, dtype=torch.float64)
            batches = shares(len(reader), self.batch_size, self.accelerator)
            for number, indices in enumerate(batches):
                ids, targets = reader.read(indices, seed=(0,), first=0)
                if share:
                    # The unknown word stands for the paper's "AAA".
                    rng = torch_generator(seed + number)
                    ids = swap_words(ids, share, replacement=0, generator=rng)
                device = self.accelerator.device
                sums += score_words(self.model(ids.to(device)), targets.to(device))
            sums = sums.to(self.accelerator.device)
            loss, n = self.accelerator.reduce(sums).tolist()
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
