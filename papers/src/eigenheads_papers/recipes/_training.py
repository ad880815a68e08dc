"""Train a model by a recipe, on one process or many, and resume after a kill.

Everything random in update t depends on (seed, t, process) only: the order of the
examples, their crops, augmentation and dropout. So a checkpoint needs no state of a
random generator, and a resumed run computes the same numbers.
"""

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from eigenheads.extend import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_path,
    derived_seed,
    fail,
)
from eigenheads_papers.recipes._checkpoints import (
    RunFolder,
    checkpoints,
    load_optimizer,
    load_state,
    load_weights,
    save_checkpoint,
)
from eigenheads_papers.recipes._data import Place, Prefetch, epoch_order, shares
from eigenheads_papers.recipes._models import AttentionChoice
from eigenheads_papers.recipes._tasks import AbstractTask, TrainingSchedule, open_task

# Largest seed that PyTorch takes.
_MAX_SEED = 2**63 - 1
Tensors = tuple[Tensor, ...] | list[Tensor]


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


def train_model(
    recipe: str,
    *,
    data: str | Path,
    out: str | Path,
    preset: str = "paper",
    attention: AttentionChoice | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    accumulate: int = 1,
    precision: str = "no",
    checkpoint_every: int | None = None,
    seed: int = 0,
    n_threads: int = 4,
    progress: bool = False,
) -> TrainingResult:
    """Train a model, or continue the run in the folder `out`.

    Start it plainly for one process, or by ``torchrun`` or ``accelerate launch`` for
    several: processes share each batch.

    Parameters
    ----------
    recipe
        ``"imagenet"`` or ``"wikitext"``.
    data
        Folder of data: ``train/<class>/*`` and ``val/<class>/*`` of images, or
        ``train.txt`` and ``valid.txt``.
    out
        Folder of the run. A run of other settings is not overwritten.
    preset
        ``"paper"``, ``"small"`` or ``"smoke"``; for images also ``"paper-base"``.
    attention
        The attention of the layers; plain softmax attention by default.
    epochs, batch_size
        Replace those of the preset. The batch is that of one update, over all
        processes and accumulated parts.
    accumulate
        Parts into which a process divides its share of a batch, to save memory.
    precision
        ``"no"`` (float32), ``"bf16"`` or ``"fp16"``.
    checkpoint_every
        Updates between checkpoints; by default one per epoch. There is always one at
        the end, and one at SIGTERM.
    seed
        Seed of initial weights, order, augmentation and dropout.
    n_threads
        Images decoded at the same time, per process.
    progress
        Whether to show progress on standard error.

    Returns
    -------
    result
        Folder, updates made and metrics.
    """
    folders = [
        check_path(name, value) for name, value in (("data", data), ("out", out))
    ]
    choice = AttentionChoice() if attention is None else attention
    check_instance("attention", choice, AttentionChoice)
    progress = check_flag("progress", progress)
    check_choice("precision", precision, ("no", "bf16", "fp16"))
    accumulate = check_count("accumulate", accumulate)
    seed = check_count("seed", seed, minimum=0, maximum=_MAX_SEED)
    changes = {"epochs": epochs, "batch_size": batch_size}
    changes = {
        name: check_count(name, value)
        for name, value in changes.items()
        if value is not None
    }
    task = open_task(
        recipe,
        folders[0],
        preset=preset,
        attention=choice,
        n_threads=check_count("n_threads", n_threads),
        changes=changes,
    )
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), gradient_accumulation_steps=accumulate
    )
    run = TrainingRun(task, accelerator, folders[1], seed=seed, precision=precision)
    run.resume_or_start({"recipe": recipe, "preset": preset, "seed": seed, **changes})
    every = run.steps_per_epoch
    if checkpoint_every is not None:
        every = check_count("checkpoint_every", checkpoint_every)
    return run.train(checkpoint_every=every, progress=progress)


class TrainingRun:
    """State of a training run in one process."""

    def __init__(
        self,
        task: AbstractTask,
        accelerator: Accelerator,
        folder: Path,
        *,
        seed: int,
        precision: str,
    ) -> None:
        self.task, self.accelerator, self.folder = task, accelerator, folder
        self.files = RunFolder(folder)
        self.seed, self.step = seed, 0
        self.metrics: dict[str, float] = {}
        schedule = task.preset.schedule
        self.batch_size = schedule.batch_size
        # Every process takes an equal share of a batch and divides it into equal parts,
        # so the batch must be divisible by both numbers.
        n_parts = accelerator.num_processes * accelerator.gradient_accumulation_steps
        if self.batch_size % n_parts:
            contract = f"a multiple of processes × accumulated parts = {n_parts}"
            fail("batch_size", contract, self.batch_size)
        # The last, incomplete batch of an epoch is left out.
        self.steps_per_epoch = len(task.train) // self.batch_size
        if not self.steps_per_epoch:
            contract = f"at least one batch of {self.batch_size} examples"
            fail("data", contract, Got(f"{len(task.train)} examples"))
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
        # Accelerate fixes one precision for a whole process, and scales no losses on a
        # CPU. A process may train several models, so the precision is set here.
        self.precision = precision
        # Gradients in half precision underflow unless the loss is scaled up.
        self.scaler = torch.amp.GradScaler(
            accelerator.device.type, enabled=precision == "fp16"
        )
        self.model = accelerator.prepare(plain)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(plain, schedule.weight_decay), lr=schedule.learning_rate
        )

    def resume_or_start(self, settings: Mapping[str, Any]) -> None:
        """Load the last checkpoint of the folder, or begin a run in it."""
        attention = self.task.record()["attention"]
        self.settings = {
            **settings,
            "attention": attention,
            "precision": self.precision,
        }
        stored = checkpoints(self.folder / "checkpoints")
        if stored:
            self._load(stored[-1])
        if self.accelerator.is_main_process:
            self.files.cut_log(self.step)

    def _load(self, checkpoint: Path) -> None:
        state = load_state(checkpoint)
        if state["settings"] != self.settings:
            changed = sorted(
                name
                for name in {*state["settings"], *self.settings}
                if state["settings"].get(name) != self.settings.get(name)
            )
            contract = "a new folder or that of a run with the same settings"
            got = Got(f"{self.folder}, whose run has other {', '.join(changed)}")
            fail("out", contract, got)
        weights = load_weights(checkpoint / "model.safetensors")
        average = load_weights(checkpoint / "average.safetensors")
        states = load_optimizer(checkpoint)
        try:
            self.accelerator.unwrap_model(self.model).load_state_dict(weights)
            self.average.module.load_state_dict(average)
            self.optimizer.load_state_dict(states["optimizer"])
            self.scaler.load_state_dict(states["scaler"])
            self.step = check_count(
                "step", state["step"], minimum=0, maximum=self.n_steps
            )
            self.metrics = {name: float(x) for name, x in state["metrics"].items()}
        except Exception as error:  # whatever a forged file contains
            first = (str(error).strip().splitlines() or [""])[0]
            got = Got(f"{checkpoint} ({type(error).__name__}: {first})"[:300])
            contract = "the folder of a run whose last checkpoint is whole"
            hint = "Remove this checkpoint to continue from the one before it."
            fail("out", contract, got, hint=hint)
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
        for _ in range(self.accelerator.gradient_accumulation_steps):
            inputs, targets = batches.next()
            # Gradients are exchanged between processes with the last part only.
            with self.accelerator.accumulate(self.model):
                with self._autocast():
                    loss = self.task.loss(self.model, inputs, targets)
                self.accelerator.backward(self.scaler.scale(loss))
            total += loss.detach() / self.accelerator.gradient_accumulation_steps
        if math.isfinite(schedule.clip):
            # The clip value refers to the true gradient: remove the scale of the loss
            # first.
            self.scaler.unscale_(self.optimizer)
            self.accelerator.clip_grad_norm_(self.model.parameters(), schedule.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.accelerator.unwrap_model(self.model))
        mean = float(self.accelerator.reduce(total, reduction="mean"))
        # The mean is the same in every process, so all of them fail together.
        if not math.isfinite(mean):
            got = Got(f"loss {mean} at update {self.step + 1}")
            hint = "Lower the learning rate, or use precision bf16 or no."
            fail("loss", "finite", got, hint=hint)
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
        n_parts = self.accelerator.gradient_accumulation_steps
        part = share // n_parts
        epoch, order = -1, np.empty(0, dtype=np.int64)
        for step in range(self.step, self.n_steps):
            # A resumed run begins in the middle of an epoch, whose order is drawn
            # again.
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                order = epoch_order(n, seed=self.seed, epoch=epoch, repeats=repeats)
            begin = (step % self.steps_per_epoch) * size
            for piece in range(n_parts):
                first = self.accelerator.process_index * share + piece * part
                chosen = order[begin + first : begin + first + part]
                yield Place(chosen.tolist(), (self.seed, step), first)

    def _log(self, **entry: Any) -> None:
        if self._is_main:
            self.files.log(entry)


# --- Parts of an update --------------------------------------------------------------


def learning_rate(schedule: TrainingSchedule, step: int, steps_per_epoch: int) -> float:
    """Return the step size of an update: a linear rise, then half a cosine."""
    n_steps = schedule.epochs * steps_per_epoch
    warmup = schedule.warmup_epochs * steps_per_epoch
    if step < warmup:
        # The first step is positive, and the rise reaches its peak at the first update
        # after it.
        return schedule.learning_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(n_steps - warmup, 1.0)
    span = schedule.learning_rate - schedule.final_learning_rate
    return schedule.final_learning_rate + span * (1 + math.cos(math.pi * done)) / 2


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameters with and without weight decay.

    Vectors (biases, norms) and embeddings of positions and classes are not decayed.
    """
    exempt: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_vector = parameter.ndim <= 1
        is_embedding = name in ("pos_embed", "cls_token", "position")
        (exempt if is_vector or is_embedding else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": exempt, "weight_decay": 0.0},
    ]


def weight_average(
    decay: float,
) -> Callable[[Tensors, Tensors, Any], None]:
    """Return the update of the running average of the weights.

    The decay is smaller at the beginning, so that the start is soon forgotten.
    """

    @torch.no_grad()
    def update(averages: Tensors, values: Tensors, count: Any) -> None:
        n = float(count)
        weight = 1.0 - min(decay, (1.0 + n) / (10.0 + n))
        for average, value in zip(averages, values, strict=True):
            average.lerp_(value.to(average), weight)

    return update


def combined_seed(*parts: int) -> int:
    """Return one seed made of several numbers."""
    # The shift keeps the seed within a signed integer of 64 bits.
    return derived_seed(*parts, n_bits=64) >> 1


# --- Progress and signals ------------------------------------------------------------


@contextmanager
def noticing_sigterm() -> Iterator[list[bool]]:
    """Yield a flag that SIGTERM sets, so that a run stops after the update."""
    flag = [False]

    def notice(number: int, frame: FrameType | None) -> None:
        flag[0] = True

    try:
        before = signal.signal(signal.SIGTERM, notice)
    except ValueError:  # signals can only be handled in the main thread
        yield flag
        return
    try:
        yield flag
    finally:
        signal.signal(signal.SIGTERM, before)


class ProgressLine:
    """Updates, loss and time left, on standard error, at most every few seconds."""

    def __init__(self, n_steps: int, step: int, *, shown: bool) -> None:
        self._n_steps, self._first, self._shown = n_steps, step, shown
        self._begun = time.monotonic()
        self._every = 0.5 if sys.stderr.isatty() else 30.0
        self._last = -math.inf

    def show(self, step: int, loss: float) -> None:
        """Show the state after an update."""
        now = time.monotonic()
        if not self._shown or (now - self._last < self._every and step < self._n_steps):
            return
        self._last = now
        # Updates of an earlier call took none of this time, so they do not count.
        per_step = (now - self._begun) / (step - self._first)
        remaining = round(per_step * (self._n_steps - step))
        text = (
            f"update {step}/{self._n_steps}, loss {loss:.4f}, {_clock(remaining)} left"
        )
        is_terminal = sys.stderr.isatty()
        # On a terminal each line replaces the one before. Elsewhere every line is kept.
        end = "\n" if not is_terminal or step == self._n_steps else ""
        start = "\r\033[K" if is_terminal else ""
        sys.stderr.write(start + text + end)
        sys.stderr.flush()


def _clock(seconds: int) -> str:
    hours, below_hour = divmod(seconds, 3600)
    return f"{hours}:{below_hour // 60:02d}:{below_hour % 60:02d}"
