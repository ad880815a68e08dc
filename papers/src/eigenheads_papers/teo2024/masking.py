"""Tell robustness from masking where a small λ gains accuracy under PGD.

At λ = 0.1, S takes nine tenths of the key entries: what is left of these is a constant,
without a gradient. Attacks that do not need the gradients of the model meet no such
obstacle: Square, which only asks for answers, and changes that fool other models.

Predicted before the run: the gain under PGD is there again, with new seeds, and most of
it is masking. The criteria: a gain that is above zero under every attack, and where an
image counts as right only if no attack fools the model, is robustness. Where the latter
gain is below half of that under PGD, most of the gain under PGD is masking.
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from eigenheads.extend import FloatArray, torch_generator
from eigenheads_papers._claims import (
    Claim,
    as_questions,
    at_least,
    difference,
    in_family,
    judged_if,
    undecided_because,
)
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._drawing import draw_intervals
from eigenheads_papers._statistics import mean_estimate
from eigenheads_papers._training import seeded, train_all
from eigenheads_papers.teo2024.inputs import MNIST, Digits, load_all_digits
from eigenheads_papers.teo2024.robustness import AveragedViT
from eigenheads_papers.teo2024.variants import VARIANTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from eigenheads_papers.teo2024._models import SmallViT

WITH_S: Final = "λ=0.1"
WITHOUT_S: Final = "S = 0, n=4"
# Other models, whose weights start elsewhere.
SOURCES: Final = ("softmax", "symmetric")
CONDITIONS: Final = {
    "clean": "clean images",
    "pgd": "PGD",
    "square": "Square",
    **{f"from {name}": f"PGD on a model with {name} attention" for name in SOURCES},
    "same weights": "PGD on the same weights with S = 0",
    "any": "all of these attacks, of which none may fool the model",
}


@dataclass(frozen=True, kw_only=True)
class Masking(AveragedViT):
    """Training as in `teo2024/sparsity`, and the attacks."""

    patch: int = parameter(7, "width of a patch in pixels")
    n_steps: int = parameter(1500, "training steps")
    n_seeds: int = parameter(8, "training runs per model")
    n_attacked: int = parameter(1000, "test images, all of which are attacked")
    n_attack_steps: int = parameter(20, "gradient steps of PGD")
    n_queries: int = parameter(500, "queries of Square per image")
    attack_budget: float = parameter(16.0, "size of attacks in 1/255 of the range")


@dataclass(frozen=True, kw_only=True)
class Params(Masking):
    """Settings, all ours; bounds fixed before the run."""

    data: str = parameter("mnist", "data set")
    # Logistic regression on all 60 000 images has 92.6 %.
    least_accuracy: float = parameter(95.0, "accuracy of a trained model, percent")


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Train the models of every seed, and attack them."""
    seeds = [drawn_seed(rng) for _ in range(params.n_seeds)]
    # Here, not in the workers: these do not know the folder of real data.
    digits = load_all_digits(params.data)
    # A job does not know the number of seeds, so that more can be added later.
    how = Masking(
        **{option.name: getattr(params, option.name) for option in fields(Masking)}
    )
    jobs = [(replace(how, n_seeds=0), seed, digits) for seed in seeds]
    steps = 4.0 * params.n_steps * len(jobs)
    measured = np.array(train_all(attack_models, jobs, units=1.0, steps=steps))
    rows = measured.reshape(params.n_seeds, 2, len(CONDITIONS)).transpose(1, 2, 0)
    # λ = 0.1 and S = 0 by conditions by seeds, in percent.
    return {"accuracy": rows}


def attack_models(how: Masking, seed: int, digits: Digits) -> FloatArray:
    """Return accuracies in percent by condition, at λ = 0.1 and then with S = 0."""
    import torch

    from eigenheads.robustness import pgd, square
    from eigenheads_papers.teo2024._robustness_cell import train_averaged_vit

    x = torch.tensor(digits.train[:, None]).float() / 255
    y = torch.from_numpy(digits.train_classes)
    train = partial(train_averaged_vit, how, x=x, y=y)
    sources = [train(name, seed + 1) for name in SOURCES]
    images = torch.tensor(digits.test[: how.n_attacked, None]).float() / 255
    truth = torch.from_numpy(digits.test_classes[: how.n_attacked])

    def fool(model: "SmallViT") -> "Tensor":
        return pgd(
            model,
            images,
            truth,
            budget=how.attack_budget,
            n_steps=how.n_attack_steps,
            generator=torch_generator(seed),
        )

    transferred = [fool(source) for source in sources]
    rows: list[float] = []
    for name in (WITH_S, WITHOUT_S):
        model = train(name, seed)
        searched = square(
            model,
            images,
            truth,
            budget=how.attack_budget,
            n_queries=how.n_queries,
            generator=torch_generator(seed),
        )
        attacked = [
            fool(model),
            searched,
            *transferred,
            fool(_without_s(how, model, images.shape[-1])),
        ]
        with torch.no_grad():
            right = [model(x).argmax(1) == truth for x in (images, *attacked)]
        # The clean image counts, too: an attack may turn a wrong answer right.
        right.append(torch.stack(right).all(0))
        rows += [100 * float(one.double().mean()) for one in right]
    return np.array(rows)


def _without_s(how: Masking, model: "SmallViT", side: int) -> "SmallViT":
    """Return a copy of the model with S forced to zero."""
    from eigenheads_papers.teo2024._models import SmallViT

    with seeded(0):
        copy = SmallViT(VARIANTS[WITHOUT_S], size=how, side=side)
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def _gains(table: Table) -> dict[str, FloatArray]:
    gains = table["accuracy"][0] - table["accuracy"][1]
    return dict(zip(CONDITIONS, gains, strict=True))


def check(run: Run[Params]) -> list[Claim]:
    """Return whether the models are well trained, and the gain under each attack."""
    too_few = "" if run.params.data == "mnist" else "small images and few updates"
    able = at_least(
        f"{WITHOUT_S}: clean accuracy, in percent",
        mean_estimate(run.table["accuracy"][1, 0]),
        run.params.least_accuracy,
        "logistic regression on all 60 000 images has 92.6 %",
    )
    gains = [
        difference(
            f"{WITH_S}: accuracy under {CONDITIONS[name]}, less that with S = 0, in "
            "points",
            mean_estimate(values),
        )
        for name, values in _gains(run.table).items()
        # The same weights have no counterpart with S = 0: there it is PGD itself.
        if name not in ("clean", "same weights")
    ]
    gain = _gains(run.table)
    masked = difference(
        f"{WITH_S}: half of the gain under PGD, less the gain under all of these "
        "attacks, in points",
        mean_estimate(gain["pgd"] / 2 - gain["any"]),
    )
    family = in_family("gain of S at λ = 0.1", [*gains, masked])
    (able,) = undecided_because(too_few, [able])
    judged = undecided_because(too_few, judged_if(able, family))
    return as_questions([able, *judged])


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the gain under each attack."""
    gains = _gains(run.table)
    axes = figure.subplots()
    draw_intervals(axes, np.array(list(gains.values())))
    axes.set_yticks(range(len(gains)), [CONDITIONS[name] for name in gains])
    axes.invert_yaxis()
    axes.set_xlabel("points of accuracy at λ = 0.1, less those with S = 0")


def _work(params: Params) -> float:
    return float(params.n_seeds)


_PAPER = Params()
_SMALL: Final[dict[str, Any]] = {
    "data": "digits",
    "n_attacked": 60,
    "n_attack_steps": 5,
    "n_queries": 20,
}
experiments = (
    Experiment(
        key="teo2024/masking",
        title="RPC-Attention with a small λ under attacks without its gradients",
        source="ours: the paper has λ = 4",
        about=(
            "Vision transformers of teo2024/sparsity, trained on MNIST with new seeds: "
            "λ = 0.1, where S takes most of the keys, and the same iterations with S "
            "forced to zero. Both meet PGD, Square, changes that fool models with "
            "softmax and symmetric attention of other initial weights, and changes "
            "that fool the same weights with S = 0. What PGD gains and the others do "
            "not is masking."
        ),
        presets={
            "smoke": replace(
                _PAPER,
                **{**_SMALL, "n_attacked": 20, "n_attack_steps": 2, "n_queries": 4},
                d_model=16,
                n_heads=2,
                depth=2,
                n_steps=6,
                n_seeds=2,
            ),
            "demo": replace(_PAPER, **_SMALL, n_steps=150, n_seeds=5),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(8.0, 3.5),
        needs=("torch",),
        files=lambda params: MNIST if params.data == "mnist" else (),
        tolerance=1e-2,
    ),
)
