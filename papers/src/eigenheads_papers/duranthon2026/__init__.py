"""Statistical advantage of softmax attention."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="duranthon2026",
    title="Statistical Advantage of Softmax Attention: Insights from Single-Location "
    "Regression",
    authors="O. Duranthon, P. Marion, C. Boyer, B. Loureiro and L. Zdeborová",
    reference="ICLR 2026, arXiv 2509.21936",
    summary=(
        "Single-location regression with tokens of unit noise: the deciding token is "
        "shifted along a key (spiked) or is chosen by its score (max). Softmax "
        "attention reaches the Bayes risk of the population; linear attention, an "
        "elementwise erf and normalised softplus do not. The abstract, reviews and a "
        "public summary were read, not the paper; numbers of its statements are those "
        "that the summary gives."
    ),
)
