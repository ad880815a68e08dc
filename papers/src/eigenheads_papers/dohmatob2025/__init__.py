"""Understanding softmax attention layers: mean-field analysis on a toy problem."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="dohmatob2025",
    title="Understanding Softmax Attention Layers: Exact Mean-Field Analysis on a Toy "
    "Problem",
    authors="E. Dohmatob",
    reference="NeurIPS 2025",
    summary=(
        "Softmax attention on single-location regression with a number of tokens that "
        "may be exponential in the dimension. The weights on the other tokens are "
        "those of the random energy model; this gives the risk in closed form, a "
        "transition of the oracle at c = ψ, and convergence of gradient descent from "
        "any start. The text was read."
    ),
)
