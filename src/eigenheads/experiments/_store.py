"""Results on disk: one folder each, whole or not there.

A folder holds ``table.npz`` (arrays, no pickle), ``figure.svg`` and
``manifest.json``. The manifest is written last and carries the digest of the arrays:
a folder without one is not a result, so a kill at any moment loses at most what was
under way.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import eigenheads
from eigenheads._files import (
    read_arrays,
    remove_leftovers,
    write_arrays,
    write_atomically,
)
from eigenheads.experiments._core import Claim, Result

FORMAT = "eigenheads-result/1"
_MANIFEST, _TABLE, _FIGURE = "manifest.json", "table.npz", "figure.svg"
# What draws or prints cannot change a result.
_NOT_COMPUTING = {"plotting", "report", "cli.py", "__main__.py", "experiments"}


class StoreError(ValueError):
    """A file in the store is damaged or not ours; the message names it."""


@cache
def code_version(paper: str) -> str:
    """Return the package version and a digest of the code that computes a paper."""
    root = Path(eigenheads.__file__).parent
    shared = [
        file
        for file in root.rglob("*.py")
        if file.relative_to(root).parts[0] not in _NOT_COMPUTING
    ]
    own = [*root.glob("experiments/_core.py"), *root.glob(f"experiments/{paper}/*.py")]
    digest = hashlib.sha256()
    for file in sorted([*shared, *own]):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        digest.update(file.read_bytes() + b"\0")
    return f"{eigenheads.__version__}+{digest.hexdigest()[:10]}"


def plain_params(params: Any) -> dict[str, Any]:
    """Return a parameter dataclass as JSON values (tuples become lists)."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(params)))
    return plain


def result_folder(
    root: Path,
    *,
    key: str,
    preset: str,
    seed: int,
    params: Mapping[str, Any],
    code: str,
) -> Path:
    """Return the one folder of what was asked for."""
    asked = json.dumps([key, preset, seed, params, code], sort_keys=True)
    digest = hashlib.sha256(asked.encode()).hexdigest()[:10]
    return root / key / f"{preset}-seed{seed}-{digest}"


@cache
def drawing_version() -> str:
    """Return a digest of the code that draws."""
    digest = hashlib.sha256()
    for file in sorted((Path(eigenheads.__file__).parent / "plotting").glob("*.py")):
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()[:10]


def save_result(folder: Path, result: Result) -> None:
    """Write a result; whoever reads sees all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    (folder / _MANIFEST).unlink(missing_ok=True)
    write_arrays(folder / _TABLE, result.table)
    write_atomically(folder / _FIGURE, lambda file: _write(file, result.figure))
    manifest = {
        "format": FORMAT,
        "key": result.key,
        "preset": result.preset,
        "seed": result.seed,
        "params": result.params,
        "code": result.code,
        "created": result.created,
        "seconds": round(result.seconds, 3),
        "versions": result.versions,
        "drawing": result.drawing,
        "table_sha256": _digest(folder / _TABLE),
        "claims": [_claim_to_json(claim) for claim in result.claims],
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(folder / _MANIFEST, lambda file: _write(file, text.encode()))


def load_result(folder: Path) -> Result | None:
    """Read a result; None if there is no whole one; an error that names a bad file."""
    path = folder / _MANIFEST
    if not path.is_file():
        return None
    manifest = _read_manifest(path)
    table = folder / _TABLE
    try:
        if _digest(table) != manifest["table_sha256"]:
            raise _damaged(table, "its digest is not the one in manifest.json")
        arrays = read_arrays(table)
        claims = tuple(_claim_from_json(claim) for claim in manifest["claims"])
        return Result(
            key=manifest["key"],
            preset=manifest["preset"],
            seed=manifest["seed"],
            params=manifest["params"],
            code=manifest["code"],
            table={name: array.astype(np.float64) for name, array in arrays.items()},
            claims=claims,
            seconds=float(manifest["seconds"]),
            created=manifest["created"],
            versions=manifest["versions"],
            figure=(folder / _FIGURE).read_bytes(),
            drawing=manifest["drawing"],
            reused=True,
        )
    except StoreError:
        raise
    except OSError as error:
        path = Path(error.filename or table)
        raise _damaged(path, f"it cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"a field is missing or wrong: {error}") from error


def stored_results(root: Path) -> Iterator[Result]:
    """Yield every whole result below a folder, in the order of their paths."""
    for path in sorted(root.glob(f"*/*/*/{_MANIFEST}")):
        result = load_result(path.parent)
        if result is not None:
            yield result


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, "it is not JSON text") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _damaged(path, f"it does not say format {FORMAT!r}")
    return manifest


def _damaged(path: Path, why: str) -> StoreError:
    return StoreError(
        f"store: `{path}` must be a whole file of a result; got a damaged or foreign "
        f"one ({why}). Run `eigenheads reproduce` with --force to compute it again, "
        "or remove its folder."
    )


def _claim_to_json(claim: Claim) -> dict[str, Any]:
    # JSON has no NaN; a number that could not be measured is null.
    fields = dataclasses.asdict(claim)
    fields["measured"] = claim.measured if math.isfinite(claim.measured) else None
    return {**fields, "verdict": claim.verdict}


def _claim_from_json(fields: Mapping[str, Any]) -> Claim:
    known = {name: value for name, value in fields.items() if name != "verdict"}
    if known["measured"] is None:
        known["measured"] = math.nan
    return Claim(**known)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(file: Any, content: bytes) -> None:
    file.write(content)
