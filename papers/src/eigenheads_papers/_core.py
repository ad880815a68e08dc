"""Parts of an experiment: parameters, a simulation, claims, a drawing, its seeds."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from eigenheads import __version__
from eigenheads.extend import generator, html_table
from eigenheads_papers._claims import (
    Claim,
    count_verdicts,
    format_expected,
    format_measured,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Named float arrays: figures and claims are made from these alone.
Table: TypeAlias = Mapping[str, NDArray[np.float64]]
Params = TypeVar("Params")


_Value = TypeVar("_Value")


def parameter(default: _Value, meaning: str) -> _Value:
    """Return a field of a dataclass of parameters that says what it means.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Sizes:
    ...     d: int = parameter(80, "dimension of the tokens")
    >>> Sizes().d
    80
    """
    value: _Value = field(default=default, metadata={"meaning": meaning})
    return value


@dataclass(frozen=True)
class Run(Generic[Params]):
    """Parameters and table of one simulation."""

    params: Params
    table: Table


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Title, authors and summary of a paper, as the report shows them.

    A module of your own may define one as ``paper``, with the key of its experiments.

    Attributes
    ----------
    key
        The part of the experiments' keys before the slash.
    title, authors, reference, summary
        Texts; all but the title may be empty.
    """

    key: str
    title: str
    authors: str = ""
    reference: str = ""
    summary: str = ""


@dataclass(frozen=True, kw_only=True)
class Boundary(Generic[Params]):
    """Theoretical line in the plane of two parameters.

    Attributes
    ----------
    label
        Name of the line, for the legend.
    distance
        Function of the parameters that is zero on the line and changes its sign there.
    between
        Whether it is cheap enough to be evaluated between the points of a grid.
    """

    label: str
    distance: Callable[[Params], float]
    between: bool = True


@dataclass(frozen=True, kw_only=True)
class Cells(Generic[Params]):
    """Unit of a sweep: one run at one point of the parameters, as named numbers.

    Attributes
    ----------
    presets
        Parameters by name of the preset; a sweep varies fields of these.
    run
        Function of parameters and random generator that returns named numbers, without
        input or output.
    shows
        The numbers that the map shows, the most important one first.
    boundaries
        Theoretical lines, by the number whose map they belong to.
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
        Description of the figure, and the settings that differ from the paper.
    presets
        Parameters by name: ``"smoke"`` (seconds), ``"demo"`` and ``"paper"``.
    simulate
        Function of parameters and random generator that returns a table, without input
        or output.
    check
        Function of a run that returns its claims.
    draw
        Function of a figure and a run that draws, without simulation.
    work
        Number of steps over all runs that `simulate` reports, for the progress bar.
    size
        Width and height of the figure in inches.
    cells
        Unit of a sweep; without it, a sweep records the measured numbers of the claims.
    needs
        Extras of the package that `simulate` imports, such as ``"torch"``, and
        ``"minilm"`` for the packaged sentence encoder.
    files
        Function of the parameters that returns the files of real data that `simulate`
        reads.
    with_data
        Function from parameters to those of a run that also uses real data, if that is
        optional; `files` of the new parameters returns these files.
    tabulate
        Function of a run that returns a table of texts for the report, heads first;
        None for none.
    is_users
        Whether it judges models of the user, so that no run of ours is on record.
    tolerance
        Largest difference between machines of the table at preset smoke, as a share of
        the largest number of its column: 1e-10, and more for fits and trainings.
    unstable
        Columns of that table that may differ by more, because a search that starts from
        other roundings may end elsewhere.
    """

    key: str
    title: str
    source: str
    about: str
    presets: Mapping[str, Params]
    simulate: Callable[[Params, np.random.Generator], Table]
    # Claims and drawings get a finished run only, so that both can be made again from a
    # stored table without a new simulation.
    check: Callable[[Run[Params]], list[Claim]]
    draw: Callable[["Figure", Run[Params]], None]
    work: Callable[[Params], float] = field(default=lambda params: 1.0)
    size: tuple[float, float] = (9.0, 6.5)
    cells: Cells[Any] | None = None
    needs: tuple[str, ...] = ()
    files: Callable[[Params], tuple[str, ...]] = field(default=lambda params: ())
    with_data: Callable[[Params], Params] | None = None
    tabulate: Callable[[Run[Params]], list[list[str]]] | None = None
    is_users: bool = False
    tolerance: float = 1e-10
    unstable: tuple[str, ...] = ()

    @property
    def paper(self) -> str:
        """The key of the paper."""
        return self.key.partition("/")[0]

    @property
    def version(self) -> str:
        """Version of the package; for code of a user, with a digest of its files."""
        functions = [self.simulate, *([self.cells.run] if self.cells else [])]
        sources = dict.fromkeys(map(_users_source, functions))
        content = b"".join(source for source in sources if source)
        if not content:
            return __version__
        return f"{__version__}+{hashlib.sha256(content).hexdigest()[:10]}"


def _users_source(function: Any) -> bytes:
    """Return the file that defines a function; nothing for one of this package."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    module = getattr(function, "__module__", None) or ""
    if function is None or module.partition(".")[0] == __name__.partition(".")[0]:
        return b""
    try:
        return Path(inspect.getsourcefile(function) or "").read_bytes()
    except (OSError, TypeError):  # defined interactively, or a callable object
        code: bytes = getattr(getattr(function, "__code__", None), "co_code", b"-")
        return code


@dataclass(frozen=True, kw_only=True)
class Result:
    """A stored result: the request, the table, the claims and the drawing.

    Attributes
    ----------
    key, preset, seed, params
        The request; `params` as plain JSON values.
    version
        Version of the package that computed it; see :attr:`Experiment.version`.
    table
        The arrays.
    claims
        The claims, measured.
    seconds
        Time of the simulation.
    created
        Time of completion (ISO 8601, UTC).
    versions
        Of Python and the libraries.
    figure
        The drawing as SVG.
    reused
        Whether it was read from the store instead of computed.
    """

    key: str
    preset: str
    seed: int
    params: Mapping[str, Any]
    version: str
    table: Table
    claims: tuple[Claim, ...]
    seconds: float
    created: str
    versions: Mapping[str, str]
    figure: bytes
    reused: bool = False

    @property
    def changed(self) -> tuple[Claim, ...]:
        """The claims whose verdict differs from the record."""
        return tuple(claim for claim in self.claims if claim.is_changed)

    def _repr_html_(self) -> str:
        """Return the claims as a table for notebooks."""
        rows = [
            (c.statement, c.source, format_expected(c), format_measured(c), c.verdict)
            for c in self.claims
        ]
        header = ["claim", "source", "expected", "measured", "verdict"]
        title = f"{self.key}, preset {self.preset}, seed {self.seed}"
        note = f"{count_verdicts(self.claims)}; {self.seconds:.1f} s"
        return html_table(title, header, rows, notes=[note], n_texts=2)


def experiment_rng(key: str, seed: int) -> np.random.Generator:
    """Return the generator of one experiment: it depends on key and seed alone."""
    # A digest of the key separates the streams: adding or reordering experiments
    # changes no result of another one.
    words = np.frombuffer(hashlib.sha256(key.encode()).digest()[:16], dtype=np.uint32)
    spawn_key = tuple(int(word) for word in words)
    return generator(seed, *spawn_key)


def drawn_seed(rng: np.random.Generator) -> int:
    """Draw a seed, for functions that take a seed instead of a generator."""
    return int(rng.integers(2**63))
