"""The loop of a training run.

Everything random in update t depends on (seed, t, process) only: the order of the
examples, their crops, augmentation and dropout. So a checkpoint needs no state of a
random generator, and a resumed run computes the same numbers.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.swa_utils import AveragedModel

from eigenheads.extend import Got, check_count, fail
from eigenheads_papers.recipes._batches import Place, Prefetch, epoch_order, shares
from eigenheads_papers.recipes._checkpoints import (
    RunFolder,
    checkpoints,
    load_optimizer,
    load_state,
    load_weights,
    save_checkpoint,
)
from eigenheads_papers.recipes._optimization import (
    combined_seed,
    learning_rate,
    parameter_groups,
    weight_average,
)
from eigenheads_papers.recipes._progress import ProgressLine, noticing_sigterm
from eigenheads_papers.recipes._tasks import AbstractTask

_OWNER = "train"


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """Outcome of a call of :func:`train_model`.

    Attributes
    ----------
    folder
        Folder of the run: ``log.jsonl``, ``checkpoints/`` and, at the end, ``model/``.
    step, n_steps
        Updates made, and updates of the whole run.
    metrics
        Metrics of the last evaluation, empty if there was none.
    """

    folder: Path
    step: int
    n_steps: int
    metrics: Mapping[str, float]

    @property
    def is_finished(self) -> bool:
        """True if the run has made all its updates."""
        return self.step == self.n_steps


class TrainingRun:
    """State of a training run in one process."""

    def __init__(
        self,
        task: AbstractTask,
        accelerator: Accelerator,
        folder: Path,
        *,
        seed: int,
        accumulate: int,
        precision: str,
    ) -> None:
        self.task, self.accelerator, self.folder = task, accelerator, folder
        self.files = RunFolder(folder)
        self.seed, self.accumulate, self.step = seed, accumulate, 0
        self.metrics: dict[str, float] = {}
        schedule = task.preset.schedule
        self.batch_size = schedule.batch_size
        # Every process takes an equal share of a batch and divides it into equal parts,
        # so the batch must be divisible by both numbers.
        n_parts = accelerator.num_processes * accumulate
        if self.batch_size % n_parts:
            contract = f"a multiple of processes × accumulated parts = {n_parts}"
            fail("batch_size", contract, self.batch_size, owner=_OWNER)
        # The last, incomplete batch of an epoch is left out.
        self.steps_per_epoch = len(task.train) // self.batch_size
        if not self.steps_per_epoch:
            contract = f"at least one batch of {self.batch_size} examples"
            fail("data", contract, Got(f"{len(task.train)} examples"), owner=_OWNER)
        self.n_steps = schedule.epochs * self.steps_per_epoch
        # The seed is set before the model is built, so that all processes begin with
        # the same weights.
        torch.manual_seed(seed)
        plain = task.build_model()
        # The average copies the model before it is wrapped, so that the names of its
        # tensors have no prefix of a wrapper.
        self.average = AveragedModel(
            plain, multi_avg_fn=weight_average(schedule.average_decay)
        ).to(accelerator.device)
        self.precision = precision
        # Gradients in half precision underflow unless the loss is scaled up.
        self.scaler = torch.amp.GradScaler(
            accelerator.device.type, enabled=precision == "fp16"
        )
        self.model = accelerator.prepare(plain)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(plain, schedule.weight_decay), lr=schedule.learning_rate
        )

    # Resuming

    def resume_or_start(self, settings: Mapping[str, Any]) -> None:
        """Load the last checkpoint of the folder, or begin a run in it."""
        attention = self.task.record()["attention"]
        self.settings = {
            **settings,
            "attention": attention,
            "precision": self.precision,
        }
        found = checkpoints(self.folder / "checkpoints")
        if found:
            self._load(found[-1])
        if self.accelerator.is_main_process:
            self.files.cut_log(self.step)

    def _load(self, checkpoint: Path) -> None:
        state = load_state(checkpoint, owner=_OWNER)
        if state["settings"] != self.settings:
            changed = sorted(
                name
                for name in {*state["settings"], *self.settings}
                if state["settings"].get(name) != self.settings.get(name)
            )
            contract = "a new folder or that of a run with the same settings"
            got = Got(f"{self.folder}, whose run has other {', '.join(changed)}")
            fail("out", contract, got, owner=_OWNER)
        weights = load_weights(checkpoint / "model.safetensors", owner=_OWNER)
        average = load_weights(checkpoint / "average.safetensors", owner=_OWNER)
        states = load_optimizer(checkpoint, owner=_OWNER)
        try:
            self.accelerator.unwrap_model(self.model).load_state_dict(weights)
            self.average.module.load_state_dict(average)
            self.optimizer.load_state_dict(states["optimizer"])
            self.scaler.load_state_dict(states["scaler"])
            self.step = check_count(
                "step", state["step"], owner=_OWNER, minimum=0, maximum=self.n_steps
            )
            self.metrics = {name: float(x) for name, x in state["metrics"].items()}
        except Exception as error:  # whatever a forged file contains
            first = (str(error).strip().splitlines() or [""])[0]
            got = Got(f"{checkpoint} ({type(error).__name__}: {first})"[:300])
            contract = "the folder of a run whose last checkpoint is whole"
            hint = "Remove this checkpoint to continue from the one before it."
            fail("out", contract, got, owner=_OWNER, hint=hint)
        # The weight of the average depends on this count. Without it, a resumed run
        # would average differently.
        self.average.n_averaged.fill_(self.step)

    def save(self) -> None:
        """Write a checkpoint from the main process; the others wait."""
        if self.accelerator.is_main_process:
            save_checkpoint(
                self.folder / "checkpoints",
                self._state(),
                model=self.accelerator.unwrap_model(self.model).state_dict(),
                average=self.average.module.state_dict(),
                optimizer={
                    "optimizer": self.optimizer.state_dict(),
                    "scaler": self.scaler.state_dict(),
                },
            )
        self.accelerator.wait_for_everyone()

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "n_steps": self.n_steps,
            "metrics": self.metrics,
            "settings": self.settings,
            "record": self.task.record(),
        }

    # Training

    def train(self, *, checkpoint_every: int, progress: bool) -> TrainingResult:
        """Make the remaining updates."""
        display = ProgressLine(
            self.n_steps, self.step, shown=progress and self._is_main
        )
        with (
            noticing_sigterm() as stop,
            Prefetch(
                self._places(), self.task.train, self.accelerator.device
            ) as batches,
        ):
            saved = self.step
            # All processes must leave the loop at the same update. If one stopped
            # alone, the others would wait for its gradients.
            while self.step < self.n_steps and not self._agreed(stop[0]):
                begun = time.perf_counter()
                loss, rate = self._update(batches)
                self.step += 1
                self._log(
                    step=self.step,
                    epoch=self.step / self.steps_per_epoch,
                    loss=loss,
                    learning_rate=rate,
                    seconds=time.perf_counter() - begun,
                )
                display.show(self.step, loss)
                if self.step % self.steps_per_epoch == 0:
                    self._evaluate()
                if self.step % checkpoint_every == 0:
                    self.save()
                    saved = self.step
            # SIGTERM may end the loop between two checkpoints.
            if saved != self.step:
                self.save()
        if self.step == self.n_steps and self._is_main:
            self.files.write_model(self.average.module.state_dict(), self._state())
        self.accelerator.wait_for_everyone()
        return TrainingResult(
            folder=self.folder,
            step=self.step,
            n_steps=self.n_steps,
            metrics=self.metrics,
        )

    @property
    def _is_main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    def _update(self, batches: Prefetch) -> tuple[float, float]:
        """Make one update; return the loss and the step size."""
        schedule = self.task.preset.schedule
        rate = learning_rate(schedule, self.step, self.steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # Augmentation and dropout of this update, different in every process.
        torch.manual_seed(
            combined_seed(self.seed, self.step, self.accelerator.process_index)
        )
        self.model.train()
        total = torch.zeros((), device=self.accelerator.device)
        # Parts have equal sizes, so the mean over them is the loss of the whole share.
        for part in range(self.accumulate):
            inputs, targets = batches.next()
            is_last = part == self.accumulate - 1
            # Gradients are exchanged between processes with the last part only.
            quiet = nullcontext() if is_last else self.accelerator.no_sync(self.model)
            with quiet:
                with self._autocast():
                    loss = self.task.loss(self.model, inputs, targets)
                torch.autograd.backward(self.scaler.scale(loss / self.accumulate))
            total += loss.detach() / self.accumulate
        if math.isfinite(schedule.clip):
            # The clip value refers to the true gradient: remove the scale of the loss
            # first.
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), schedule.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.accelerator.unwrap_model(self.model))
        mean = float(self.accelerator.reduce(total, reduction="mean"))
        # The mean is the same in every process, so all of them fail together.
        if not math.isfinite(mean):
            got = Got(f"loss {mean} at update {self.step + 1}")
            hint = "Lower the learning rate, or use precision bf16 or no."
            fail("loss", "finite", got, owner=_OWNER, hint=hint)
        return mean, rate

    def _autocast(self) -> Any:
        """Return the context in which the model computes in lower precision."""
        types = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if self.precision not in types:
            return nullcontext()
        return torch.autocast(self.accelerator.device.type, types[self.precision])

    def _agreed(self, wants_stop: bool) -> bool:
        """Return whether any process was told to stop."""
        if self.accelerator.num_processes == 1:
            return wants_stop
        flag = torch.tensor(float(wants_stop), device=self.accelerator.device)
        return float(self.accelerator.reduce(flag)) > 0.0

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Score the averaged weights on the held-out examples."""
        self.average.eval()
        reader, accelerator = self.task.valid, self.accelerator
        sums = torch.zeros(len(self.task.metrics) + 1, dtype=torch.float64)
        for indices in shares(len(reader), 64, accelerator):
            inputs, targets = reader.read(indices, seed=(0,), first=0)
            logits = self.average(inputs.to(accelerator.device))
            sums += self.task.score(logits, targets.to(accelerator.device))
        sums = accelerator.reduce(sums.to(accelerator.device)).cpu()
        means = (sums[:-1] / sums[-1]).tolist()
        self.metrics = dict(zip(self.task.metrics, means, strict=True))
        self._log(step=self.step, evaluation=self.metrics)

    def _places(self) -> Iterator[Place]:
        """Yield the parts of the remaining batches that this process reads."""
        n, size = len(self.task.train), self.batch_size
        repeats = self.task.preset.augmentation.repeats
        share = size // self.accelerator.num_processes
        part = share // self.accumulate
        epoch, order = -1, np.empty(0, dtype=np.int64)
        for step in range(self.step, self.n_steps):
            # A resumed run begins in the middle of an epoch, whose order is drawn
            # again.
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                order = epoch_order(n, seed=self.seed, epoch=epoch, repeats=repeats)
            begin = (step % self.steps_per_epoch) * size
            for piece in range(self.accumulate):
                first = self.accelerator.process_index * share + piece * part
                chosen = order[begin + first : begin + first + part]
                yield Place(chosen.tolist(), (self.seed, step), first)

    def _log(self, **entry: Any) -> None:
        if self._is_main:
            self.files.log(entry)
