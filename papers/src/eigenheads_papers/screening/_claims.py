"""Claims on token screens, from accuracies by training, condition and remedy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads_papers._claims import (
    Claim,
    at_least,
    at_most,
    difference,
    in_family,
    no_difference,
)
from eigenheads_papers._statistics import mean_estimate

if TYPE_CHECKING:
    from eigenheads_papers.screening.images import Params

_REPLACED: Final = "4 of 16 patches from other images"
_FIXED: Final = "the margin is a parameter, fixed before the run"


@dataclass(frozen=True)
class ScreenedAccuracies:
    """Accuracies in percent: kinds of training by seeds by conditions by remedies.

    Attributes
    ----------
    table
        The accuracies.
    axes
        Names along the first, the third and the last axis.
    screen
        Name of the remedy that is judged.
    """

    table: FloatArray
    axes: tuple[Sequence[str], Sequence[str], Sequence[str]]
    screen: str

    def __call__(self, kind: str, condition: str, remedy: str = "none") -> FloatArray:
        """Return one accuracy per seed."""
        kinds, conditions, remedies = self.axes
        place = conditions.index(condition), remedies.index(remedy)
        return np.asarray(self.table[kinds.index(kind), :, *place])

    def gain(self, kind: str, condition: str, remedy: str) -> FloatArray:
        """Return accuracy with a remedy less accuracy without one."""
        return self(kind, condition, remedy) - self(kind, condition)

    def screened(self, condition: str) -> FloatArray:
        """Return what the screen changes in models trained with dropped tokens."""
        return self.gain("dropped", condition, self.screen)


def screening_claims(
    of: ScreenedAccuracies,
    linear: FloatArray,
    params: "Params",
    *,
    shown: Mapping[str, str],
    undecided: str,
) -> list[Claim]:
    """Return our checks, family by family.

    Parameters
    ----------
    of
        The accuracies.
    linear
        Accuracy of a linear classifier on clean images, one per seed.
    params
        The margins.
    shown
        The conditions in words.
    undecided
        Reason why a run decides nothing, or an empty text.
    """
    families = {
        "gains by the screen": _gains(of, shown, undecided),
        "costs of the screen": _costs(of, params, shown, undecided),
        "headroom": _headroom(of, params, undecided),
        "training": _training(of, undecided),
        "limits of the screen": _limits(of, params, undecided),
        "variants and baselines": _variants(of, params, undecided),
    }
    return _trained(of, linear, params, undecided) + [
        claim for name, claims in families.items() for claim in in_family(name, claims)
    ]


def _trained(
    of: ScreenedAccuracies, linear: FloatArray, params: "Params", undecided: str
) -> list[Claim]:
    clean = (
        at_least(
            f"{kind}: clean accuracy, in percent",
            mean_estimate(of(kind, "clean")),
            params.least_accuracy,
            "the models have to be well trained",
            undecided=undecided,
        )
        for kind in of.axes[0]
    )
    return [
        *clean,
        at_least(
            "plain: clean accuracy less that of a linear classifier, in points",
            mean_estimate(of("plain", "clean") - linear),
            5.0,
            "a task that a linear classifier solves says nothing of attention",
            undecided=undecided,
        ),
    ]


def _gains(
    of: ScreenedAccuracies, shown: Mapping[str, str], undecided: str
) -> list[Claim]:
    gains = {
        f"dropped: gain by the screen, {shown[name]}": of.screened(name)
        for name in ("replaced 4", "saturated 4")
    }
    gains[f"dropped: the screen less as many random tokens, {_REPLACED}"] = of.screened(
        "replaced 4"
    ) - of.gain("dropped", "replaced 4", "random")
    return _differences(gains, undecided)


def _costs(
    of: ScreenedAccuracies, params: "Params", shown: Mapping[str, str], undecided: str
) -> list[Claim]:
    return [
        at_least(
            f"dropped: change by the screen, {shown[name]}, in points",
            mean_estimate(of.screened(name)),
            -params.margin,
            _FIXED,
            undecided=undecided,
            on_record=(
                "undecided" if "noise" in name and not params.photographs else "held"
            ),
        )
        for name in ("clean", "gaussian noise", "impulse noise", "blur")
    ]


def _headroom(of: ScreenedAccuracies, params: "Params", undecided: str) -> list[Claim]:
    oracle = {
        kind: of.gain(kind, "replaced 4", "oracle") for kind in ("plain", "dropped")
    }
    more = f"{_REPLACED}: gain by the oracle, dropped less plain"
    return _differences({more: oracle["dropped"] - oracle["plain"]}, undecided) + [
        at_most(
            f"{kind}: the screen less the oracle, {_REPLACED}, in points",
            mean_estimate(of.gain(kind, "replaced 4", of.screen) - gain),
            params.margin,
            # Not a theorem: hiding a token that is intact may help a model, too.
            "the oracle knows the corrupted tokens, so that a screen should hardly "
            "gain more",
            undecided=undecided,
        )
        for kind, gain in oracle.items()
    ]


def _training(of: ScreenedAccuracies, undecided: str) -> list[Claim]:
    dropped = of("dropped", "replaced 4")
    return _differences(
        {
            f"{_REPLACED}: dropped less plain, no screen": dropped
            - of("plain", "replaced 4"),
            f"{_REPLACED}: dropped less augmented, no screen": dropped
            - of("augmented", "replaced 4"),
            "4 patches saturated: dropped with the screen less plain without": of(
                "dropped", "saturated 4", of.screen
            )
            - of("plain", "saturated 4"),
        },
        undecided,
    )


def _limits(of: ScreenedAccuracies, params: "Params", undecided: str) -> list[Claim]:
    small = partial(at_most, bound=params.margin, why=_FIXED, undecided=undecided)
    return [
        small(
            "dropped: gain by the screen, PGD on either model, in points",
            mean_estimate(of.screened("pgd")),
        ),
        small(
            "dropped: gain by the screen, 4 patches change places, in points",
            mean_estimate(of.screened("shuffled 4")),
            on_record="held" if params.photographs else "undecided",
        ),
        *_differences(
            {
                "dropped with the screen: accuracy under 4 optimised patches less "
                "under the same aimed at the screen": of(
                    "dropped", "patches", of.screen
                )
                - of("dropped", "patches aimed", of.screen)
            },
            undecided,
        ),
    ]


def _variants(of: ScreenedAccuracies, params: "Params", undecided: str) -> list[Claim]:
    first, last = (f"screen {params.calibration[at]}" for at in (0, -1))
    gain = partial(of.gain, "dropped", "replaced 4")
    alike = {
        f"dropped: imputed less hidden, {_REPLACED}, in points": gain("impute")
        - gain(of.screen),
        f"dropped: {last} less {first} calibration images, {_REPLACED}, in points": (
            gain(last) - gain(first)
        ),
    }
    return [
        no_difference(
            statement,
            mean_estimate(values),
            2 * params.margin,
            _FIXED,
            undecided=undecided,
            on_record="undecided",
        )
        for statement, values in alike.items()
    ] + _differences(
        {
            f"dropped: the screen less a median filter, {_REPLACED}": gain(of.screen)
            - gain("median")
        },
        undecided,
    )


def _differences(values: Mapping[str, FloatArray], undecided: str) -> list[Claim]:
    return [
        difference(f"{statement}, in points", mean_estimate(one), undecided=undecided)
        for statement, one in values.items()
    ]
