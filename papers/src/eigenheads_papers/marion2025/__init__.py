"""Attention layers provably solve single-location regression."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="marion2025",
    title="Attention layers provably solve single-location regression",
    authors="P. Marion, R. Berthier, G. Biau and C. Boyer",
    reference="ICLR 2025, arXiv 2410.01537",
    summary=(
        "One token among L, at a latent position, decides the output. A simplified "
        "attention layer with a key direction k and a value direction v can solve this "
        "task where no linear predictor can, and projected gradient descent finds the "
        "two planted directions although the risk is not convex. Simulations with "
        "fresh data use the exact engine: the law of the order parameters in any "
        "dimension, without vectors of that dimension."
    ),
)
