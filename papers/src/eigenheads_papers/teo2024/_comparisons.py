"""Claims on differences between small models, paired over seeds. No torch here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads_papers._claims import (
    Claim,
    as_questions,
    at_least,
    at_most,
    difference,
    in_family,
    judged_if,
    no_difference,
    undecided_because,
)
from eigenheads_papers._core import Table
from eigenheads_papers._statistics import mean_estimate

# Points of accuracy that plain attention must lose for a condition to count.
MINIMAL_LOSS = 10.0
BASELINE: Final = "symmetric"
# Names of models are those of `robustness.MODELS`, which says what each stands for.
PRINCIPAL: Final = "RPC n=4"
SHARPENED: Final = "S = 0, n=4"
# Table of the paper per condition; asymmetric attention has clean accuracy only.
_TABLES: Final = {
    "clean": "teo2024, Table 1",
    "all corruptions": "teo2024, Table 1",
    "corruptions": "teo2024, Table 1",
    "attack": "teo2024, Table 2",
}
_ASYMMETRIC: Final = "teo2024, Table 14 and Appendix E.10"
_FIXED: Final = "the margin is a parameter, fixed before the run"
_SAID: Final = {
    "clean": "clean accuracy",
    "all corruptions": "accuracy under 15 corruptions, all severities",
    "corruptions": "accuracy under 15 corruptions, severities 3 and 5",
    "attack": "accuracy under PGD",
    "replaced": "accuracy with a quarter of the patches replaced",
}
# Further models of the paper, each with the baseline that it is compared with.
_CLAIMED: Final = {
    "RPC n=5": BASELINE,
    "RPC n=6": BASELINE,
    "RPC n=2, all layers": BASELINE,
    "asymmetric RPC n=4, then softmax": "softmax",
}
# Pairs of models that differ in one part of the layer.
_CONTROLS: Final = (
    ("threshold of the text, n=4", BASELINE),
    ("RPC n=4, then softmax", "symmetric, then softmax"),
    ("right sign, n=4", PRINCIPAL),
    ("right sign, n=2", PRINCIPAL),
    (BASELINE, "softmax"),
)


@dataclass(frozen=True)
class Measured:
    """Accuracies of models, as means over parts of the conditions.

    Attributes
    ----------
    table
        The table of the simulation.
    models, conditions
        Names along the first two axes of ``table["accuracy"]``.
    few
        Conditions under which every model was measured.
    attack, replaced
        The condition of the attack that decides, and of replaced patches.
    """

    table: Table
    models: Sequence[str]
    conditions: Sequence[str]
    few: Sequence[str]
    attack: str
    replaced: str

    def __call__(self, part: str, model: str) -> FloatArray:
        """Return one accuracy per seed; NaN for seeds that were not run."""
        accuracies = self.table["accuracy"][self.models.index(model)]
        return np.asarray(accuracies[self._rows(part)].mean(axis=0))

    def _rows(self, part: str) -> list[int]:
        single = {"clean": "clean", "attack": self.attack, "replaced": self.replaced}
        if part in single:
            return [self.conditions.index(single[part])]
        # The corruptions are the conditions that are neither of these nor an attack.
        apart = (*single.values(), *(x for x in self.conditions if "attack" in x))
        among = self.few if part == "corruptions" else self.conditions
        return [
            i for i, x in enumerate(self.conditions) if x in among and x not in apart
        ]

    def gaps(self, part: str, model: str, baseline: str) -> FloatArray:
        """Return the differences of two models over the seeds of both."""
        values = self(part, model) - self(part, baseline)
        return np.asarray(values[~np.isnan(values)])

    def layer(self, column: str, model: str) -> FloatArray:
        """Return a measurement of the first layer, one per seed."""
        values = self.table[column][self.models.index(model)]
        return np.asarray(values[~np.isnan(values)])


def robustness_claims(
    of: Measured, *, margin: float, least_accuracy: float, undecided: str
) -> list[Claim]:
    """Return all claims of `teo2024/robustness`.

    Parameters
    ----------
    of
        The accuracies.
    margin
        Points of accuracy within which two models count as equal.
    least_accuracy
        Clean accuracy that softmax attention must reach, in percent.
    undecided
        Reason why a run decides nothing, or an empty text.
    """
    able = undecided_because(undecided, _able(of, least_accuracy))
    comparisons = [
        # The three claims for which the number of seeds was chosen.
        *in_family(
            "RPC-Attention, n = 4",
            [
                _ahead(of, part, PRINCIPAL, BASELINE, source=_TABLES[part])
                for part in ("clean", "all corruptions", "attack")
            ],
        ),
        *in_family(
            "other models with RPC-Attention",
            [
                _ahead(of, part, name, baseline, source=_source(part, baseline))
                for name, baseline in _CLAIMED.items()
                if {name, baseline} <= {*of.models}
                for part in ("clean", "corruptions", "attack")
            ],
        ),
        *in_family("S against S = 0", _equal(of, margin)),
        *in_family(
            "controls of RPC-Attention",
            [
                _ahead(of, part, name, baseline)
                for name, baseline in _CONTROLS
                if {name, baseline} <= {*of.models}
                for part in ("clean", "corruptions", "attack")
            ],
        ),
        *in_family("reaction of S", _reaction(of)),
    ]
    # The second control: models that a linear classifier nearly equals say nothing.
    judged = [_weighed(claim, margin) for claim in judged_if(able[1], comparisons)]
    return [*as_questions(able), *undecided_because(undecided, judged)]


def _source(part: str, baseline: str) -> str:
    if baseline == BASELINE:
        return _TABLES[part]
    return _ASYMMETRIC if part == "clean" else "question"


def _weighed(claim: Claim, margin: float) -> Claim:
    """Return a claim of the paper, undecided if the difference counts as none."""
    low, high = claim.interval or (-math.inf, math.inf)
    if claim.is_check or not -margin < low <= high < margin:
        return claim
    return replace(claim, undecided=f"within ± {margin:g}, which counts as the same")


def _able(of: Measured, least: float) -> list[Claim]:
    """Return whether the models can show anything."""
    plain = "softmax" if "softmax" in of.models else BASELINE
    accuracies = of("clean", plain)
    accuracies = accuracies[~np.isnan(accuracies)]
    linear = of.layer("linear", plain)
    lost = accuracies - of("attack", plain)[: len(accuracies)]
    return [
        at_least(
            f"{plain}: clean accuracy, in percent",
            mean_estimate(accuracies),
            least,
            "the models have to be well trained",
        ),
        at_least(
            f"{plain}: clean accuracy less that of a linear classifier, in points",
            mean_estimate(accuracies - linear),
            5.0,
            "a task that a linear classifier solves says nothing of attention",
        ),
        at_least(
            f"{plain}: accuracy that PGD takes, in points",
            mean_estimate(lost),
            MINIMAL_LOSS,
            "where nothing is lost, nothing can be kept",
        ),
    ]


def _ahead(
    of: Measured,
    part: str,
    model: str,
    baseline: str,
    *,
    source: str = "question",
) -> Claim:
    owner = "symmetric attention" if baseline == BASELINE else baseline
    return difference(
        f"{model}: {_SAID[part]} less that of {owner}, in points",
        mean_estimate(of.gaps(part, model, baseline)),
        source=source,
    )


def _equal(of: Measured, margin: float) -> list[Claim]:
    return [
        no_difference(
            f"{PRINCIPAL} against {SHARPENED}: {_SAID[part]}, in points",
            mean_estimate(of.gaps(part, PRINCIPAL, SHARPENED)),
            margin,
            _FIXED,
            source="question",
        )
        for part in ("clean", "all corruptions", "attack", "replaced")
    ]


def _reaction(of: Measured) -> list[Claim]:
    """Return whether S takes more of corrupted inputs, and of corrupted tokens."""
    layer = partial(of.layer, model=PRINCIPAL)
    clean = layer("flagged")
    gaps: Mapping[str, FloatArray] = {
        "under Gaussian noise (severity 5) less on clean images": layer("flagged_noisy")
        - clean,
        "with replaced patches less on clean images": layer("flagged_replaced") - clean,
        "in replaced tokens less in intact ones": layer("flagged_hit")
        - layer("flagged_intact"),
    }
    return [
        difference(
            f"{PRINCIPAL}: share of key entries that S takes, {text}, in points",
            mean_estimate(values),
            source="question",
        )
        for text, values in gaps.items()
    ]


def sparsity_claims(of: Measured, *, margin: float, undecided: str) -> list[Claim]:
    """Return the shares of S as λ falls, and the differences from S = 0."""
    swept = [name for name in of.models if name.startswith("λ")]
    shares = {name: float(of.layer("flagged", name).mean()) for name in swept}
    return as_questions(
        [
            at_most(
                f"share of key entries that S takes at {swept[0]}, in percent",
                shares[swept[0]],
                10.0,
                "the threshold is 16 times the mean absolute key",
            ),
            at_least(
                f"share of key entries that S takes at {swept[-1]}, in percent",
                shares[swept[-1]],
                50.0,
                "the sweep must reach where S takes most of the keys",
            ),
            *undecided_because(
                undecided,
                in_family(
                    "S against S = 0, as λ falls",
                    [
                        no_difference(
                            f"{name}, S takes {shares[name]:.1f} % of the keys: "
                            f"{_SAID[part]} less that with S = 0, in points",
                            mean_estimate(of.gaps(part, name, SHARPENED)),
                            margin,
                            _FIXED,
                        )
                        for name in swept
                        for part in ("clean", "corruptions", "attack")
                    ],
                ),
            ),
        ]
    )
