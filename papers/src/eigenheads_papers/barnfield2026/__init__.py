"""High-dimensional analysis of attention for sparse-token classification."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="barnfield2026",
    title="High-Dimensional Analysis of Single-Layer Attention for Sparse-Token "
    "Classification",
    authors="N. Barnfield, H. Cui and Y. M. Lu",
    reference="ICLR 2026, arXiv 2509.25153",
    summary=(
        "Positive sequences carry a weak signal in a few tokens at random positions, "
        "negative ones are noise. Attention can classify with a strength of order log "
        "L, linear classifiers need √L; two gradient steps on one data set align the "
        "query with the signal. The abstract, a figure's caption, reviews and a "
        "public summary were read, not the paper."
    ),
)
