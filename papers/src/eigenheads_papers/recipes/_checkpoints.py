"""Files of a training run: whole or not there, and read as data.

A checkpoint is a folder ``step-00001234`` with ``model.safetensors``,
``average.safetensors``, ``optimizer.pt`` and ``state.json``. It is written under a
temporary name and renamed, so a killed run leaves whole checkpoints only. The folder
of a run has ``checkpoints/``, ``log.jsonl`` and at the end ``model/``.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from eigenheads.extend import Got, check_regular, check_stored, fail, write_atomically
from eigenheads_papers.recipes._tasks import check_record, rebuild_model

_PREFIX = "step-"
# Bytes of state.json: settings, metrics and the record of a model.
_LARGEST_STATE = 2**24


def save_checkpoint(
    folder: Path,
    state: Mapping[str, Any],
    *,
    model: Mapping[str, Tensor],
    average: Mapping[str, Tensor],
    optimizer: Mapping[str, Any],
) -> Path:
    """Write a checkpoint, and remove all but the last two."""
    final = folder / f"{_PREFIX}{state['step']:08d}"
    temporary = folder / f".{final.name}.tmp"
    # A killed run may have left a part of this checkpoint.
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(_plain(model), temporary / "model.safetensors")
    save_file(_plain(average), temporary / "average.safetensors")
    torch.save(dict(optimizer), temporary / "optimizer.pt")
    (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
    # The data must be on disk before the rename. Otherwise a crash of the machine could
    # leave a checkpoint with its final name and empty files.
    for path in temporary.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for old in checkpoints(folder)[:-2]:
        shutil.rmtree(old)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, the last one last."""
    return sorted(folder.glob(f"{_PREFIX}*"))


def load_state(checkpoint: Path) -> dict[str, Any]:
    """Return ``state.json`` of a checkpoint."""
    path = checkpoint / "state.json"
    try:
        check_regular(path, _LARGEST_STATE)
        state = json.loads(path.read_text(encoding="utf-8"))
        for part in (state, state["record"], state.setdefault("settings", {})):
            if not isinstance(part, dict):
                raise ValueError("no record of a model")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        got = Got(f"{checkpoint} ({type(error).__name__})")
        contract = "a checkpoint that `eigenheads train` wrote"
        fail("checkpoint", contract, got)
    return state


def load_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file."""
    try:
        # A pipe would never end. Sizes in the file are compared with its own.
        check_regular(path, math.inf)
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        got = Got(f"{path} ({type(error).__name__})")
        fail("checkpoint", "a whole safetensors file", got)


def load_optimizer(checkpoint: Path) -> dict[str, Any]:
    """Return the states of optimizer and loss scaler; no code is executed."""
    path = checkpoint / "optimizer.pt"
    try:
        check_regular(path, math.inf)
        check_stored(path)
        states: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        got = Got(f"{path} ({type(error).__name__})")
        fail("checkpoint", "a file of plain tensors", got)
    return states


def load_checkpoint(path: str | Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return the averaged model of a checkpoint or run, and its state."""
    folder = Path(path)
    if (folder / "model" / "state.json").is_file():
        folder = folder / "model"
    state = load_state(folder)
    record: dict[str, Any] = state["record"]
    contract = "a checkpoint that `eigenheads train` wrote"
    # A checkpoint holds current and averaged weights. The final model holds the
    # averaged weights only, as model.safetensors.
    average = folder / "average.safetensors"
    weights = load_weights(
        average if average.is_file() else folder / "model.safetensors"
    )
    try:
        check_record(record, n_tensors=len(weights))
        # The first model has shapes only, so that a forged size needs no memory.
        with torch.device("meta"):
            rebuild_model(record).load_state_dict(weights, assign=True)
        model = rebuild_model(record)
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        got = Got(f"{folder}, whose tensors do not fit ({reason})")
        fail("checkpoint", contract, got)
    except Exception as error:  # whatever a forged record makes of a model
        reason = " ".join(str(error).split())[:120]
        got = Got(f"{folder}, whose record is not that of a model ({reason})")
        fail("checkpoint", contract, got)
    return model, state


class RunFolder:
    """The log of a run and its final model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append a line to ``log.jsonl``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def cut_log(self, step: int) -> None:
        """Remove lines of updates after the checkpoint: they are made again."""
        path = self.folder / "log.jsonl"
        if not path.is_file():
            return
        entries = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # the last line of a killed run may be cut
                continue
            number = entry.get("step", 0) if isinstance(entry, dict) else None
            if isinstance(number, int) and number <= step:
                entries.append(line + "\n")
        write_atomically(path, lambda file: _write_text(file, entries))

    def write_model(self, weights: Mapping[str, Tensor], state: Any) -> None:
        """Write the averaged weights under ``model/``, for evaluation and timm."""
        folder = self.folder / "model"
        folder.mkdir(exist_ok=True)
        # The rename is atomic, so no reader sees half of the file.
        temporary = folder / ".model.safetensors.tmp"
        save_file(_plain(weights), temporary)
        temporary.replace(folder / "model.safetensors")
        text = json.dumps(state, indent=1)
        write_atomically(folder / "state.json", lambda file: _write_text(file, [text]))


def _write_text(file: Any, lines: list[str]) -> None:
    file.write("".join(lines).encode("utf-8"))


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
