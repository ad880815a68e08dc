"""Commands at the scale of a paper: ``train`` and ``evaluate``."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from eigenheads._checks import Got, fail
from eigenheads.cli._errors import EXIT_OK, EXIT_TERMINATED


def train_command(
    recipe: Annotated[
        str, typer.Argument(help="imagenet or wikitext.", show_default=False)
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="Folder with train/<class>/* and val/<class>/*, or with train.txt and "
            "valid.txt.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the run.", show_default=False)
    ],
    variant: Annotated[
        str,
        typer.Option(
            help="Attention: softmax, symmetric, rpc, scaled-scalar, scaled-matrix."
        ),
    ] = "softmax",
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers with this attention: first, all, or a number of first layers.",
            show_default="as in the paper",
        ),
    ] = None,
    rest: Annotated[
        str, typer.Option(help="Attention of the other layers: symmetric or softmax.")
    ] = "symmetric",
    n_iter: Annotated[int, typer.Option(help="Iterations of rpc.")] = 4,
    sparsity: Annotated[
        float, typer.Option(help="Sparsity of rpc; inf flags nothing.")
    ] = 4.0,
    threshold: Annotated[
        str,
        typer.Option(help="Threshold of rpc: reference (authors' program) or paper."),
    ] = "reference",
    preset: Annotated[
        str,
        typer.Option(
            help="paper; paper-base (ViT-base); small: minutes; smoke: seconds."
        ),
    ] = "paper",
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the data.", show_default="from the preset"),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Examples per update, over all processes.",
            show_default="from the preset",
        ),
    ] = None,
    accumulate: Annotated[
        int,
        typer.Option(
            help="Parts into which a process splits its batch, to save memory."
        ),
    ] = 1,
    precision: Annotated[str, typer.Option(help="no (float32), bf16 or fp16.")] = "no",
    checkpoint_every: Annotated[
        int | None,
        typer.Option(help="Updates between checkpoints.", show_default="one epoch"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    threads: Annotated[
        int, typer.Option(help="Images decoded at the same time, per process.")
    ] = 4,
) -> int:
    """Train a model with a chosen attention, or continue the run in OUT.

    A killed run continues with the same command and computes the same numbers. Start it
    by torchrun or accelerate launch to use several processes. Writes checkpoints, a log
    (OUT/log.jsonl) and at the end OUT/model.

    For example:

      eigenheads train imagenet --data /data/imagenet --out runs/rpc --variant rpc
      torchrun --nproc_per_node 8 -m eigenheads train imagenet --data /data/imagenet
          --out runs/rpc --variant rpc --precision bf16
    """
    from eigenheads.recipes import AttentionChoice, train_model

    attention = AttentionChoice(
        variant=variant,
        layers=layers,
        rest=rest,
        n_iter=n_iter,
        sparsity=sparsity,
        threshold=threshold,
    )
    result = train_model(
        recipe,
        data=data,
        out=out,
        preset=preset,
        attention=attention,
        epochs=epochs,
        batch_size=batch_size,
        accumulate=accumulate,
        precision=precision,
        checkpoint_every=checkpoint_every,
        seed=seed,
        n_threads=threads,
        progress=True,
    )
    # The status is that of a process that SIGTERM ended, so that a batch system can
    # start the run again.
    if not result.is_finished:
        print(
            f"Stopped after update {result.step} of {result.n_steps}. "
            "The same command continues.",
            file=sys.stderr,
        )
        return EXIT_TERMINATED
    # Every process comes here, but only one prints.
    if _is_first_process():
        for name, value in result.metrics.items():
            print(f"{name}: {value:.4f}")
        print(f"Model: {result.folder / 'model'}")
    return EXIT_OK


def evaluate_command(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Folders of runs or checkpoints that `train` wrote; several of one "
            "kind give intervals.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with val/<class>/*, or with test.txt."),
    ] = None,
    corrupted: Annotated[
        Path | None,
        typer.Option(help="Folder in ImageNet-C's layout: <corruption>/<severity>/…"),
    ] = None,
    natural: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="Other images of some of the classes, such as imagenet-a=FOLDER. "
            "Repeat it for each folder.",
        ),
    ] = None,
    outliers: Annotated[
        Path | None, typer.Option(help="Folder of images of other classes.")
    ] = None,
    attacks: Annotated[
        str, typer.Option(help="Attacks, separated by commas: fgsm, pgd, spsa, square.")
    ] = "",
    budgets: Annotated[
        str, typer.Option(help="Budgets of attacks in 1/255, separated by commas.")
    ] = "1",
    units: Annotated[
        str, typer.Option(help="Units of budgets: pixel or normalised.")
    ] = "pixel",
    attacked: Annotated[
        int | None,
        typer.Option(help="Number of attacked images.", show_default="all"),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per batch.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of attacks and swapped words.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder of results.")] = Path(
        "results/evaluation"
    ),
) -> int:
    """Evaluate trained models on clean, corrupted and attacked data and on outliers.

    Prints a table and writes OUT/evaluation.json and OUT/evaluation.md. Data are read
    batch by batch; memory does not grow with them.
    """
    from eigenheads.recipes import evaluate_checkpoints

    folders = {}
    for entry in natural or []:
        name, found, folder = entry.partition("=")
        if not (name and found and folder):
            fail("natural", "NAME=FOLDER", Got(entry), owner="evaluate")
        folders[name] = Path(folder)
    result = evaluate_checkpoints(
        checkpoints,
        data=data,
        corrupted=corrupted,
        natural=folders,
        outliers=outliers,
        attacks=[name for name in attacks.split(",") if name],
        budgets=_numbers(budgets),
        units=units,
        n_attacked=attacked,
        batch_size=batch_size,
        seed=seed,
        progress=lambda line: print(line, file=sys.stderr),
    )
    # All processes have the same numbers; one of them prints and stores them.
    if _is_first_process():
        print(result.to_markdown())
        print(f"Table: {result.save(out) / 'evaluation.md'}")
    return EXIT_OK


def _is_first_process() -> bool:
    """Return True in the only process, or in the first one that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        contract = "numbers separated by commas"
        fail("budgets", contract, Got(text), owner="evaluate")
