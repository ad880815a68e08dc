"""Commands at the scale of a paper: ``train`` and ``evaluate``."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from eigenheads.cli.status import EXIT_OK, EXIT_TERMINATED, say
from eigenheads.extend import Got, fail

# Options of `train`.
Recipe = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="imagenet or wikitext.", show_default=False),
]
TrainingData = Annotated[
    Path,
    typer.Option(
        help="Folder with train/<class>/* and val/<class>/*, or with train.txt and "
        "valid.txt.",
        show_default=False,
    ),
]
RunFolder = Annotated[
    Path, typer.Option("--out", help="Folder of the run.", show_default=False)
]
Variant = Annotated[
    str,
    typer.Option(
        help="Attention: softmax, symmetric, rpc, scaled-scalar, scaled-matrix."
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        help="Layers with this attention: first, all, or a number of first layers.",
        show_default="as in the paper",
    ),
]
Rest = Annotated[
    str, typer.Option(help="Attention of the other layers: symmetric or softmax.")
]
Iterations = Annotated[int, typer.Option(help="Iterations of rpc.")]
Sparsity = Annotated[float, typer.Option(help="Sparsity of rpc; inf flags nothing.")]
ThresholdRule = Annotated[
    str,
    typer.Option(help="Threshold of rpc: reference (authors' program) or paper."),
]
MultiplierSign = Annotated[
    str,
    typer.Option(help="Sign of rpc's multiplier: paper or admm."),
]
Queries = Annotated[
    str,
    typer.Option(
        help="Softmaxes of rpc that queries enter: none (symmetric), last or every."
    ),
]
PresetName = Annotated[
    str,
    typer.Option(help="paper; paper-base (ViT-base); small: minutes; smoke: seconds."),
]
Epochs = Annotated[
    int | None,
    typer.Option(help="Passes over the data.", show_default="from the preset"),
]
UpdateSize = Annotated[
    int | None,
    typer.Option(
        help="Examples per update, over all processes.", show_default="from the preset"
    ),
]
Parts = Annotated[
    int,
    typer.Option(help="Parts into which a process splits its batch, to save memory."),
]
Precision = Annotated[str, typer.Option(help="no (float32), bf16 or fp16.")]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(help="Updates between checkpoints.", show_default="one epoch"),
]
TrainingSeed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Threads = Annotated[
    int, typer.Option(help="Images decoded at the same time, per process.")
]

# Options of `evaluate`.
Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUNS",
        help="Folders of runs or checkpoints that `train` wrote; several that differ "
        "in their seeds give intervals.",
        show_default=False,
    ),
]
CleanData = Annotated[
    Path | None, typer.Option(help="Folder with val/<class>/*, or with test.txt.")
]
Corrupted = Annotated[
    Path | None,
    typer.Option(help="Folder in ImageNet-C's layout: <corruption>/<severity>/…"),
]
Natural = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FOLDER",
        help="Other images of some of the classes, such as imagenet-a=FOLDER. "
        "Repeat it for each folder.",
    ),
]
Outliers = Annotated[
    Path | None, typer.Option(help="Folder of images of other classes.")
]
AttackNames = Annotated[
    str,
    typer.Option(
        help="Attacks, separated by commas: fgsm, pgd, spsa, square, noise, apgd-ce, "
        "apgd-dlr, carlini-wagner, sparse-l1."
    ),
]
Budgets = Annotated[
    str, typer.Option(help="Budgets of attacks in 1/255, separated by commas.")
]
Units = Annotated[
    str, typer.Option(help="Units of budgets: pixel, normalised or both.")
]
Attacked = Annotated[
    int | None, typer.Option(help="Number of attacked images.", show_default="all")
]
Screened = Annotated[
    bool,
    typer.Option(
        "--screened",
        help="Evaluate each model also behind a screen of its tokens, fitted to "
        "DATA/train.",
    ),
]
BatchSize = Annotated[int, typer.Option(help="Examples per batch.")]
EvaluationSeed = Annotated[int, typer.Option(help="Seed of attacks and swapped words.")]
Results = Annotated[Path, typer.Option("--out", help="Folder of results.")]


def train_command(
    recipe: Recipe,
    data: TrainingData,
    out: RunFolder,
    variant: Variant = "softmax",
    layers: Layers = None,
    rest: Rest = "symmetric",
    n_iter: Iterations = 4,
    sparsity: Sparsity = 4.0,
    threshold: ThresholdRule = "reference",
    multiplier: MultiplierSign = "paper",
    query_steps: Queries = "none",
    preset: PresetName = "paper",
    epochs: Epochs = None,
    batch_size: UpdateSize = None,
    accumulate: Parts = 1,
    precision: Precision = "no",
    checkpoint_every: CheckpointEvery = None,
    seed: TrainingSeed = 0,
    threads: Threads = 4,
) -> int:
    """Train a model with a chosen attention, or continue the run in OUT.

    A killed run continues with the same command and computes the same numbers. Start it
    by torchrun or accelerate launch to use several processes. Writes checkpoints, a log
    (OUT/log.jsonl) and at the end OUT/model.

    For example:

      eigenheads train imagenet --data /data/imagenet --out runs/rpc --variant rpc
      torchrun --nproc_per_node 8 -m eigenheads train imagenet
          --data /data/imagenet --out runs/rpc --variant rpc --precision bf16
    """
    from eigenheads_papers.recipes import AttentionChoice, train_model

    attention = AttentionChoice(
        variant=variant,
        layers=layers,
        rest=rest,
        n_iter=n_iter,
        sparsity=sparsity,
        threshold=threshold,
        multiplier=multiplier,
        query_steps=query_steps,
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
        done = f"Stopped after update {result.step} of {result.n_steps}."
        say(f"{done} The same command continues.", is_result=False)
        return EXIT_TERMINATED
    # Every process comes here, but only one prints.
    if is_first_process():
        for name, value in result.metrics.items():
            say(f"{name}: {value:.4f}")
        say(f"Model: {result.folder / 'model'}")
    return EXIT_OK


def evaluate_command(
    checkpoints: Runs,
    data: CleanData = None,
    corrupted: Corrupted = None,
    natural: Natural = None,
    outliers: Outliers = None,
    attacks: AttackNames = "",
    budgets: Budgets = "1",
    units: Units = "pixel",
    attacked: Attacked = None,
    screened: Screened = False,
    batch_size: BatchSize = 64,
    seed: EvaluationSeed = 0,
    out: Results = Path("results/evaluation"),
) -> int:
    """Evaluate trained models on clean, corrupted and attacked data and on outliers.

    Prints tables and writes OUT/evaluation.json and OUT/evaluation.md. Data are read
    batch by batch; memory does not grow with them. `eigenheads reproduce
    teo2024/imagenet --data OUT` checks the claims of the paper with the tables.
    """
    from eigenheads_papers.recipes import evaluate_checkpoints

    folders = {}
    for entry in natural or []:
        name, equals, folder = entry.partition("=")
        if not (name and equals and folder):
            fail("natural", "NAME=FOLDER", Got(entry))
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
        screened=screened,
        batch_size=batch_size,
        seed=seed,
        progress=_print_progress,
    )
    # All processes have the same numbers; one of them prints and stores them.
    if is_first_process():
        say(result.to_markdown())
        say(f"Table: {result.save(out) / 'evaluation.md'}")
    return EXIT_OK


# The paper's attacks, as far as they are implemented, and three of ours.
_ATTACKS = ("fgsm", "pgd", "spsa", "noise", "carlini-wagner", "square", "apgd-ce")
_N_ATTACKED = 1000


def evaluate_for_claims(runs: Sequence[Path], data: Path | None, out: Path) -> Path:
    """Evaluate runs on every benchmark of a folder; return the folder of the tables.

    Parameters
    ----------
    runs
        Folders that `train` wrote.
    data
        Folder with ``imagenet``, ``imagenet-c``, ``imagenet-a``, ``imagenet-r``,
        ``imagenet-o`` or ``wikitext``, those that there are; or ImageNet's own, with
        ``val``, or a text's, with ``test.txt``.
    out
        Folder of results.
    """
    from eigenheads_papers.recipes import evaluate_checkpoints

    if data is None or not data.is_dir():
        fail("data", "the folder of the benchmarks", Got(str(data)))
    clean = next(
        (data / name for name in ("imagenet", "wikitext") if (data / name).is_dir()),
        data,
    )
    there = {
        name: data / name
        for name in ("imagenet-c", "imagenet-a", "imagenet-r", "imagenet-o")
        if (data / name).is_dir()
    }
    result = evaluate_checkpoints(
        list(runs),
        data=clean,
        corrupted=there.get("imagenet-c"),
        natural={k: there[k] for k in ("imagenet-a", "imagenet-r") if k in there},
        outliers=there.get("imagenet-o"),
        attacks=_ATTACKS,
        budgets=(1.0, 4.0),
        units="both",
        n_attacked=_N_ATTACKED,
        screened=(clean / "train").is_dir(),
        progress=_print_progress,
    )
    return result.save(out / "evaluation") if is_first_process() else out


def is_first_process() -> bool:
    """Return True in the only process, or in the first one that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _print_progress(line: str) -> None:
    say(line, is_result=False)


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        contract = "numbers separated by commas"
        fail("budgets", contract, Got(text))
