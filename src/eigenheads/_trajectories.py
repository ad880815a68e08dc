"""What a simulation or a descent returns: named curves of several runs."""

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eigenheads._checks import Got, check_choice, fail
from eigenheads._files import read_arrays, write_arrays
from eigenheads._typing import FloatArray

if TYPE_CHECKING:
    import pandas as pd


class Trajectories(Mapping[str, FloatArray]):
    """Curves of `n_runs` runs, recorded at the same steps.

    Parameters
    ----------
    steps
        Number of updates made at each record (for a flow: the time); starts with 0.
    curves
        Arrays of shape ``(n_runs, n_records)``, by name.

    Examples
    --------
    >>> import numpy as np
    >>> paths = Trajectories([0, 10], {"kappa": np.array([[0.0, 0.5]])})
    >>> paths["kappa"].shape, paths.final("kappa")
    ((1, 2), array([0.5]))
    """

    def __init__(self, steps: ArrayLike, curves: Mapping[str, ArrayLike]) -> None:
        self.steps: NDArray[Any] = np.asarray(steps)
        self._curves = {
            name: np.asarray(curve, dtype=np.float64) for name, curve in curves.items()
        }
        for name, curve in self._curves.items():
            if curve.ndim != 2 or curve.shape[1] != len(self.steps):
                contract = f"of shape (n_runs, {len(self.steps)})"
                fail(name, contract, curve, owner="Trajectories")

    def __getitem__(self, name: str) -> FloatArray:
        check_choice("name", name, list(self._curves), owner="Trajectories")
        return self._curves[name]

    def __contains__(self, name: object) -> bool:
        return name in self._curves

    def __iter__(self) -> Iterator[str]:
        return iter(self._curves)

    def __len__(self) -> int:
        return len(self._curves)

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return next((len(curve) for curve in self._curves.values()), 0)

    @property
    def n_records(self) -> int:
        """Number of records a run."""
        return len(self.steps)

    def final(self, name: str) -> FloatArray:
        """Return the last record of every run."""
        return self[name][:, -1]

    def to_frame(self) -> "pd.DataFrame":
        """Return a tidy table: one row a run and record (extra ``frame``)."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "Trajectories.to_frame: pandas is not installed. "
                "Run `pip install 'eigenheads[frame]'`."
            ) from error
        columns: dict[str, NDArray[Any]] = {
            "run": np.repeat(np.arange(self.n_runs), self.n_records),
            "step": np.tile(self.steps, self.n_runs),
        }
        columns |= {name: curve.ravel() for name, curve in self.items()}
        return pd.DataFrame(columns)

    def save(self, path: str | PathLike[str]) -> None:
        """Write to one ``.npz`` file (no pickle; whole or not there)."""
        write_arrays(Path(path), {"steps": self.steps, **self._curves})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Trajectories":
        """Read what :meth:`save` wrote."""
        arrays: dict[str, Any] = {}
        try:
            arrays = dict(read_arrays(Path(path)))
        except FileNotFoundError:
            fail(
                "path",
                "an existing file",
                Got(repr(str(path))),
                owner="Trajectories.load",
            )
        except ValueError as error:
            contract = "a file written by Trajectories.save"
            fail("path", contract, Got(error), owner="Trajectories.load")
        if "steps" not in arrays:
            contract = "a file written by Trajectories.save"
            fail("path", contract, Got(repr(str(path))), owner="Trajectories.load")
        return cls(arrays.pop("steps"), arrays)

    def __repr__(self) -> str:
        return (
            f"Trajectories({', '.join(self)}; "
            f"n_runs={self.n_runs}, n_records={self.n_records})"
        )


def record_steps(n_steps: int, record_every: int) -> NDArray[np.int64]:
    """Return 0 and every multiple of `record_every` up to `n_steps`.

    Examples
    --------
    >>> record_steps(10, 4)
    array([0, 4, 8])
    """
    return np.arange(0, n_steps + 1, record_every)
