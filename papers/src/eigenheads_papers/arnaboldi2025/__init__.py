"""Asymptotics of SGD in sequence-single index models and single-layer attention."""

from eigenheads_papers._core import Paper

paper = Paper(
    key="arnaboldi2025",
    title="Asymptotics of SGD in Sequence-Single Index Models and Single-Layer "
    "Attention Networks",
    authors="L. Arnaboldi, B. Loureiro, L. Stephan, F. Krzakala and L. Zdeborová",
    reference="NeurIPS 2025, arXiv 2506.02651",
    summary=(
        "The output depends on one direction, applied to every token of a sequence. A "
        "tied attention head with positional encodings learns the direction (a "
        "semantic solution) or the positions; which of the two is decided while it "
        "escapes from its start. Weights that are tied over the sequence learn faster "
        "than untied ones. The models are declared in a few lines and simulated "
        "exactly in any dimension; the landscape is computed by quadrature, "
        "independently."
    ),
)
