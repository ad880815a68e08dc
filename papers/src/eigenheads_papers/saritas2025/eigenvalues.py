"""Largest eigenvalue of the keys' Gram matrix: the study's third finding."""

from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads.functional import kernel_pca
from eigenheads_papers import _models
from eigenheads_papers._claims import Claim, at_least
from eigenheads_papers._core import Experiment, Run, Table
from eigenheads_papers._drawing import HeadStrip, draw_strips
from eigenheads_papers._models import Text
from eigenheads_papers._training import one_thread
from eigenheads_papers.saritas2025 import _study
from eigenheads_papers.saritas2025._study import MODELS, NAMES, Params

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What teo2024 prints as the largest eigenvalue, and the tokens of its ViTs.
_PRINTED, _TOKENS = 648.46, 197


def simulate(params: Params, rng: np.random.Generator) -> Table:
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


def check(run: Run[Params]) -> list[Claim]:
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


def draw(figure: "Figure", run: Run[Params]) -> None:
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
        check=check,
        draw=draw,
        size=(10.0, 6.2),
        **_study.COMMON | {"simulate": simulate},
        tolerance=1e-2,
    ),
)
