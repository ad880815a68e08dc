"""Asymptotic signal subspace recovery in softmax attention models."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="truong2026",
    title="Asymptotic signal subspace recovery in softmax attention models",
    authors="L. V. Truong",
    reference="arXiv 2606.22406",
    summary=(
        "A query on the unit sphere is trained by projected stochastic gradient ascent "
        "on the squared norm of its attention output. A few informative tokens carry a "
        "latent direction u, many nuisance tokens are noise; the query converges to ±u "
        "almost surely. Of the paper's experiments three numbers are public: mean "
        "final alignment 0.9965 over 30 runs, recovery with 10 000 nuisance tokens, "
        "and recovery at strength θ = 0.25. Its constants are not: the law of the "
        "tokens (informative x = ±θ√d u + z, nuisance x = z, z ~ N(0, I)), d, the "
        "counts, the sharpness and the step sizes are ours here. One rule gives "
        "sharpness and steps to every run from d, the counts and θ."
    ),
)
