"""Attention-based PCA."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="maulensoto2026",
    title="Attention-based PCA",
    authors="Maulen-Soto et al.",
    reference="arXiv 2605.18315",
    summary=(
        "A rank-one attention head that is trained to copy its query through the "
        "other tokens learns the top eigenvector of their covariance. One definition "
        "of the method makes every figure: softmax and linear heads, finite and "
        "infinite prompts, a fixed covariance or, in context, one for each prompt. "
        "How well a run is aligned when it stops depends strongly on the covariance "
        "that was drawn, so simulation and theory are compared on the same one, and "
        "quantiles over many are given. Ours: heads of rank k, which find the whole "
        "principal subspace, exact gradients of every risk, and other tokens and "
        "activations."
    ),
)
