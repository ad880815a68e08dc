"""Values, norms, eigenvalues and γ-ratios of trained heads against kernel PCA."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads.functional import kernel_pca
from eigenheads_papers import _models
from eigenheads_papers._claims import (
    POOR_MODELS,
    Claim,
    about,
    at_least,
    at_most,
    in_family,
)
from eigenheads_papers._core import Experiment, Run, Table
from eigenheads_papers._drawing import HeadStrip, draw_strips
from eigenheads_papers._models import Text
from eigenheads_papers._statistics import (
    bootstrap_estimate,
    mean_estimate,
    share_estimate,
)
from eigenheads_papers._training import one_thread
from eigenheads_papers.saritas2025 import _study
from eigenheads_papers.saritas2025._study import MODELS, NAMES, Params

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Statistic: its name, and the study's bound on the average.
_BOUNDS = {
    "matching_cosine": ("cosine of best-matched values", 0.32),
    "linear_cka": ("linear CKA", 0.11),
    "rbf_cka": ("RBF CKA", 0.32),
}
_NULLS = {"random_projections": "random values", "untrained": "untrained"}
_NULL = "question: the null of random projections"
# A relative difference of γ below this would still be a rough kernel-PCA reading.
_ROUGH = 0.1


def check_values(run: Run[Params]) -> list[Claim]:
    """Return the study's three bounds, and differences from chance."""
    params, table = run.params, run.table
    # The study's bounds are about trained models, so a ViT with few updates is left out
    # here. Differences from random values are judged for both models.
    claimed = [
        at_most(
            f"{NAMES[model]}: average {words} with kernel-PCA values",
            mean_estimate(table[f"{model}_{statistic}"].ravel()),
            bound,
            "two digits are printed, and averages over other passages and images "
            "differ by 0.02; random values give the same, so that this is evidence "
            "neither for nor against the reading",
            slack=0.03,
            source="saritas2025, abstract: averages over heads of ten models",
        )
        for statistic, (words, bound) in _BOUNDS.items()
        for model in _study.trained_models(params)
    ]
    chance = [
        at_most(
            f"{NAMES[model]}: average {words}, minus that of random value matrices on "
            "the same keys",
            mean_estimate(
                (
                    table[f"{model}_{statistic}"]
                    - table[f"{model}_{statistic}_random_projections_mean"]
                ).ravel()
            ),
            0.05,
            "values without structure give 0; values of kernel PCA would give 1 minus "
            "the null, 0.6 or more",
            source=_NULL,
        )
        for model in MODELS
        for statistic, (words, _) in _BOUNDS.items()
    ]
    shares = [
        _study.share_claim(
            params,
            table,
            model,
            "share of heads that stand out from random value matrices (q ≤ 0.05), the "
            "most of four measures",
            (*_BOUNDS, "captured_variance"),
        )
        for model in MODELS
    ]
    # Each family is judged at a joint level of 5 %: several statistics on two models
    # would otherwise give a wrong verdict by chance too often.
    return _judged(
        [
            *in_family("averages over heads", claimed),
            *in_family("differences from random values", chance),
            *shares,
        ]
    )


def _judged(claims: list[Claim]) -> list[Claim]:
    """Return the claims, those on the small ViT without a verdict."""
    return [
        replace(claim, unjudged=POOR_MODELS)
        if claim.statement.startswith(NAMES["vit"])
        else claim
        for claim in claims
    ]


def check_norms(run: Run[Params]) -> list[Claim]:
    """Return the study's order of magnitude and the reading's bound."""
    params, table = run.params, run.table
    order = "the study gives an order of magnitude, and our models are others"
    # Layers differ by a factor of ten and more: some of them say little of all.
    is_whole = params.layers == Params.layers
    why_undecided = "" if is_whole else "not all layers of MiniLM are measured"
    study = [
        about(
            f"{NAMES[model]}: log10 of |output|² over |feature|², average over heads",
            mean_estimate(table[f"{model}_norm_ratio"].ravel()),
            3.0,
            1.5,
            order,
            source="saritas2025, abstract: the norms differ by about 10³",
            undecided=why_undecided if model == "minilm" else "",
        )
        for model in _study.trained_models(params)
    ]
    projection = [
        at_most(
            f"{NAMES[model]}: share of heads whose output is longer than the feature "
            "it would be a projection of",
            # The ratio is a decimal logarithm: above 0 the output is the longer.
            share_estimate(int((ratio > 0).sum()), ratio.size),
            0.05,
            "a projection on unit axes shortens; averages over tokens are exact to "
            "rounding",
            source="teo2024, abstract: the output is a projection on principal axes",
        )
        for model in MODELS
        for ratio in [table[f"{model}_norm_ratio"]]
    ]
    # If untrained models have the same ratio, training is not its cause.
    untrained = [
        about(
            f"{NAMES[model]}, untrained: log10 of |output|² over |feature|²",
            table[f"{model}_norm_ratio_untrained_mean"].mean(),
            3.0,
            1.5,
            order,
            source="question: is 10³ there without training?",
        )
        for model in MODELS
    ]
    return _judged([*study, *projection, *untrained])


def check_gamma(run: Run[Params]) -> list[Claim]:
    """Return claims on γ: of the reading, of the study, and for random values."""
    claims = []
    for model in MODELS:
        table, name = run.table, NAMES[model]
        gaps = table[f"{model}_gamma_gap"].ravel()
        # Paired head by head: each head is compared with random values on its own keys.
        ratios = np.log10(gaps / table[f"{model}_gamma_gap_random"].ravel())
        relative = mean_estimate(table[f"{model}_gamma_difference"].ravel())
        statement = f"{name}: |γ_i − γ_j| over the larger of both, average over heads"
        # The relative difference is what the reading is about. The absolute one is
        # small for any values, because the eigenvalues of K̃ are small; the comparison
        # with random values shows this.
        claims += [
            about(
                statement,
                relative,
                0.0,
                _ROUGH,
                "constant ratios differ by 0; a tenth would be a rough reading still",
                source="teo2024, abstract: values capture eigenvectors, K̃â = γâ",
            ),
            at_least(
                statement,
                relative,
                _ROUGH,
                "above what a rough kernel-PCA reading would allow",
                source="saritas2025, section on the Gram matrix's eigenvectors: γ is "
                "not constant",
            ),
            at_most(
                f"{name}: median |γ_i − γ_j|, the median head",
                bootstrap_estimate(gaps, np.median),
                1e-3,
                "about 10⁻⁴ or less, as γ are of the size of K̃'s eigenvalues",
                source="teo2024, figure of γ: absolute differences are small",
            ),
            about(
                f"{name}: log10 of that over the same of random values of the same "
                "covariance",
                bootstrap_estimate(ratios, np.median),
                0.0,
                0.3,
                "a factor of two: small absolute differences tell nothing of values",
                source="question",
            ),
            about(
                f"{name}: relative difference of γ, against 0.8 of random values",
                relative,
                0.8,
                0.2,
                "0.8 is ours, for Gaussian keys at N = 197; heads whose keys have a "
                "large common part are lower",
                source="question",
            ),
            _study.share_claim(
                run.params,
                table,
                model,
                "share of heads below random value matrices (q ≤ 0.05)",
                ("gamma_difference",),
            ),
        ]
    return _judged(claims)


def draw_values(figure: "Figure", run: Run[Params]) -> None:
    """Draw the three measures, MiniLM with a map, the ViT beside it."""
    rows = [
        [
            _study.strip(
                run.table,
                model,
                statistic,
                f"{NAMES[model]}: {words}",
                _NULLS,
                {f"study: ≤ {bound}": bound},
            )
            for model in MODELS
        ]
        for statistic, (words, bound) in _BOUNDS.items()
    ]
    draw_strips(figure, rows)


def draw_norms(figure: "Figure", run: Run[Params]) -> None:
    """Draw both norms and their ratio."""
    words = {
        "norm_ratio": "log10 |output|²/|feature|²",
        "output_norm": "log10 |output|²",
        "feature_norm": "log10 |feature|²",
    }
    nulls = {"untrained": "untrained", "permuted_tokens": "permuted tokens"}
    lines = {"study: 3": 3.0, "largest if unit axes": 0.0}
    rows = [
        [
            _study.strip(
                run.table,
                model,
                statistic,
                f"{NAMES[model]}: {title}",
                nulls,
                lines if statistic == "norm_ratio" else {},
            )
            for model in MODELS
        ]
        for statistic, title in words.items()
    ]
    draw_strips(figure, rows)


def draw_gamma(figure: "Figure", run: Run[Params]) -> None:
    """Draw relative and absolute differences."""
    table = run.table
    first = [
        _study.strip(
            table,
            model,
            "gamma_difference",
            f"{NAMES[model]}: relative difference of γ",
            _NULLS,
            {"kernel PCA": 0.0},
        )
        for model in MODELS
    ]
    second = []
    for model in MODELS:
        chance = np.log10(table[f"{model}_gamma_gap_random"])
        # There is one draw of random values per head, so the width of the box is taken
        # over the heads of a layer.
        spread = chance.std(axis=1, keepdims=True)
        second.append(
            HeadStrip(
                title=f"{NAMES[model]}: log10 median |γ_i − γ_j|",
                values=np.log10(table[f"{model}_gamma_gap"]),
                layers=table[f"{model}_layers"],
                nulls={"random values": (chance, spread)},
                has_map=model == "minilm",
            )
        )
    draw_strips(figure, [first, second])


# What teo2024 prints as the largest eigenvalue, and the tokens of its ViTs.
_PRINTED, _TOKENS = 648.46, 197


def simulate_eigenvalues(params: Params, rng: np.random.Generator) -> Table:
    """Add passages of 197 tokens to what the other keys measure."""
    table = dict(_study.simulate(params, rng))
    # The bound on the eigenvalue is N, so a comparison with the printed number needs
    # passages of as many tokens as its ViTs have.
    text = Text(source=params.source, n_passages=2, n_tokens=_TOKENS)
    with one_thread():
        captured = _models.capture(_models.minilm()[0], _models.passages(text))
        spectra = [_spectra(layer) for layer in captured]
    for name in spectra[0]:
        table[f"long_{name}"] = np.stack([layer[name] for layer in spectra])
    table["long_layers"] = np.array([float(layer.layer) for layer in captured])
    return table


def _spectra(captured: Any) -> dict[str, FloatArray]:
    """Return the largest eigenvalue, the trace, and the former not normalised."""
    cloud = kernel_pca(captured.keys.astype(np.float64), scale=captured.scale)
    # Eigenvalue and trace are maxima over sequences, since the printed number is a
    # maximum as well.
    return {
        "top": cloud.eigenvalues[..., 0].max(axis=0),
        "trace": cloud.trace.max(axis=0),
        "raw": _study.raw_eigenvalues(captured),
    }


def check_eigenvalues(run: Run[Params]) -> list[Claim]:
    """Return the printed number, and the study's finding on it."""
    table = run.table
    # That no Gram matrix as defined has the printed size is a theorem, not a claim: its
    # trace is at most N. The question is which kernel could have it.
    return [
        at_least(
            "MiniLM, 197 tokens, kernel without its normaliser: log10 of the largest "
            "eigenvalue, the least over heads",
            np.log10(table["long_raw"].min()),
            float(np.log10(_PRINTED)),
            "such sizes come from a kernel that is not the one defined",
            source="question",
        ),
    ]


def draw_eigenvalues(figure: "Figure", run: Run[Params]) -> None:
    """Draw eigenvalues at 197 tokens, and those of the other models."""
    table = run.table
    layers = table["long_layers"]
    lines = {"printed: 648.46": _PRINTED, "bound for centred keys": 1.0}
    first = [
        HeadStrip(
            "MiniLM, N = 197: largest eigenvalue",
            table["long_top"],
            layers,
            references=lines,
            is_log=True,
            has_map=True,
        ),
        HeadStrip("… of the plain kernel", table["long_raw"], layers, {}, lines, True),
    ]
    nulls = {"random_keys": "random keys", "untrained": "untrained"}
    second = [
        _study.strip(
            table,
            model,
            "top_eigenvalue",
            f"{NAMES[model]}: largest eigenvalue",
            nulls,
            {},
        )
        for model in MODELS
    ]
    draw_strips(figure, [first, second])


experiments = (
    Experiment(
        key="saritas2025/values",
        title="Trained values are hardly more like kernel-PCA values than random ones",
        source="abstract and section on value vectors",
        about=(
            "Values of trained heads against those that kernel PCA of their keys would "
            "give: cosine of tokens matched best, linear and RBF CKA. Blue dots are "
            "heads, boxes two standard deviations about what random value matrices on "
            "the very same keys give (grey) and untrained models (orange); dashed is "
            "the study's bound on its averages. Models, texts and images are ours, the "
            "study's are ViTs and others on ImageNet; tokens over head width is 98/32 "
            "for MiniLM, as the study's 197/64, and 65/16 for the ViT. These measures "
            "grow with the share of head width in tokens, so no bound means much "
            "without its null."
        ),
        check=check_values,
        draw=draw_values,
        size=(10.0, 9.0),
        **_study.COMMON,
        tolerance=1e-2,
    ),
    Experiment(
        key="saritas2025/norms",
        title="Outputs are not projections: the two norms are orders of magnitude "
        "apart",
        source="abstract and section on the reconstruction loss",
        about=(
            "|φ(q)/g(q)|² = exp(q·q/√D)/(Σ exp(q·k/√D))² of the query's feature "
            "against |h|² of the head's output, means over tokens of decimal "
            "logarithms. If the output were the feature's projection on unit axes, the "
            "ratio would be at most 1 (0 here). The study found about 10³; its models "
            "are ViTs on ImageNet. q and k are taken as they are, not standardised as "
            "in the authors' program."
        ),
        check=check_norms,
        draw=draw_norms,
        size=(10.0, 9.0),
        **_study.COMMON,
        tolerance=1e-2,
    ),
    Experiment(
        key="saritas2025/eigenvalues",
        title="Eigenvalues of the keys' Gram matrix are small; "
        "the printed ones cannot be",
        source="abstract and section on the Gram matrix's eigenvalues",
        about=(
            "Largest eigenvalue of K̃, the centred Gram matrix of normalised features. "
            "It is at most the trace, and that at most N; teo2024 prints 648.46 at N = "
            "197. Above: MiniLM on passages of 197 tokens, also with the plain kernel "
            "exp(k·k′/√D), which is far larger. Below: the passages and images of the "
            "other keys, with random keys of the same covariance and untrained models. "
            "Models and texts are ours."
        ),
        check=check_eigenvalues,
        draw=draw_eigenvalues,
        size=(10.0, 6.2),
        **_study.COMMON | {"simulate": simulate_eigenvalues},
        tolerance=1e-2,
    ),
    Experiment(
        key="saritas2025/gamma",
        title="The ratios γ are not constant; that they differ by little says nothing",
        source="section on the Gram matrix's eigenvectors",
        about=(
            "If a column of the values encodes an eigenvector â of the keys' centred "
            "Gram matrix K̃, the ratios γ = (K̃â)/â are one number. Above: mean over "
            "pairs of tokens of the relative difference, 0 for kernel PCA. Below: the "
            "absolute one, about 10⁻⁴ for trained and for random values alike, since "
            "the eigenvalues of K̃ are small. Models and texts are ours."
        ),
        check=check_gamma,
        draw=draw_gamma,
        size=(10.0, 6.2),
        **_study.COMMON,
        tolerance=1e-2,
    ),
)
