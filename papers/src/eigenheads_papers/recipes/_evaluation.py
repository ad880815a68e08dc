"""Evaluate checkpoints on benchmark folders: streaming, on one process or many.

No data set is held in memory: images are read, scored and dropped batch by batch.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator
from torch import nn

from eigenheads.extend import (
    Got,
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_items,
    check_number,
    check_path,
    fail,
)
from eigenheads.robustness import ATTACKS
from eigenheads_papers.recipes._attention import AttentionChoice
from eigenheads_papers.recipes._checkpoints import load_state, load_weights
from eigenheads_papers.recipes._scoring import AttackPlan, Outcome, Scorer
from eigenheads_papers.recipes._tables import EvaluatedModel, Evaluation, EvaluationRow
from eigenheads_papers.recipes._tasks import check_record, rebuild_model

_OWNER: Final = "evaluate"
# Largest seed that PyTorch takes.
_MAX_SEED: Final = 2**63 - 1


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
        :data:`eigenheads.robustness.ATTACKS`; their budgets in 1/255 of pixels, with
        ``units="normalised"`` of images divided by the standard deviation of their
        channels, or with ``units="both"`` in each; and the number of images that are
        attacked (all by default).
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
    check_choice("units", units, ("pixel", "normalised", "both"), owner=_OWNER)
    batch_size = check_count("batch_size", batch_size, owner=_OWNER)
    n_calibration = check_count("n_calibration", n_calibration, owner=_OWNER)
    n_threads = check_count("n_threads", n_threads, owner=_OWNER)
    seed = check_count("seed", seed, owner=_OWNER, minimum=0, maximum=_MAX_SEED)
    screened = check_flag("screened", screened, owner=_OWNER)
    if n_attacked is not None:
        n_attacked = check_count("n_attacked", n_attacked, owner=_OWNER)
    if progress is not None:
        check_callable("progress", progress, "a function or None", owner=_OWNER)
    attacks = check_items("attacks", attacks, "a sequence of names", owner=_OWNER)
    for name in attacks:
        check_choice("attacks", name, ATTACKS, owner=_OWNER)
    budgets = _check_numbers("budgets", budgets, maximum=math.inf)
    word_shares = _check_numbers("word_shares", word_shares, maximum=1.0)
    paths = _check_folders(paths, natural)
    if data is None and (screened or (corrupted is None and not natural)):
        fail("data", "a folder of examples", Got("none"), owner=_OWNER)
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
    found = _Collected(progress if accelerator.is_main_process else None)
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
            found.add(described, scorer.text(_folder(data), word_shares, seed))
            continue
        found.add(described, scorer.images(**folders, attacks=plan))
        if screened:
            behind = scorer.screened(_folder(data), n_calibration, seed)
            variant = f"{described.variant} + screen"
            described = replace(described, variant=variant, screened=True)
            found.add(described, behind.images(**folders, attacks=plan))
    return Evaluation(tuple(found.rows), tuple(found.models))


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


def describe_model(name: str, state: Mapping[str, Any]) -> EvaluatedModel:
    """Return what the tables say about a checkpoint, from its state."""
    record = state["record"]
    attention = AttentionChoice.read(record["attention"])
    is_text = record["task"] == "wikitext"
    depth, default = int(record["size"]["depth"]), 4 if is_text else 1
    seed = state.get("settings", {}).get("seed")
    return EvaluatedModel(
        name=name,
        variant=attention.label(depth, default),
        seed=seed if isinstance(seed, int) else None,
        task=record["task"],
        attention=attention.record(),
        size=dict(record["size"]),
        n_leading=attention.n_leading(depth, default),
        n_classes=len(record["vocabulary" if is_text else "classes"]),
    )


def _check_numbers(name: str, values: object, *, maximum: float) -> list[float]:
    items = check_items(name, values, "a sequence of numbers", owner=_OWNER)
    return [
        check_number(name, one, owner=_OWNER, minimum=0.0, maximum=maximum)
        for one in items
    ]


def _check_folders(paths: object, natural: object) -> list[Any]:
    if natural is not None and not isinstance(natural, Mapping):
        fail("natural", "a mapping of names to folders", natural, owner=_OWNER)
    contract = "a sequence of folders, at least one"
    folders = check_items("checkpoint", paths, contract, owner=_OWNER)
    if not folders:
        fail("checkpoint", contract, Got("none"), owner=_OWNER)
    return [check_path("checkpoint", path, owner=_OWNER) for path in folders]


def load_checkpoint(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return the averaged model of a checkpoint or run, and its state."""
    folder = Path(path)
    if (folder / "model" / "state.json").is_file():
        folder = folder / "model"
    state = load_state(folder, owner=_OWNER)
    record: dict[str, Any] = state["record"]
    contract = "a checkpoint that `eigenheads train` wrote"
    # A checkpoint holds current and averaged weights. The final model holds the
    # averaged weights only, as model.safetensors.
    average = folder / "average.safetensors"
    weights = load_weights(
        average if average.is_file() else folder / "model.safetensors", owner=_OWNER
    )
    try:
        check_record(record, n_tensors=len(weights))
        # The first model has shapes only, so that a forged size needs no memory.
        with torch.device("meta"):
            rebuild_model(record).load_state_dict(weights, assign=True)
        model = rebuild_model(record)
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        got = Got(f"{folder}, whose tensors do not fit ({reason})")
        fail("checkpoint", contract, got, owner=_OWNER)
    except Exception as error:  # whatever a forged record makes of a model
        reason = " ".join(str(error).split())[:120]
        got = Got(f"{folder}, whose record is not that of a model ({reason})")
        fail("checkpoint", contract, got, owner=_OWNER)
    return model, state


def _folder(path: str | Path | None) -> Path:
    if path is None:
        fail("data", "a folder that exists", Got("none"), owner=_OWNER)
    folder = check_path("data", path, owner=_OWNER)
    if not folder.is_dir():
        fail("data", "a folder that exists", Got(repr(str(path))), owner=_OWNER)
    return folder
