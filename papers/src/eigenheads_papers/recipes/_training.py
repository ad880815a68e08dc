"""Train a model by a recipe, on one process or many, and resume after a kill."""

from pathlib import Path

import torch
from accelerate import Accelerator

from eigenheads.extend import (
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_path,
)
from eigenheads_papers.recipes._attention import AttentionChoice
from eigenheads_papers.recipes._run import TrainingResult, TrainingRun
from eigenheads_papers.recipes._tasks import open_task

_OWNER = "train"
# Largest seed that PyTorch takes.
_MAX_SEED = 2**63 - 1


def train_model(
    recipe: str,
    *,
    data: str | Path,
    out: str | Path,
    preset: str = "paper",
    attention: AttentionChoice | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    accumulate: int = 1,
    precision: str = "no",
    checkpoint_every: int | None = None,
    seed: int = 0,
    n_threads: int = 4,
    progress: bool = False,
) -> TrainingResult:
    """Train a model, or continue the run in the folder `out`.

    Start it plainly for one process, or by ``torchrun`` or ``accelerate launch`` for
    several: processes share each batch.

    Parameters
    ----------
    recipe
        ``"imagenet"`` or ``"wikitext"``.
    data
        Folder of data: ``train/<class>/*`` and ``val/<class>/*`` of images, or
        ``train.txt`` and ``valid.txt``.
    out
        Folder of the run. A run of other settings is not overwritten.
    preset
        ``"paper"``, ``"small"`` or ``"smoke"``; for images also ``"paper-base"``.
    attention
        The attention of the layers; plain softmax attention by default.
    epochs, batch_size
        Replace those of the preset. The batch is that of one update, over all
        processes and accumulated parts.
    accumulate
        Parts into which a process divides its share of a batch, to save memory.
    precision
        ``"no"`` (float32), ``"bf16"`` or ``"fp16"``.
    checkpoint_every
        Updates between checkpoints; by default one per epoch. There is always one at
        the end, and one at SIGTERM.
    seed
        Seed of initial weights, order, augmentation and dropout.
    n_threads
        Images decoded at the same time, per process.
    progress
        Whether to show progress on standard error.

    Returns
    -------
    result
        Folder, updates made and metrics.
    """
    folders = [
        check_path(name, value, owner=_OWNER)
        for name, value in (("data", data), ("out", out))
    ]
    choice = AttentionChoice() if attention is None else attention
    check_instance("attention", choice, AttentionChoice, owner=_OWNER)
    progress = check_flag("progress", progress, owner=_OWNER)
    check_choice("precision", precision, ("no", "bf16", "fp16"), owner=_OWNER)
    accumulate = check_count("accumulate", accumulate, owner=_OWNER)
    seed = check_count("seed", seed, owner=_OWNER, minimum=0, maximum=_MAX_SEED)
    changes = {"epochs": epochs, "batch_size": batch_size}
    changes = {
        name: check_count(name, value, owner=_OWNER)
        for name, value in changes.items()
        if value is not None
    }
    task = open_task(
        recipe,
        folders[0],
        preset=preset,
        attention=choice,
        n_threads=check_count("n_threads", n_threads, owner=_OWNER),
        changes=changes,
    )
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    run = TrainingRun(
        task,
        accelerator,
        folders[1],
        seed=seed,
        accumulate=accumulate,
        precision=precision,
    )
    run.resume_or_start({"recipe": recipe, "preset": preset, "seed": seed, **changes})
    every = run.steps_per_epoch
    if checkpoint_every is not None:
        every = check_count("checkpoint_every", checkpoint_every, owner=_OWNER)
    return run.train(checkpoint_every=every, progress=progress)
