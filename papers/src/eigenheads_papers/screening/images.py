"""Accuracy of small vision transformers with and without a token screen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, GREEN, GREY, INK, ORANGE
from eigenheads_papers._claims import (
    Claim,
    as_questions,
    at_least,
    at_most,
    difference,
    in_family,
    judged_if,
    no_difference,
    undecided_because,
)
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._drawing import seed_intervals
from eigenheads_papers._statistics import mean_estimate
from eigenheads_papers._training import SmallModel, train_all
from eigenheads_papers.teo2024.inputs import MNIST, load_all_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# How a model is trained: on the images, with dropped tokens, on augmented images.
KINDS: Final = ("plain", "dropped", "augmented")
# Numbers are patches of sixteen.
CONDITIONS: Final = (
    "clean",
    "replaced 2",
    "replaced 4",
    "saturated 4",
    "shuffled 4",
    "occluded",
    "gaussian noise",
    "impulse noise",
    "blur",
    "pgd",
    "patches",
    "patches aimed",
)
TITLES: Final = {
    "clean": "clean",
    "replaced 2": "2 of 16 patches from other images",
    "replaced 4": "4 of 16 patches from other images",
    "saturated 4": "4 patches saturated",
    "shuffled 4": "4 patches change places",
    "occluded": "grey square of 10 pixels",
    "gaussian noise": "Gaussian noise",
    "impulse noise": "impulse noise",
    "blur": "blur",
    "pgd": "PGD",
    "patches": "4 patches optimised",
    "patches aimed": "the same, aimed at the screen",
}
_REPLACED: Final = "4 of 16 patches from other images"
_FIXED: Final = "the margin is a parameter, fixed before the run"


@dataclass(frozen=True, kw_only=True)
class Params(SmallModel):
    """Settings, all ours. The bounds of all checks are here, fixed before the run."""

    data: str = parameter("mnist", "data set")
    photographs: bool = parameter(False, "whether digits lie on photographs")
    patch: int = parameter(7, "width of a patch in pixels")
    d_model: int = parameter(48, "width of the model")
    n_heads: int = parameter(3, "heads per layer")
    depth: int = parameter(3, "number of layers")
    n_steps: int = parameter(2500, "training steps")
    learning_rate: float = parameter(3e-3, "largest learning rate")
    n_train: int = parameter(60_000, "training samples")
    n_test: int = parameter(2000, "test samples")
    n_attacked: int = parameter(500, "images to attack")
    n_attack_steps: int = parameter(10, "gradient steps of an attack")
    attack_budget: float = parameter(16.0, "size of attacks in 1/255 of the range")
    severity: int = parameter(3, "severity of the corruptions, 1 to 5")
    n_patches: int = parameter(4, "patches per image that an attack may change")
    occluded: float = parameter(0.128, "share of the area that a grey square covers")
    penalty: float = parameter(2.0, "price of distances above the threshold")
    dropped: float = parameter(0.6, "largest share of tokens to drop in training")
    calibration: tuple[int, ...] = parameter(
        (300, 1000, 5000), "images that fit a screen"
    )
    main_calibration: int = parameter(1000, "images for the main screen")
    least_accuracy: float = parameter(97.0, "accuracy of a trained model, percent")
    margin: float = parameter(1.0, "difference that counts as none")


def remedies(params: Params) -> list[str]:
    """Return the remedies in the order of the table."""
    screens = [f"screen {n}" for n in params.calibration]
    return ["none", *screens, "impute", "random", "oracle", "median"]


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Train every kind with every seed, and measure it with every remedy."""
    from eigenheads_papers.screening._measurement import measure_screens

    seeds = [drawn_seed(rng) for _ in range(params.n_seeds)]
    # Here, not in the workers: these do not know the folder of real data.
    digits = load_all_digits(params.data)
    jobs = [
        (params, kind, seed, digits, CONDITIONS) for seed in seeds for kind in KINDS
    ]
    steps = params.n_steps * len(jobs)
    measured = np.array(train_all(measure_screens, jobs, units=1.0, steps=steps))
    measured = measured.reshape(params.n_seeds, len(KINDS), -1).swapaxes(0, 1)
    n = len(remedies(params))
    accuracies = measured[..., :-1].reshape(
        len(KINDS), params.n_seeds, len(CONDITIONS), n + 2
    )
    return {
        # Kinds by seeds by conditions by remedies, in percent.
        "accuracy": accuracies[..., :n],
        # Share of all tokens that are flagged, and of the corrupted ones.
        "flagged": accuracies[..., n],
        "found": accuracies[..., n + 1],
        "linear": measured[..., -1],
    }


def check(run: Run[Params]) -> list[Claim]:
    """Return our checks: what the screen gains, what it costs, what training gains."""
    params = run.params
    of = ScreenedAccuracies(
        run.table["accuracy"],
        axes=(KINDS, CONDITIONS, remedies(params)),
        screen=f"screen {params.main_calibration}",
    )
    linear = run.table["linear"][KINDS.index("plain")]
    too_few = "" if params.n_steps >= Params.n_steps else "too few updates"
    families = {
        "gains by the screen": _gains(of),
        "costs of the screen": _costs(of, params),
        "headroom": _headroom(of, params),
        "training": _training(of),
        "limits of the screen": _limits(of, params),
        "variants and baselines": _variants(of, params),
    }
    trained = undecided_because(too_few, _trained(of, linear, params))
    comparisons = [
        claim for name, claims in families.items() for claim in in_family(name, claims)
    ]
    # The last control: models that a linear classifier nearly equals say nothing.
    judged = undecided_because(too_few, judged_if(trained[-1], comparisons))
    return as_questions([*trained, *judged])


@dataclass(frozen=True)
class ScreenedAccuracies:
    """Accuracies in percent: kinds of training by seeds by conditions by remedies.

    Attributes
    ----------
    table
        The accuracies.
    axes
        Names along the first, the third and the last axis.
    screen
        Name of the remedy that is judged.
    """

    table: FloatArray
    axes: tuple[Sequence[str], Sequence[str], Sequence[str]]
    screen: str

    def __call__(self, kind: str, condition: str, remedy: str = "none") -> FloatArray:
        """Return one accuracy per seed."""
        kinds, conditions, remedies = self.axes
        place = conditions.index(condition), remedies.index(remedy)
        return np.asarray(self.table[kinds.index(kind), :, *place])

    def gain(self, kind: str, condition: str, remedy: str) -> FloatArray:
        """Return accuracy with a remedy less accuracy without one."""
        return self(kind, condition, remedy) - self(kind, condition)

    def screened(self, condition: str) -> FloatArray:
        """Return what the screen changes in models trained with dropped tokens."""
        return self.gain("dropped", condition, self.screen)


def _trained(of: ScreenedAccuracies, linear: FloatArray, params: Params) -> list[Claim]:
    clean = (
        at_least(
            f"{kind}: clean accuracy, in percent",
            mean_estimate(of(kind, "clean")),
            params.least_accuracy,
            "the models have to be well trained",
        )
        for kind in of.axes[0]
    )
    return [
        *clean,
        at_least(
            "plain: clean accuracy less that of a linear classifier, in points",
            mean_estimate(of("plain", "clean") - linear),
            5.0,
            "a task that a linear classifier solves says nothing of attention",
        ),
    ]


def _gains(of: ScreenedAccuracies) -> list[Claim]:
    gains = {
        f"dropped: gain by the screen, {TITLES[name]}": of.screened(name)
        for name in ("replaced 4", "saturated 4")
    }
    gains[f"dropped: the screen less as many random tokens, {_REPLACED}"] = of.screened(
        "replaced 4"
    ) - of.gain("dropped", "replaced 4", "random")
    return _differences(gains)


def _costs(of: ScreenedAccuracies, params: Params) -> list[Claim]:
    return [
        at_least(
            f"dropped: change by the screen, {TITLES[name]}, in points",
            mean_estimate(of.screened(name)),
            -params.margin,
            _FIXED,
        )
        for name in ("clean", "gaussian noise", "impulse noise", "blur")
    ]


def _headroom(of: ScreenedAccuracies, params: Params) -> list[Claim]:
    oracle = {
        kind: of.gain(kind, "replaced 4", "oracle") for kind in ("plain", "dropped")
    }
    more = f"{_REPLACED}: gain by the oracle, dropped less plain"
    return _differences({more: oracle["dropped"] - oracle["plain"]}) + [
        at_most(
            f"{kind}: the screen less the oracle, {_REPLACED}, in points",
            mean_estimate(of.gain(kind, "replaced 4", of.screen) - gain),
            params.margin,
            # Not a theorem: hiding a token that is intact may help a model, too.
            "the oracle knows the corrupted tokens, so that a screen should hardly "
            "gain more",
        )
        for kind, gain in oracle.items()
    ]


def _training(of: ScreenedAccuracies) -> list[Claim]:
    dropped = of("dropped", "replaced 4")
    return _differences(
        {
            f"{_REPLACED}: dropped less plain, no screen": dropped
            - of("plain", "replaced 4"),
            f"{_REPLACED}: dropped less augmented, no screen": dropped
            - of("augmented", "replaced 4"),
            "4 patches saturated: dropped with the screen less plain without": of(
                "dropped", "saturated 4", of.screen
            )
            - of("plain", "saturated 4"),
        },
    )


def _limits(of: ScreenedAccuracies, params: Params) -> list[Claim]:
    small = partial(at_most, bound=params.margin, why=_FIXED)
    return [
        small(
            "dropped: gain by the screen, PGD on either model, in points",
            mean_estimate(of.screened("pgd")),
        ),
        small(
            "dropped: gain by the screen, 4 patches change places, in points",
            mean_estimate(of.screened("shuffled 4")),
        ),
        *_differences(
            {
                "dropped with the screen: accuracy under 4 optimised patches less "
                "under the same aimed at the screen": of(
                    "dropped", "patches", of.screen
                )
                - of("dropped", "patches aimed", of.screen)
            },
        ),
    ]


def _variants(of: ScreenedAccuracies, params: Params) -> list[Claim]:
    first, last = (f"screen {params.calibration[at]}" for at in (0, -1))
    gain = partial(of.gain, "dropped", "replaced 4")
    alike = {
        f"dropped: imputed less hidden, {_REPLACED}, in points": gain("impute")
        - gain(of.screen),
        f"dropped: {last} less {first} calibration images, {_REPLACED}, in points": (
            gain(last) - gain(first)
        ),
    }
    return [
        no_difference(
            statement,
            mean_estimate(values),
            2 * params.margin,
            _FIXED,
        )
        for statement, values in alike.items()
    ] + _differences(
        {
            f"dropped: the screen less a median filter, {_REPLACED}": gain(of.screen)
            - gain("median")
        },
    )


def _differences(values: Mapping[str, FloatArray]) -> list[Claim]:
    return [
        difference(f"{statement}, in points", mean_estimate(gaps))
        for statement, gaps in values.items()
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the change of accuracy by each remedy, one panel per kind of training."""
    table = run.table["accuracy"]
    names = remedies(run.params)
    panels: Any = figure.subplots(1, len(KINDS), sharey=True, sharex=True)
    at = np.arange(len(CONDITIONS))
    marks = (
        ("oracle", "corrupted tokens hidden", "D", GREEN),
        ("random", "as many random ones hidden", "s", GREY),
        ("median", "median filter", "^", ORANGE),
        ("impute", "imputed", ".", INK),
    )
    for panel, kind, rows in zip(panels, KINDS, table, strict=True):
        gains = rows - rows[..., :1]
        screened = gains[..., names.index(f"screen {run.params.main_calibration}")]
        for name, label, marker, color in marks:
            mean = gains[..., names.index(name)].mean(axis=0)
            panel.plot(
                mean, at, marker, color=color, label=label, fillstyle="none", ms=5
            )
        mean, half = seed_intervals(screened, axis=0)
        panel.errorbar(mean, at, xerr=half, fmt="o", color=BLUE, ms=4, label="screen")
        panel.axvline(0.0, color=INK, linewidth=0.8)
        mean = rows[..., 0].mean(axis=0)
        for place, value in zip(at, mean, strict=True):
            panel.annotate(
                f"{value:.0f} %",
                (1.0, place),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize="x-small",
                color=GREY,
            )
        panel.set_title(f"trained: {kind}", fontsize="small")
    panels[0].set_yticks(at, [TITLES[name] for name in CONDITIONS])
    panels[0].invert_yaxis()
    figure.supxlabel(
        "change of accuracy, in points (grey: accuracy without a remedy)",
        fontsize="small",
    )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))


_PAPER = Params()
_SMALL: Final[dict[str, Any]] = {
    "data": "digits",
    "calibration": (100, 200, 300),
    "main_calibration": 200,
    "n_train": 800,
    "n_attacked": 30,
    "n_attack_steps": 2,
}
_SMOKE: Final[dict[str, Any]] = {
    **_SMALL,
    "n_test": 60,
    "n_steps": 8,
    "n_seeds": 2,
    "d_model": 16,
    "n_heads": 2,
    "depth": 2,
}
_DEMO: Final[dict[str, Any]] = {**_SMALL, "n_test": 400, "n_steps": 250, "n_seeds": 5}


def _files(params: Params) -> tuple[str, ...]:
    return MNIST if params.data == "mnist" else ()


def _work(params: Params) -> float:
    return float(len(KINDS) * params.n_seeds)


_METHOD = (
    "Vision transformers with sixteen patches and a class token (three layers, width "
    "48) are trained in three ways: plainly, with up to 60 % of the tokens dropped, "
    "and on shifted and erased images; five runs each. A token screen is fitted on "
    "clean, unlabelled images that are neither trained on nor tested. Shown is the "
    "change of accuracy if tokens that do not fit are hidden from attention or "
    "imputed, beside hiding as many random tokens, hiding exactly the corrupted ones "
    "(oracle), and a 3 × 3 median filter. The optimised patches mislead the model with "
    "any pixels; the aimed ones also stay below the thresholds of the screen."
)
experiments = (
    Experiment(
        key="screening/mnist",
        title="Hiding tokens that do not fit, on MNIST",
        source="ours",
        about=f"MNIST digits. {_METHOD}",
        presets={
            "smoke": replace(_PAPER, **_SMOKE),
            "demo": replace(_PAPER, **_DEMO),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(10.0, 5.5),
        needs=("torch",),
        files=_files,
        tolerance=1e-2,
    ),
    Experiment(
        key="screening/photographs",
        title="Hiding tokens that do not fit, digits on photographs",
        source="ours",
        about=(
            "MNIST digits in light colours on darkened crops of scikit-learn's two "
            "photographs; training and calibration crops are from the left three "
            f"fifths, test crops from the rest. {_METHOD}"
        ),
        presets={
            "smoke": replace(_PAPER, photographs=True, **_SMOKE),
            "demo": replace(_PAPER, photographs=True, **_DEMO),
            "paper": replace(_PAPER, photographs=True, least_accuracy=90.0),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(10.0, 5.5),
        needs=("torch",),
        files=_files,
        tolerance=1e-2,
    ),
)
