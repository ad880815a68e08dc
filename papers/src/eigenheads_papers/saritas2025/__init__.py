"""A reproduction study of the kernel-PCA reading of self-attention."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="saritas2025",
    title=(
        "A Reproduction Study: The Kernel PCA Interpretation of Self-Attention Fails "
        "Under Scrutiny"
    ),
    authors="K. Sarıtaş and Ç. Yıldız",
    reference="ACL Student Research Workshop 2025, arXiv 2505.07908",
    summary=(
        "Values of trained heads do not look like the eigenvectors that the kernel-PCA "
        "reading predicts, the two norms of its reconstruction loss are orders apart, "
        "and its eigenvalues cannot be had again. We put the study's numbers to two "
        "models that are not the study's: a trained sentence encoder "
        "(all-MiniLM-L6-v2, 6 layers of 12 heads) and a small vision transformer "
        "trained here on digits. Ours: beside every number what random value matrices "
        "on the same keys and untrained models give, which tells what a small, or "
        "large, number is worth."
    ),
)
