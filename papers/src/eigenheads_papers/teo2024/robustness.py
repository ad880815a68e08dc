"""Robustness of small vision transformers with RPC-Attention, and its controls."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from eigenheads_papers._claims import Claim
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._drawing import draw_gaps
from eigenheads_papers._training import SmallModel, train_all
from eigenheads_papers.teo2024._comparisons import (
    BASELINE,
    PRINCIPAL,
    SHARPENED,
    Measured,
    robustness_claims,
    sparsity_claims,
)
from eigenheads_papers.teo2024.inputs import MNIST, load_all_digits
from eigenheads_papers.teo2024.variants import VARIANTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The corruptions of ImageNet-C; frost has a synthetic texture.
CORRUPTIONS: Final = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
ATTACKS: Final = ("pgd", "noise", "fgsm", "apgd", "spsa", "cw", "l1")
LAYER: Final = (
    "self_weight",
    "key_size",
    "flagged",
    "flagged_noisy",
    "flagged_replaced",
    "flagged_hit",
    "flagged_intact",
)
# Models by their names on record, and their variants. Unless a name here says
# otherwise, the threshold is that of the authors' program.
MODELS: Final = {
    BASELINE: "symmetric",
    PRINCIPAL: "RPC n=4 (program)",
    SHARPENED: "S = 0, n=4",
    "softmax": "softmax",
    "RPC n=5": "RPC n=5 (program)",
    "RPC n=6": "RPC n=6 (program)",
    "RPC n=2, all layers": "RPC n=2, all layers (program)",
    "threshold of the text, n=4": "RPC n=4 (text)",
    "right sign, n=4": "RPC n=4 (program), right sign",
    "right sign, n=2": "RPC n=2 (program), right sign",
    "symmetric, then softmax": "symmetric, then softmax",
    "RPC n=4, then softmax": "RPC n=4 (program), then softmax",
    "asymmetric RPC n=4, then softmax": "asymmetric RPC n=4 (program), then softmax",
    **{name: name for name in VARIANTS if name.startswith("λ")},
}
PRIMARY: Final = (BASELINE, PRINCIPAL, SHARPENED)
SWEPT: Final = tuple(name for name in MODELS if name.startswith("λ"))
OTHERS: Final = tuple(name for name in MODELS if name not in (*PRIMARY, *SWEPT))


@dataclass(frozen=True, kw_only=True)
class AveragedViT(SmallModel):
    """Size and training of a vision transformer whose weights are averaged."""

    patch: int = parameter(4, "width of a patch in pixels")
    d_model: int = parameter(48, "width of the model")
    n_heads: int = parameter(3, "heads per layer")
    depth: int = parameter(3, "number of layers")
    n_steps: int = parameter(2500, "training steps")
    learning_rate: float = parameter(3e-3, "largest learning rate")
    averaging: float = parameter(0.998, "decay of the running average of the weights")


@dataclass(frozen=True, kw_only=True)
class CellSettings(AveragedViT):
    """Settings of one trained model: its size, its training, and its evaluation."""

    n_test: int = parameter(10_000, "images for clean accuracy and corruptions")
    n_attacked: int = parameter(2000, "images to attack")
    n_blind: int = parameter(500, "images for attacks without gradients")
    n_attack_steps: int = parameter(20, "gradient steps of an attack")
    main_attacks: tuple[str, ...] = parameter(
        ("pgd", "noise"), "attacks that every model meets"
    )
    attack_budget: float = parameter(16.0, "size of attacks in 1/255 of the range")
    attack_distance: float = parameter(1.5, "largest Euclidean change, pixel ranges")
    attack_sum: float = parameter(10.0, "largest sum of changes, pixel ranges")
    replaced: float = parameter(0.25, "share of patches that are replaced")
    severities: tuple[int, ...] = parameter(
        (1, 2, 3, 4, 5), "severities of corruptions, 1 to 5"
    )
    few_severities: tuple[int, ...] = parameter((3, 5), "severities for every model")


@dataclass(frozen=True, kw_only=True)
class Params(CellSettings):
    """Settings, ours but for n and λ of the pursuits; bounds fixed before the run."""

    data: str = parameter("mnist", "data set")
    primary: tuple[str, ...] = parameter(
        PRIMARY, "models measured under all conditions"
    )
    n_seeds: int = parameter(13, "training runs per variant")
    others: tuple[str, ...] = parameter(OTHERS, "models that are measured in part")
    n_other_seeds: int = parameter(5, "runs per model measured in part")
    margin: float = parameter(0.5, "difference that counts as none")
    least_accuracy: float = parameter(97.0, "accuracy of a trained model, percent")


def conditions(how: CellSettings) -> list[str]:
    """Return all conditions, in the order of the table."""
    return [
        "clean",
        *(f"{kind} {level}" for kind in CORRUPTIONS for level in how.severities),
        f"replaced {how.replaced:g}",
        *(f"attack {name}" for name in ATTACKS),
    ]


def few_conditions(how: CellSettings) -> list[str]:
    """Return the conditions under which every model is measured."""
    return [
        "clean",
        *(f"{kind} {level}" for kind in CORRUPTIONS for level in how.few_severities),
        f"replaced {how.replaced:g}",
        *(f"attack {name}" for name in how.main_attacks),
    ]


def models(params: Params) -> list[str]:
    """Return the models, in the order of the table."""
    return [*params.primary, *params.others]


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Train every model with its seeds, and measure it."""
    from eigenheads_papers.teo2024._robustness_cell import measure_model

    seeds = [drawn_seed(rng) for _ in range(params.n_seeds)]
    # Here, not in the workers: these do not know the folder of real data.
    digits = load_all_digits(params.data)
    # A job knows the settings of its model and not the number of seeds, so that more
    # seeds can be added to finished jobs.
    how = CellSettings(
        **{option.name: getattr(params, option.name) for option in fields(CellSettings)}
    )
    how = replace(how, n_seeds=0)
    cells = [
        (name, place) for place in range(len(seeds)) for name in _of(params, place)
    ]
    every = conditions(params)
    measured = {
        name: every if name in params.primary else few_conditions(params)
        for name in models(params)
    }
    jobs = [
        (how, MODELS[name], measured[name], seeds[place], digits)
        for name, place in cells
    ]
    steps = params.n_steps * len(jobs)
    results = train_all(measure_model, jobs, units=1.0, steps=steps)
    names, columns = models(params), [*every, *LAYER, "linear"]
    rows = np.full((len(names), params.n_seeds, len(columns)), np.nan)
    for (name, place), values in zip(cells, results, strict=True):
        filled = [*measured[name], *LAYER, "linear"]
        at = [columns.index(column) for column in filled]
        rows[names.index(name), place, at] = values
    n = len(every)
    return {
        # Models by conditions by seeds, in percent; NaN where nothing was measured.
        "accuracy": rows[..., :n].swapaxes(1, 2),
        **{name: rows[..., n + at] for at, name in enumerate(LAYER)},
        "linear": rows[..., -1],
    }


def _of(params: Params, place: int) -> list[str]:
    """Return the models that are trained with a seed."""
    return [*params.primary, *(params.others if place < params.n_other_seeds else ())]


def _measured(run: Run[Params]) -> Measured:
    return Measured(
        run.table,
        models=models(run.params),
        conditions=conditions(run.params),
        few=few_conditions(run.params),
        attack=f"attack {run.params.main_attacks[0]}",
        replaced=f"replaced {run.params.replaced:g}",
    )


def _undecided(params: Params) -> str:
    return "" if params.data == "mnist" else "small images and few updates"


def check(run: Run[Params]) -> list[Claim]:
    """Return whether the models can show anything, the paper's claims, controls."""
    return robustness_claims(
        _measured(run),
        margin=run.params.margin,
        least_accuracy=run.params.least_accuracy,
        undecided=_undecided(run.params),
    )


def check_sparsity(run: Run[Params]) -> list[Claim]:
    """Return the shares of S as λ falls, and the differences from S = 0."""
    return sparsity_claims(
        _measured(run), margin=run.params.margin, undecided=_undecided(run.params)
    )


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw differences from symmetric attention, and the first layer."""
    _draw(figure, run, BASELINE, "points of accuracy, less symmetric attention’s")


def draw_sparsity(figure: "Figure", run: Run[Params]) -> None:
    """Draw differences from S = 0, and the first layer."""
    _draw(figure, run, SHARPENED, "points of accuracy, less those with S = 0")


def _draw(figure: "Figure", run: Run[Params], baseline: str, label: str) -> None:
    of, names = _measured(run), models(run.params)
    panels = {
        "clean": "clean",
        "corruptions": "15 corruptions,\nseverities 3 and 5",
        "replaced": "a quarter of the\npatches replaced",
        "attack": f"PGD, {run.params.attack_budget:g}/255",
    }
    gaps = {
        # Over the seeds of both; the others have no accuracy.
        title: np.array([of(part, name) - of(part, baseline) for name in names])
        for part, title in panels.items()
    }
    table = {
        "flagged": run.table["flagged"] / 100,
        "self_weight": run.table["self_weight"],
    }
    draw_gaps(figure, gaps, table, names, label=label)


def _work(params: Params) -> float:
    return float(sum(len(_of(params, place)) for place in range(params.n_seeds)))


_PAPER = Params()
_SWEPT = Params(
    # A sweep needs no more than the evaluation of the others.
    primary=(),
    others=(BASELINE, SHARPENED, *SWEPT),
    n_seeds=8,
    n_other_seeds=8,
    patch=7,
    n_steps=1500,
    n_attacked=1000,
)
_SMALL: Final[dict[str, Any]] = {
    "data": "digits",
    "patch": 7,
    "n_test": 300,
    "n_attacked": 60,
    "n_blind": 10,
    "n_attack_steps": 5,
}
_SMOKE: Final[dict[str, Any]] = {
    **_SMALL,
    "d_model": 16,
    "n_heads": 2,
    "depth": 2,
    "n_steps": 6,
    "n_test": 60,
    "n_attacked": 20,
    "n_blind": 4,
    "n_attack_steps": 2,
    "severities": (3, 5),
    "n_seeds": 2,
    "n_other_seeds": 1,
}
_DEMO: Final[dict[str, Any]] = {
    **_SMALL,
    "n_steps": 150,
    "severities": (3, 5),
    "n_seeds": 5,
}
experiments = (
    Experiment(
        key="teo2024/robustness",
        title="RPC-Attention against symmetric attention, on MNIST, with power",
        source="Robustness on ImageNet, on small models",
        about=(
            "Vision transformers of three layers with 49 patches, trained on all of "
            "MNIST; averaged weights are tested on all 10 000 test images, clean and "
            "under the fifteen corruptions of ImageNet-C, and under attacks. Models of "
            "one seed have the same initial weights and batches, so that differences "
            "are paired. Symmetric attention, RPC-Attention with n = 4 and the same "
            "iterations with S = 0 have 13 seeds and all conditions; the others have 5 "
            "seeds, severities 3 and 5, PGD and noise. The threshold is that of the "
            "authors' program, which made the printed numbers; the text's stands "
            "beside it. The paper trains ViT-tiny on ImageNet; models, data and "
            "training are ours. Attacks perturb pixels; the authors perturb normalised "
            "images, so that their 1/255 is about 0.22/255 of pixels."
        ),
        presets={
            "smoke": replace(
                _PAPER, others=("softmax", "RPC n=5", "right sign, n=2"), **_SMOKE
            ),
            "demo": replace(_PAPER, n_other_seeds=5, **_DEMO),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(11.0, 6.0),
        needs=("torch",),
        files=lambda params: MNIST if params.data == "mnist" else (),
        tolerance=1e-2,
    ),
    Experiment(
        key="teo2024/sparsity",
        title="RPC-Attention as λ falls, where S is active",
        source="ours: the paper has λ = 4",
        about=(
            "The vision transformers of teo2024/robustness with 16 patches and the "
            "threshold of the text, λ/μ, at which S is nearly empty for the paper's λ "
            "= 4; λ falls until S takes most of the keys. Differences are against the "
            "same iterations with S forced to zero, paired over seeds."
        ),
        presets={
            "smoke": replace(
                _SWEPT, others=(BASELINE, SHARPENED, "λ=4", "λ=0.1"), **_SMOKE
            ),
            "demo": replace(_SWEPT, **_DEMO),
            "paper": _SWEPT,
        },
        simulate=simulate,
        check=check_sparsity,
        draw=draw_sparsity,
        work=_work,
        size=(11.0, 5.0),
        needs=("torch",),
        files=lambda params: MNIST if params.data == "mnist" else (),
        tolerance=1e-2,
    ),
)
