"""Data of others: the MUSK sets, read from a folder, and passages of English text."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, check_path, fail
from eigenheads._errors import UsageError
from eigenheads._files import check_gzip, check_regular
from eigenheads._typing import FloatArray

_N_FEATURES = 166
# Bytes of an unpacked file; MUSK2 has five million.
_LARGEST = 2**28
_HINT = (
    "Download it from the UCI Machine Learning Repository, data sets 74 and 75, and "
    "pass the folder with `clean1.data` or `clean2.data`."
)


class MuskBags(NamedTuple):
    """Molecules as bags of conformations."""

    bags: list[FloatArray]
    targets: NDArray[np.bool_]
    molecules: list[str]


def load_musk(folder: str | PathLike[str], *, version: int = 1) -> MuskBags:
    """Read MUSK1 or MUSK2: molecules as bags of conformations, musk or not.

    The data are those of [1]_. They are not shipped: download them from the UCI Machine
    Learning Repository, data sets 74 and 75, where their licence is stated.

    Parameters
    ----------
    folder
        Folder with ``clean1.data`` or ``clean2.data`` of the UCI repository, or with
        ``musk1.csv.gz`` or ``musk2.csv.gz``, whose columns are the label, the number of
        the molecule and 166 features.
    version
        1 for 92 molecules with 476 conformations, 2 for 102 with 6 598.

    Returns
    -------
    musk
        ``bags``, arrays (n_conformations, 166); ``targets``, whether the molecule is a
        musk; ``molecules``, their names.

    References
    ----------
    .. [1] Dietterich, Lathrop, Lozano-Pérez (1997). Solving the multiple instance
       problem with axis-parallel rectangles.
    """
    if not isinstance(version, int) or version not in (1, 2):
        fail("version", "1 or 2", version)
    root = check_path("folder", folder)
    names = (f"clean{version}.data", f"musk{version}.csv.gz")
    paths = [root / name for name in names if (root / name).is_file()]
    if not paths:
        contract = f"a folder with the file of MUSK{version}"
        fail("folder", contract, Got(repr(str(root))), hint=_HINT)
    check_table(paths[0])
    return _grouped(paths[0])


def check_table(path: Path) -> None:
    """Raise unless a file is a table of limited size with finite features."""
    if path.suffix == ".gz":
        check_gzip("folder", path, "data of MUSK", largest=_LARGEST)
    try:
        check_regular(path, _LARGEST)
        for molecule, features, _ in _lines(path):
            if not all(map(math.isfinite, features)):
                raise ValueError(f"numbers of {molecule} that are not finite")
    except UsageError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        got = Got(f"{path.name} ({type(error).__name__}: {str(error)[:80]})")
        fail("folder", "data of MUSK", got, hint=_HINT)


def _grouped(path: Path) -> MuskBags:
    rows: dict[str, list[list[float]]] = {}
    labels: dict[str, bool] = {}
    for molecule, features, is_musk in _lines(path):
        rows.setdefault(molecule, []).append(features)
        labels[molecule] = is_musk
    if not rows:
        fail("folder", "data of MUSK", Got(f"no rows in {path.name}"))
    return MuskBags(
        [np.array(bag) for bag in rows.values()],
        np.array(list(labels.values())),
        list(rows),
    )


def _lines(path: Path) -> Iterator[tuple[str, list[float], bool]]:
    """Yield molecule, features and label of each conformation."""
    is_compressed = path.suffix == ".gz"
    with gzip.open(path, "rt") if is_compressed else path.open() as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if not row:
                continue
            if len(row) < _N_FEATURES + 2:
                got = Got(f"{len(row)} columns in line {number} of {path.name}")
                fail("folder", "data of MUSK", got, hint=_HINT)
            if is_compressed:
                yield row[1], [float(x) for x in row[2:]], float(row[0]) > 0
            else:  # molecule, conformation, features, label with a full stop
                label = float(row[-1].rstrip("."))
                yield row[0], [float(x) for x in row[2:-1]], label > 0


def load_passages() -> list[str]:
    """Return 12 passages of plain English, about many subjects.

    Examples
    --------
    >>> len(load_passages())
    12
    """
    text = (files("eigenheads.datasets") / "texts.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]
