"""What an experiment is: parameters, a simulation, claims, a drawing."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Named float arrays: all that a figure and its claims are made from.
Table: TypeAlias = Mapping[str, NDArray[np.float64]]
Relation: TypeAlias = Literal["≈", "≥", "≤"]
Verdict: TypeAlias = Literal["reproduced", "not reproduced"]
Outcome: TypeAlias = Literal["reproduced", "not reproduced", "undecided"]
Params = TypeVar("Params")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of a paper as a number that is either met or not.

    Attributes
    ----------
    statement
        What is claimed, in words.
    source
        Where: paper and section, figure or theorem; "ours" where it is our own.
    relation
        ``≈`` within the tolerance, ``≥`` or ``≤`` up to the tolerance.
    expected, measured
        The claim's number and ours.
    tolerance
        How far off the measured number may be.
    reason
        Why this tolerance.
    on_record
        Our standing verdict. A run that comes to another one is news.
    undecided
        Why a run of other sizes than the one on record cannot tell; empty where it
        can.

    Examples
    --------
    >>> claim = Claim(statement="half", source="ours", relation="≈", expected=0.5,
    ...               measured=0.52, tolerance=0.05, reason="binomial error")
    >>> claim.verdict, claim.is_news
    ('reproduced', False)
    """

    statement: str
    source: str
    relation: Relation
    expected: float
    measured: float
    tolerance: float
    reason: str
    on_record: Verdict = "reproduced"
    undecided: str = ""

    @property
    def holds(self) -> bool:
        """Whether the measured number meets the claim (NaN never does)."""
        gap = self.measured - self.expected
        if math.isnan(gap):
            return False
        if self.relation == "≥":
            return gap >= -self.tolerance
        if self.relation == "≤":
            return gap <= self.tolerance
        return abs(gap) <= self.tolerance

    @property
    def verdict(self) -> Outcome:
        """What this run says."""
        if self.undecided:
            return "undecided"
        return "reproduced" if self.holds else "not reproduced"

    @property
    def is_news(self) -> bool:
        """Whether this run's verdict differs from the one on record."""
        return self.verdict not in (self.on_record, "undecided")


def claim(
    statement: str,
    relation: Relation,
    expected: float,
    measured: float,
    tolerance: float,
    reason: str,
    *,
    source: str,
    on_record: Verdict = "reproduced",
) -> Claim:
    """Return a claim in the order in which it is said: shorter to write."""
    return Claim(
        statement=statement,
        source=source,
        relation=relation,
        expected=expected,
        measured=float(measured),
        tolerance=tolerance,
        reason=reason,
        on_record=on_record,
    )


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What the report says of a paper before its figures."""

    key: str
    title: str
    authors: str
    reference: str
    summary: str


@dataclass(frozen=True, kw_only=True)
class Boundary(Generic[Params]):
    """A line of theory in the plane of two parameters.

    Attributes
    ----------
    label
        What the line is, for the legend.
    distance
        Parameters to a number that is zero on the line and changes its sign there.
    between
        Whether it is cheap enough to be asked also between the points of a grid.
    """

    label: str
    distance: Callable[[Params], float]
    between: bool = True


@dataclass(frozen=True, kw_only=True)
class Cells(Generic[Params]):
    """What a sweep computes: one run at one point of parameters, as named numbers.

    Attributes
    ----------
    presets
        Parameters by name of the preset; a sweep varies fields of these.
    run
        Parameters and randomness to named numbers. No input or output.
    shows
        The numbers that the map shows, the most important one first.
    boundaries
        Theory's lines, by the number whose map they belong to.
    """

    presets: Mapping[str, Params]
    run: Callable[[Params, np.random.Generator], Mapping[str, float]]
    shows: tuple[str, ...]
    boundaries: Mapping[str, Boundary[Params]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[Params]):
    """One figure of one paper, split into pure stages.

    Attributes
    ----------
    key
        ``"<author><year>/<figure>"``, the name on the command line.
    title
        One line, without a period.
    source
        The figure or table of the paper, or "ours".
    about
        What is shown and which settings are ours and not the paper's.
    presets
        Parameters by name: ``"smoke"`` (seconds), ``"demo"`` and ``"paper"``.
    simulate
        Parameters and randomness to a table. No input or output.
    check
        Parameters and table to claims.
    draw
        Figure, parameters and table to a drawing. No simulation.
    work
        Steps over all runs that `simulate` reports, for the progress bar.
    size
        Width and height of the figure in inches.
    cells
        What a sweep computes; without it, the measured numbers of the claims.
    needs
        Extras of the package that `simulate` imports, such as ``"torch"``, and
        ``"minilm"`` for the packaged sentence encoder.
    files
        Parameters to the files of real data that `simulate` reads.
    with_data
        Parameters to those of a run that also uses real data, where that is optional
        (`files` of the new parameters says which).
    """

    key: str
    title: str
    source: str
    about: str
    presets: Mapping[str, Params]
    simulate: Callable[[Params, np.random.Generator], Table]
    check: Callable[[Params, Table], list[Claim]]
    draw: Callable[["Figure", Params, Table], None]
    work: Callable[[Params], float] = field(default=lambda params: 1.0)
    size: tuple[float, float] = (9.0, 6.5)
    cells: Cells[Any] | None = None
    needs: tuple[str, ...] = ()
    files: Callable[[Params], tuple[str, ...]] = field(default=lambda params: ())
    with_data: Callable[[Params], Params] | None = None

    @property
    def paper(self) -> str:
        """The key of the paper."""
        return self.key.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One whole result: what was asked, what came out, what it says.

    Attributes
    ----------
    key, preset, seed, params
        What was asked for; `params` as plain JSON values.
    code
        Version of the package and digest of the code that computed it.
    table
        The arrays.
    claims
        The claims, measured.
    seconds
        Time of the simulation.
    created
        When it was finished (ISO 8601, UTC).
    versions
        Of Python and the libraries.
    figure
        The drawing as SVG.
    drawing
        Digest of the code that drew it.
    reused
        Whether it was read from the store instead of computed.
    """

    key: str
    preset: str
    seed: int
    params: Mapping[str, Any]
    code: str
    table: Table
    claims: tuple[Claim, ...]
    seconds: float
    created: str
    versions: Mapping[str, str]
    figure: bytes
    drawing: str
    reused: bool = False

    @property
    def news(self) -> tuple[Claim, ...]:
        """The claims whose verdict differs from the record."""
        return tuple(claim for claim in self.claims if claim.is_news)
