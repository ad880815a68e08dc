"""Claims of the papers that are not testable here, with reasons."""

from dataclasses import dataclass

from eigenheads.extend import check_choice


@dataclass(frozen=True, kw_only=True)
class Untested:
    """A claim of a paper that no experiment here measures.

    Attributes
    ----------
    claim
        The statement of the paper, in words.
    source
        Where: section, figure or table, as far as it is known.
    why
        Reason, and what a test would need.
    instead
        The key that tests the nearest thing, or nothing.
    command
        What tests it where the data and the hardware are, or nothing.
    on_small_models
        Whether `instead` measures the statement on small models, where it is counted.
    """

    claim: str
    source: str
    why: str
    instead: str = ""
    command: str = ""
    on_small_models: bool = False


_IMAGENET = "no ImageNet-1K, no GPUs"
# RPC is a run that `eigenheads train` wrote; DATA stands for the folder of the data.
_TRAIN = "eigenheads train imagenet --data DATA --out RPC --variant rpc"
_JUDGE = "eigenheads reproduce teo2024/imagenet --data DATA --runs RPC"

_UNTESTED = {
    "marion2025": (
        Untested(
            claim="the bars of the probes on BERT's [CLS], layer by layer",
            source="Figure 1",
            why="BERT's weights are not shipped; design and claims are tested on "
            "all-MiniLM-L6-v2, with our words",
            instead="marion2025/fig1",
            on_small_models=True,
        ),
        Untested(
            claim="the curves of the transformers with one and several heads",
            source="appendix E.3",
            why="their models and training are not public; ours are others",
            instead="marion2025/transformers",
            on_small_models=True,
        ),
        Untested(
            claim="the contents of Figures 6 to 9 and Tables 1 and 2",
            source="appendix",
            why="what they show is not public in a form that identifies their settings",
        ),
    ),
    "truong2026": (
        Untested(
            claim="0.9965 as the mean of 30 runs at the paper's own constants",
            source="experiments",
            why="the law's constants, d, counts and steps are not public; our steps "
            "are solved for 0.999, so that our runs cannot miss it",
            instead="truong2026/alignment",
        ),
        Untested(
            claim="recovery with 10 000 nuisance tokens, and at θ = 0.25",
            source="experiments",
            why="as above: a step rule solved for the number decides nothing",
            instead="truong2026/nuisance",
        ),
        Untested(
            claim="recovery at θ = 0.25 read as amplitude θ, with 100 informative of "
            "10 100 tokens",
            source="experiments, other readings",
            why="theory's rule asks for 46 million steps per run, two hours each (1.4 "
            "million with fixed signs); run with 1000 and 5000 informative tokens",
            instead="truong2026/readings",
        ),
        Untested(
            claim="convergence with probability one",
            source="the main theorem",
            why="a statement on infinite time; runs show that all of them arrive",
            instead="truong2026/alignment",
        ),
    ),
    "maulensoto2026": (
        Untested(
            claim="the heights of the curves of SGD on finite prompts",
            source="Figures 1 and 3 to 6",
            why="the authors' batches are drawn inside compiled programs; covariance "
            "and starts of Figures 3b and 7b are replayed",
            instead="maulensoto2026/replay",
        ),
        Untested(
            claim="the curve of exact descent as the authors' script draws it",
            source="Figure 4b",
            why="its gradient has another factor than the risk; ours is the risk's own",
            instead="maulensoto2026/fig4b",
        ),
    ),
    "teo2024": (
        Untested(
            claim="top-1 and top-5 accuracy of ViT-tiny with RPC-Attention",
            source="ImageNet-1K, clean",
            why=_IMAGENET,
            instead="teo2024/robustness",
            command=_TRAIN,
            on_small_models=True,
        ),
        Untested(
            claim="mean corruption error, accuracy on adversarial examples, AUPR",
            source="ImageNet-C, -A, -O",
            why=_IMAGENET,
            instead="teo2024/robustness",
            command=_JUDGE,
        ),
        Untested(
            claim="accuracy under attacks with budgets of 1/255 and more",
            source="attacks on ImageNet-1K",
            why=_IMAGENET,
            instead="teo2024/robustness",
            command=_JUDGE,
            on_small_models=True,
        ),
        Untested(
            claim="the same gains in FAN, another architecture",
            source="ImageNet-1K and -C",
            why=_IMAGENET,
            instead="teo2024/robustness",
        ),
        Untested(
            claim="accuracy on ImageNet-R",
            source="ImageNet-R",
            why=_IMAGENET,
            command=_JUDGE,
        ),
        Untested(
            claim="accuracy under SLD, CW and noise attacks, and under AutoAttack",
            source="further attacks on ImageNet-1K",
            why=_IMAGENET + "; AutoAttack as a whole is not implemented",
            instead="teo2024/robustness",
        ),
        Untested(
            claim="the same gains for SymViT-base",
            source="ImageNet-1K, larger models",
            why=_IMAGENET,
            command=f"{_TRAIN} --preset paper-base",
        ),
        Untested(
            claim="accuracy on SST-2, SST-5 and IMDB",
            source="text classification",
            why="needs these corpora, which are not shipped",
            instead="teo2024/finetune",
            on_small_models=True,
        ),
        Untested(
            claim="accuracy of ViTs with asymmetric RPC-Attention",
            source="Table 14 and Appendix E.10",
            why=_IMAGENET,
            instead="teo2024/robustness",
            command=_JUDGE,
            on_small_models=True,
        ),
        Untested(
            claim="accuracy under the Square attack",
            source="Table 5",
            why=_IMAGENET + "; on small models the attack is run for λ = 0.1",
            instead="teo2024/masking",
            command=_JUDGE,
        ),
        Untested(
            claim="the cost is comparable at test time",
            source="Table 13",
            why="their GPU and models are not here; on a CPU the layer takes as long "
            "as one attention per iteration (Benchmarks)",
        ),
        Untested(
            claim="73.02 % against 72.18 % top-1 for scaled attention",
            source="ImageNet-1K",
            why=_IMAGENET,
            instead="teo2024/scaled",
            command=_TRAIN.replace("rpc", "scaled-scalar"),
        ),
        Untested(
            claim="perplexity of a 16-layer model, clean and with words swapped",
            source="WikiText-103",
            why="needs the corpus of 103 million tokens and GPU days",
            instead="teo2024/language",
            command="eigenheads train wikitext --data DATA --out RPC --variant rpc",
        ),
        Untested(
            claim="mean IoU and pixel accuracy, clean and corrupted",
            source="ADE20K",
            why="needs the images and a pretrained backbone",
            instead="teo2024/segmentation",
            on_small_models=True,
        ),
        Untested(
            claim="the fall of the reconstruction loss over 300 epochs of ViT-tiny",
            source="figure of the reconstruction loss",
            why=_IMAGENET + "; in public logs of the reproduction study it falls "
            "(DeiT-tiny: 4.93 to 1.86)",
            instead="teo2024/reconstruction",
        ),
        Untested(
            claim="eigenvalues up to 648.46 in the authors' trained models",
            source="table of eigenvalues",
            why="their weights are not shipped; that no Gram matrix as defined has "
            "them is a theorem (Attention as kernel PCA, Proposition 2)",
            instead="saritas2025/eigenvalues",
        ),
    ),
    "saritas2025": (
        Untested(
            claim="cosines and alignments of ten named models, one by one",
            source="tables of value vectors",
            why="their weights are not shipped; ours is a sentence encoder",
            instead="saritas2025/values",
            on_small_models=True,
        ),
        Untested(
            claim="norms, eigenvalues and γ of the models of the first paper",
            source="sections on the loss and on the Gram matrix",
            why="their checkpoints are not shipped",
            instead="saritas2025/norms",
            on_small_models=True,
        ),
    ),
    "arnaboldi2025": (
        Untested(
            claim="samples of order d, d log² d, d^(SIE − 1) by information exponent",
            source="Theorem 1",
            why="slopes over four decades of d for three targets take hours of "
            "processor time; the models can be declared",
        ),
        Untested(
            claim="a positional encoding lowers the flatness at the start, never "
            "raises it",
            source="Lemma 1",
            why="a statement on all targets; one case is the landscape of Figure 4",
            instead="arnaboldi2025/fig4",
        ),
        Untested(
            claim="the curves of Figure 3 at its own step sizes",
            source="Figure 3",
            why="25 million steps per run and 100 runs; ours vary the step instead, "
            "and recover at its best value",
            instead="arnaboldi2025/fig3",
        ),
    ),
    "duranthon2026": (
        Untested(
            claim="the test error of the trained head at n = αd samples, by replicas",
            source="finite samples, Figure 3",
            why="needs the fixed-point equations, which were not seen, or minimisers "
            "of the empirical risk; here training has fresh samples",
            instead="duranthon2026/training",
        ),
        Untested(
            claim="the constant L/(L − 1) of linear attention for L > 2",
            source="Corollary 4.3",
            why="two public readings disagree, L/((L − 1)ν) and (L − 1)/ν; our closed "
            "form has the constant L",
            instead="duranthon2026/population",
        ),
    ),
    "dohmatob2025": (
        Untested(
            claim="convergence for sign, ReLU and quadratic links",
            source="Figure 2 and Propositions 8 to 10",
            why="the links' settings are those of one empirical run each; the linear "
            "link is tested",
            instead="dohmatob2025/descent",
        ),
        Untested(
            claim="the limit d → ∞ with e^(αd) tokens",
            source="Propositions 1 and 2",
            why="e^(0.05 d) tokens are drawn one by one up to d = 180",
            instead="dohmatob2025/risk",
        ),
    ),
    "barnfield2026": (
        Untested(
            claim="the asymptotic test error of the trained classifier",
            source="the main theorem",
            why="its fixed-point equations were not seen",
        ),
        Untested(
            claim="the capacity, the largest data set that is typically separable",
            source="a conjecture, by a review",
            why="its formula was not seen",
        ),
    ),
    # No paper: what an evaluation of the screen should have as well.
    "screening": (
        Untested(
            claim="gains of the token screen on models of ImageNet",
            source="ours",
            why="ImageNet and the GPUs to train on it are not here",
            instead="screening/mnist",
        ),
    ),
}


def untested_claims(paper: str) -> tuple[Untested, ...]:
    """Return the claims of a paper that are not testable here.

    Examples
    --------
    >>> untested_claims("teo2024")[-5].instead
    'teo2024/scaled'
    """
    check_choice("paper", paper, list(_UNTESTED))
    return _UNTESTED[paper]
