"""The sign of the multiplier in the pursuit, and what it changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.special import softmax

from eigenheads.extend import FloatArray, advance, generator
from eigenheads.extend.drawing import BLUE, GREEN, GREY, ORANGE
from eigenheads.extend.numbers import pursuit_steps
from eigenheads.functional import (
    attention_pursuit,
    kernel_pca,
    singular_value_threshold,
)
from eigenheads_papers._claims import (
    Claim,
    at_least,
    at_most,
    difference,
    in_family,
)
from eigenheads_papers._core import Experiment, Run, Table, parameter
from eigenheads_papers._statistics import mean_estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNS: Final = ("paper", "admm")
RULES: Final = ("paper", "reference", "auto")
PLAIN, PURSUIT = "plain attention", "true pursuit of the keys"
METHODS: Final = (PLAIN, *((s, r) for s in SIGNS for r in RULES), PURSUIT)
_SIGN_NAMES: Final = {"paper": "printed sign", "admm": "right sign"}
_RULE_NAMES: Final = {"paper": "λ/μ", "reference": "λμ", "auto": "auto"}
# Iterations of principal component pursuit; the planted matrix needs more.
_PURSUIT_STEPS, _RECOVERY_STEPS = 300, 1500


@dataclass(frozen=True, kw_only=True)
class Params:
    """Gaussian keys of a ViT-tiny head, and low-rank keys with planted errors.

    λ, n, the number of tokens and the widths are the paper's; all else is ours.
    """

    sparsity: float = parameter(4.0, "the λ of RPC-Attention")
    n_iter: int = parameter(4, "iterations of the pursuit")
    n_tokens: int = parameter(197, "tokens per sample or prompt")
    d_head: int = parameter(64, "width of a head")
    d_model: int = parameter(192, "width of the model")
    key_scales: tuple[float, ...] = parameter(
        (0.5, 1.0), "standard deviations of the clean keys"
    )
    n_shown: int = parameter(6, "iterations to show")
    # Sequences whose keys have rank `rank`, before a share of entries is replaced.
    n_sequences: int = parameter(400, "sequences with planted errors")
    n_planted: int = parameter(60, "tokens per sequence with planted errors")
    width: int = parameter(24, "width of the model, or of the keys")
    rank: int = parameter(4, "rank of the clean keys")
    n_classes: int = parameter(4, "number of classes")
    shift: float = parameter(0.4, "distance of the classes")
    share: float = parameter(0.05, "share of the key entries that are replaced")
    error: float = parameter(6.0, "size of the planted errors")


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Run both signs and both rules on clean keys, then all methods on planted ones."""
    table = {**_iterations(params, rng), **_recovery(rng)}
    rows = []
    for number in range(params.n_sequences):
        rows.append(_one_sequence(params, number % params.n_classes, rng))
        advance(1.0)
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {**table, **_predictions(params, columns)}


def _iterations(params: Params, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Return self-weight and share of S: key scales by signs by rules by iterations."""
    pursuits = [
        [
            [
                _pursue(params, keys, values, (sign, rule), params.n_shown)
                for rule in RULES
            ]
            for sign in SIGNS
        ]
        for keys, values in (
            scale * rng.standard_normal((2, params.n_tokens, params.d_head))
            for scale in params.key_scales
        )
    ]
    return {
        name: np.array(
            [[[getattr(step, name) for step in b] for b in a] for a in pursuits]
        )
        for name in ("self_weight", "flagged")
    }


def _pursue(
    params: Params,
    keys: FloatArray,
    values: FloatArray,
    setting: tuple[str, str],
    n_iter: int,
) -> Any:
    sign, rule = setting
    is_auto = rule == "auto"
    return attention_pursuit(
        keys,
        values,
        n_iter=n_iter,
        sparsity="auto" if is_auto else params.sparsity,
        threshold="paper" if is_auto else rule,
        width=params.d_model if rule == "reference" else None,
        multiplier=sign,  # type: ignore[arg-type]
    )


def _recovery(rng: np.random.Generator) -> dict[str, FloatArray]:
    """Return the relative error of pursuit on a planted matrix, by sign and step."""
    low_rank = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 50))
    gross = (rng.random(low_rank.shape) < 0.05) * 10 * rng.standard_normal((60, 50))
    size = np.linalg.norm(low_rank)
    errors = [
        [
            np.linalg.norm(step - low_rank) / size
            for step in _true_steps(whole, sign, _RECOVERY_STEPS)
        ]
        for whole, sign in ((low_rank + gross, sign) for sign in SIGNS)
    ]
    return {"recovery": np.array(errors)}


def _true_steps(
    matrix: FloatArray, sign: str, n_steps: int = _PURSUIT_STEPS
) -> list[FloatArray]:
    """Return the low-rank parts of principal component pursuit, step by step."""
    mu = matrix.size / (4 * np.abs(matrix).sum())
    limit = max(matrix.shape) ** -0.5 / mu
    steps = pursuit_steps(
        matrix,
        lambda cleaned: singular_value_threshold(cleaned, 1 / mu),
        lambda _: limit,
        n_steps,
        multiplier=sign,
    )
    # With the printed sign the iterates grow without bound; stop before they overflow.
    steps_kept: list[FloatArray] = []
    for step in steps:
        steps_kept.append(step.low_rank)
        if not np.abs(step.low_rank).max() < 1e100:
            break
    return steps_kept + [steps_kept[-1]] * (n_steps - len(steps_kept))


def _one_sequence(
    params: Params, label: int, rng: np.random.Generator
) -> dict[str, FloatArray]:
    """Return outputs and axes of every method with clean and with corrupted keys."""
    # Classes differ in the direction around which the tokens' latents lie.
    latent = rng.standard_normal((params.n_planted, params.rank))
    latent[:, label % params.rank] += params.shift
    mix = generator(0).standard_normal((2, params.rank, params.width))
    keys, values = latent @ mix / params.rank**0.5
    planted = rng.random(keys.shape) < params.share
    wrong = np.where(planted, params.error * rng.choice([-1.0, 1.0], keys.shape), keys)
    pooled, moved, axes = [], [], []
    for method in METHODS:
        run = _method(params, method)
        clean, _ = run(keys, values)
        out, out_keys = run(wrong, values)
        moved.append(np.linalg.norm(out - clean) / np.linalg.norm(clean))
        # Axes are compared with those of the true keys, whatever the method does.
        axes.append(_alignment(keys, out_keys, params.rank))
        pooled.append([clean.mean(axis=0), out.mean(axis=0)])
    return {
        "moved": np.array(moved),
        "axes": np.array(axes),
        "pooled": np.array(pooled),
        "label": np.array(float(label)),
    }


def _method(
    params: Params, method: Any
) -> Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
    """Return a function from keys and values to the output and the keys it compares."""

    def attend(keys: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        if method == PLAIN:
            cleaned = keys
        elif method == PURSUIT:
            cleaned = _true_steps(keys, "admm")[-1]
        else:
            pursuit = _pursue(params, keys, values, method, params.n_iter)
            return np.asarray(pursuit.output), np.asarray(pursuit.cleaned)
        weights = softmax(cleaned @ cleaned.T / keys.shape[-1] ** 0.5, axis=-1)
        return np.asarray(weights @ values), cleaned

    return attend


def _alignment(keys: FloatArray, cleaned: FloatArray, rank: int) -> float:
    """Return the mean squared cosine between the leading kernel-PCA axes of both."""
    first, second = (kernel_pca(k).eigenvectors[:, :rank] for k in (keys, cleaned))
    return float(((first.T @ second) ** 2).sum() / rank)


def _predictions(params: Params, columns: dict[str, FloatArray]) -> Table:
    """Return the table; classes are read off by the nearest mean of clean outputs."""
    pooled, label = columns["pooled"], columns["label"].astype(int)
    half = len(label) // 2
    correct = np.zeros((len(METHODS), 2, len(label) - half))
    for index in range(len(METHODS)):
        clean, out = pooled[:, index, 0], pooled[:, index, 1]
        means = np.stack(
            [
                clean[:half][label[:half] == c].mean(axis=0)
                for c in range(params.n_classes)
            ]
        )
        for column, outputs in enumerate((clean[half:], out[half:])):
            gaps = ((outputs[:, None] - means) ** 2).sum(axis=-1)
            correct[index, column] = gaps.argmin(axis=1) == label[half:]
    return {"moved": columns["moved"], "axes": columns["axes"], "correct": correct}


def name_of(method: Any) -> str:
    """Return the name of a method, as figure and claims show it."""
    if isinstance(method, str):
        return method
    sign, rule = method
    return f"{_SIGN_NAMES[sign]}, {_RULE_NAMES[rule]}"


def check(run: Run[Params]) -> list[Claim]:
    """Return the effects of the sign, and of planted errors on each method."""
    return [*_sign_claims(run.table), *_planted_claims(run.table)]


def _sign_claims(table: Table) -> list[Claim]:
    printed, right = table["recovery"][:, -1]
    # First key scale, rule λ/μ; iterations 3 to 6 with the printed sign against 1 to 4.
    weights = table["self_weight"][0, :, 0]
    delay = np.abs(weights[0, 2:] - weights[1, :-2]).max()
    paper, reference = table["flagged"][-1, 0, :2, 3]
    return [
        at_most(
            "principal component pursuit with the right sign, planted 60 × 50 matrix "
            "of rank 3 with 5 % gross errors: relative error",
            right,
            1e-6,
            "exact recovery, to the accuracy of the iterations",
        ),
        at_least(
            "the same with the printed sign",
            min(printed, 1e300),
            1.0,
            "an error as large as the matrix is no recovery",
        ),
        at_most(
            "weight of a token on itself, printed sign two iterations later than the "
            "right sign: largest difference",
            delay,
            0.05,
            "without flagged entries both compare nearly the same multiple of the keys",
        ),
        at_least(
            "share of S at n = 4 and keys of standard deviation 1, λμ less λ/μ",
            reference - paper,
            0.3,
            "the authors’ code has λμ, the text λ/μ",
        ),
    ]


def _planted_claims(table: Table) -> list[Claim]:
    """Return gains on corrupted keys, paired over sequences.

    The layer as the authors' program has it is compared with plain attention: that is
    the paper's claim. True pursuit and the right sign are checks of ours.
    """
    moved, axes, correct = table["moved"], table["axes"], table["correct"][:, 1]
    printed, right = (METHODS.index((sign, "reference")) for sign in SIGNS)
    text, text_right = (METHODS.index((sign, "paper")) for sign in SIGNS)
    pursuit = METHODS.index(PURSUIT)
    source = "teo2024, abstract: resilient to data contamination"
    claimed = [
        difference(
            f"{name_of(METHODS[printed])}: {statement}",
            mean_estimate(gain),
            source=source,
        )
        for statement, gain, record in (
            (
                "relative change of the output, plain attention’s less the layer’s",
                moved[:, 0] - moved[:, printed],
                "contradicted",
            ),
            (
                "agreement with the true kernel-PCA axes less plain attention’s",
                axes[:, printed] - axes[:, 0],
                "contradicted",
            ),
            (
                "share of right classes less plain attention’s",
                correct[printed] - correct[0],
                "undecided",
            ),
        )
    ]
    checks = [
        difference(statement, mean_estimate(gain), source="question")
        for statement, gain in (
            (
                f"{PURSUIT}: relative change of the output, plain attention’s less its",
                moved[:, 0] - moved[:, pursuit],
            ),
            (
                f"{PURSUIT}: agreement with the true kernel-PCA axes less plain "
                "attention’s",
                axes[:, pursuit] - axes[:, 0],
            ),
            (
                "relative change of the output, λμ: printed sign’s less the right "
                "one’s",
                moved[:, printed] - moved[:, right],
            ),
            (
                "relative change of the output, λ/μ: printed sign’s less the right "
                "one’s",
                moved[:, text] - moved[:, text_right],
            ),
        )
    ]
    return [
        *in_family("the layer on planted errors", claimed),
        *in_family("checks on planted errors", checks),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw self-weight and share of S by iteration, and what planted errors do."""
    grid: Any = figure.subplots(2, 2)
    _draw_iterations(grid[0], run)
    labels = [name_of(method) for method in METHODS]
    colors = [GREY, *[ORANGE] * 3, *[BLUE] * 3, GREEN]
    at = np.arange(len(METHODS))
    for axes, values, title in (
        (grid[1, 0], run.table["moved"], "change of the output by planted errors"),
        (grid[1, 1], run.table["axes"], "agreement with the true kernel-PCA axes"),
    ):
        mean = values.mean(axis=0)
        half = 1.96 * values.std(axis=0, ddof=1) / len(values) ** 0.5
        axes.barh(at, mean, xerr=half, color=colors, height=0.7)
        axes.set_title(title, fontsize="small")
        axes.invert_yaxis()
    grid[1, 0].set_yticks(at, labels)
    # Right of the second panel: the classes that the corrupted outputs still give.
    share = 100 * run.table["correct"][:, 1].mean(axis=1)
    grid[1, 1].yaxis.tick_right()
    grid[1, 1].set_yticks(at, [f"{value:.0f} % of classes right" for value in share])


def _draw_iterations(panels: Any, run: Run[Params]) -> None:
    steps = np.arange(1, run.params.n_shown + 1)
    for axes, name, title in zip(
        panels,
        ("self_weight", "flagged"),
        ("weight of a token on itself", "share of key entries in S"),
        strict=True,
    ):
        # The first key scale for the weights, the last for S: there they differ most.
        values = run.table[name][0 if name == "self_weight" else -1]
        for sign, color in zip(range(len(SIGNS)), (ORANGE, BLUE), strict=True):
            for rule, style in zip(range(len(RULES)), ("-", "--", ":"), strict=True):
                label = name_of((SIGNS[sign], RULES[rule]))
                axes.plot(steps, values[sign, rule], style, color=color, label=label)
        scale = run.params.key_scales[0 if name == "self_weight" else -1]
        axes.set_title(f"{title}, clean keys of sd {scale:g}", fontsize="small")
        axes.set_xlabel("iteration")
    panels[1].legend(fontsize="x-small")


experiments = (
    Experiment(
        key="teo2024/sign",
        title="The sign of the multiplier in RPC-Attention",
        source="ours: the iteration of RPC-Attention against its own Lagrangian",
        about=(
            "The paper minimises an augmented Lagrangian, but takes K − S − Y/μ where "
            "its minimiser is K − S + Y/μ. Above: both signs, both threshold rules "
            "(λ/μ in the text, λμ in the authors’ code) and the automatic one, on "
            "Gaussian keys of the size of a ViT-tiny head. Below: keys of rank 4 with "
            "5 % of the entries replaced, under plain attention, the layer with n = 4, "
            "and principal component pursuit of the keys before plain attention. "
            "Classes are read off by the nearest mean of the pooled clean outputs."
        ),
        presets={
            "smoke": Params(n_sequences=12, n_planted=30, n_tokens=60),
            "demo": Params(n_sequences=80),
            "paper": Params(),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(params.n_sequences),
        size=(9.0, 7.0),
        tolerance=1e-2,
    ),
)
