"""Self-attention as kernel principal component analysis, and RPC-Attention."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="teo2024",
    title="Unveiling the Hidden Structure of Self-Attention via Kernel Principal "
    "Component Analysis",
    authors="R. S. Y. Teo and T. M. Nguyen",
    reference="NeurIPS 2024, arXiv 2406.13762",
    summary=(
        "Self-attention is derived from kernel PCA: its output is the projection of "
        "queries on principal axes of the keys in a feature space. From this come "
        "RPC-Attention, a few iterations of robust PCA of the keys, said to be more "
        "robust than softmax attention on ImageNet, WikiText-103 and ADE20K under "
        "corruption and attack, and scaled attention. Our models are small and our "
        "data are digits, MNIST and small texts: what we test is the direction of the "
        "claims, and by controls what part of the layer would carry them."
    ),
)
