"""The training loop: one for every model of the family.

Everything that happens in an update is a function of the seed, the update's number and the weights before it: the
batches, their order, dropout, hidden and forced tokens. So a run that was killed goes on from its last checkpoint and
ends with the same weights, bit for bit, as one that never stopped.

Several processes make the same updates, each from its share of the batches (`ranks.py`). The first of them writes.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import exp, inf, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.checkpoint import store
from regard.core.atomic_io import remove_leftovers
from regard.core.errors import Diverged, InterruptedTraining, TrainingFailed
from regard.core.metric_names import HIGHER_IS_BETTER
from regard.core.sanitize import as_json_line
from regard.core.shapes import Float, Tensor
from regard.data.batching import Batch
from regard.kernels.triton_launch import HostFuture
from regard.model.interfaces import CarriedState
from regard.model.seq2seq import Model
from regard.training.config import TrainConfig
from regard.training.cuda_graphs import GraphedUpdate
from regard.training.distributed import ALONE, GradientBuckets, ProcessGroup
from regard.training.objective import Objective, Speak, first_state
from regard.training.optimizers import WeightAverage, make_optimiser, moments, put_moments, step_if_finite
from regard.training.run_state import PendingUpdate, RunState
from regard.training.schedules import Validation, ValidationHistory, rate_at
from regard.training.signals import heard
from regard.training.telemetry.log_file import cut

if TYPE_CHECKING:
    from regard.training.fsdp import ShardedModel

SKIPS = 10  # updates that may be skipped one after the other before training counts as diverged


class Trainer:
    """A model on its way, with all that must be saved to go on."""

    def __init__(
        self,
        model: Model,
        config: TrainConfig,
        *,
        epoch_batches: Callable[[int, int], Iterator[Batch]],  # an epoch's batches from the n-th on
        texts: dict[str, str],  # of every checkpoint: configuration, vocabularies, card
        run: Path,
        data_key: str,
        lanes: int | None = None,  # rows of carried text
        validate: Callable[[Model], Validation] | None = None,
        speak: Speak | None = None,  # learn from what the model says
        tell: Callable[[dict[str, Any]], None] = lambda event: None,
        ranks: ProcessGroup = ALONE,  # who trains this model; the batches are this one's share
        device: str = "cpu",  # where the parts of a model go that is to be divided; any other is in its place
    ) -> None:
        self.model, self.config, self.run, self.texts, self.data_key = model, config, run, texts, data_key
        self.epoch_batches, self.validate, self.tell, self.ranks = epoch_batches, validate, tell, ranks
        self.objective = Objective(
            config.label_smoothing,
            config.mask_probability,
            config.scheduled_sampling,
            config.r_drop,
            config.doubly_stochastic,
            speak,
        )
        self.gradients = None if ranks.alone or config.fsdp else GradientBuckets(model, ranks)
        self.sharded = _sharded(model, self.objective, ranks, device) if config.fsdp and not ranks.alone else None
        self.device = next(model.parameters()).device
        self.optimiser = make_optimiser(model, config)
        self.mean = None if config.ema_decay is None else WeightAverage(model, config.ema_decay)
        self.position = RunState()
        self.unread: PendingUpdate | None = None
        self.norm = 0.0  # of the last gradient that was looked at
        self.lanes = lanes
        self.carried = self._first_state()
        self.asked_to_stop: int | None = None
        self.agreed_to_stop: int | None = None  # at the end of an update, by all ranks
        self.replay = GraphedUpdate(model, self._warn) if config.cuda_graphs else None
        self.lags = self.device.type == "cuda"  # behind the host

    def fit(self) -> RunState:
        """Train to the end, or until a signal, a fault or early stopping; checkpoints on the way."""
        path = self.run / "log.jsonl" if self.ranks.first else Path(os.devnull)
        with heard(self._hear), path.open("a", encoding="utf-8") as log:
            self.model.train()
            if self._due:
                self._check(log)
            began, groups = time.perf_counter(), self._groups()
            while not self.done:
                rate = self._update(next(groups))
                step = self.position.step
                if step % self.config.log_every == 0 or step == self.config.max_steps:
                    self._settle()
                    self._log(log, self._event(rate, time.perf_counter() - began))
                    began = time.perf_counter()
                if self._due:
                    self._check(log)
                    began = time.perf_counter()
                elif self._stopping is not None:
                    self.save()
                if self._stopping is not None:
                    raise InterruptedTraining(self._stopping, self.run)
        return self.position

    @property
    def _due(self) -> bool:
        """Whether it is time to validate, which a run that was stopped may have left to do."""
        step, config = self.position.step, self.config
        return not self.position.checked and (step % config.validate_every == 0 or step >= config.max_steps)

    @property
    def done(self) -> bool:
        over = self.position.step >= self.config.max_steps or self.position.course.over(self.config)
        return over and not self._due

    def _groups(self) -> Iterator[list[Batch]]:
        """The batches of each update; groups do not reach over the end of an epoch."""
        while True:
            batches = self.epoch_batches(self.position.epoch, self.position.batch)
            found = False
            while group := self._next_group(batches):
                found = True
                yield group
            if not found and self.position.batch == 0:
                raise TrainingFailed("train: wanted at least one batch of examples; got none. Is the corpus empty?")
            self.position = replace(self.position, epoch=self.position.epoch + 1, batch=0)
            self.carried = self._first_state()

    def _next_group(self, batches: Iterator[Batch]) -> list[Batch]:
        group: list[Batch] = []
        try:
            while _taken(group) < self.config.accumulate_steps and (batch := next(batches, None)) is not None:
                group.append(batch)
            return group
        except Exception as error:
            raise TrainingFailed(
                f"step {self.position.step + 1}: wanted its batches; got {type(error).__name__}: {error}. "
                "The checkpoints before it are as they were: see to the data, and resume."
            ) from error

    def _update(self, group: list[Batch]) -> float:
        """One update, by the loss of all these batches' tokens over their number; its rate."""
        position, config = self.position, self.config
        torch.manual_seed(self.ranks.seed(config.seed, position.step))
        if config.unfreeze_after is not None and position.epoch >= config.unfreeze_after:
            self.model.requires_grad_(True)
        rate = rate_at(position.step, config, position.course.factor)
        for parameters in self.optimiser.param_groups:
            parameters["lr"] = rate
        self.optimiser.zero_grad(set_to_none=True)
        # Of all ranks' tokens nobody knows the number yet: they are divided by it when all gradients are there.
        # Nor does a recording, of packed batches, each of which has another.
        known = self.ranks.alone and not config.packed
        expected = sum(batch.tokens for batch in group) if known else 1
        total, tokens, carried = torch.zeros((), dtype=torch.float64, device=self.device), 0, self.carried
        for turn, batch in enumerate(group, start=1):
            if turn == len(group) and self.gradients is not None:
                self.gradients.expect()
            try:
                if self.replay is None:
                    loss, count, carried = self._gradient(batch, expected, carried)
                else:
                    loss = self.replay(batch, lambda batch: self._gradient(batch, expected, None)[0])
                    count = batch.tokens
            except (torch.OutOfMemoryError, RuntimeError) as error:
                raise self._failure(error, batch) from error
            total, tokens = total + loss, tokens + count
        total, tokens = self._of_all_ranks(total, tokens)
        # A masked-token head decides as it goes how many it hides. Of empty texts that is none, and nothing is learned.
        told, taken = self._step(total, expected / tokens) if tokens else None, position.batch + _taken(group)
        self.position = replace(position, step=position.step + 1, batch=taken, checked=False)
        self._settle()  # of the update before; a GPU has this one to do meanwhile
        self.unread = None if told is None else PendingUpdate(self.position.step, tokens, told, carried)
        if not self.lags or self.mean is not None or self.carried is not None:  # which the next update needs
            self._settle()
        return rate

    def _step(self, total: Float[Tensor, ""], scale: float) -> HostFuture:
        """Change the weights by their gradients, scaled and clipped."""
        if scale != 1.0:
            torch._foreach_mul_([p.grad for p in self.model.parameters() if p.grad is not None], scale)
        length = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm or inf)
        return step_if_finite(self.optimiser, total, length if self.sharded is None else self.sharded.undivided(length))

    def _settle(self) -> None:
        """Count the last update, if it is to count."""
        made, self.unread, position = self.unread, None, self.position
        if made is None:
            return
        summed, self.norm = made.told()
        if isfinite(summed) and isfinite(self.norm):
            if self.mean is not None:
                self.mean.update(self.model, made.step - 1)
            self.carried = made.carried
            self.position = position.counting(made.tokens, summed)
        elif self.config.on_nan == "stop" or position.skipped + 1 >= SKIPS:
            what = f"loss {summed / max(1, made.tokens):g}, gradient norm {self.norm:g}"
            raise Diverged(
                f"step {made.step}: wanted a finite loss and gradient; got {what}. The last checkpoint is as it was. "
                "Lower train.learning_rate, warm up longer, or clip more; train.on_nan = 'skip' skips such batches."
            )
        else:
            self.position = replace(position, skipped=position.skipped + 1)

    def _gradient(
        self, batch: Batch, expected: int, carried: CarriedState | None
    ) -> tuple[Float[Tensor, ""], int, CarriedState | None]:
        """The loss of a batch, its gradient added to the weights'; for how many predictions, and what is carried on."""
        batch, step = batch.to(self.device), self.position.step
        with self._precision():
            if self.sharded is None:
                loss, count, carried = self.objective(self.model, batch, step=step, carried=carried)
            else:
                loss, count = self.sharded(batch, step)
        if batch.borrowed:
            loss, count = loss * 0.0, 0
        torch.autograd.backward(loss / expected)
        return loss.detach(), count, carried

    def _failure(self, error: RuntimeError, batch: Batch) -> RuntimeError | TrainingFailed:
        if self.ranks.is_silence(error):
            return self.ranks.silence(error)
        if not isinstance(error, torch.OutOfMemoryError) and "allocate" not in str(error):
            return error
        return TrainingFailed(
            f"a batch of {batch.shape}: wanted memory for it; got none. No weight was changed. Lower "
            "train.batch_tokens and raise train.accumulate_steps by as much, or set activation_checkpointing = true "
            "in the model's parts."
        )

    def _of_all_ranks(self, total: Float[Tensor, ""], tokens: int) -> tuple[Float[Tensor, ""], int]:
        """The loss and the predictions of an update, of all ranks together, as are the gradients after it.

        All ranks learn here whether one of them was told to stop.
        """
        if self.ranks.alone:
            return total, tokens
        if self.gradients is not None:
            self.gradients.send_rest()
        every = self.ranks.gathered([float(total), tokens, self.asked_to_stop or 0])
        if self.gradients is not None:
            self.gradients.collect()
        totals, counts, signals = zip(*every, strict=True)
        self.agreed_to_stop = int(max(signals)) or None
        return total.new_tensor(sum(totals)), int(sum(counts))

    def _hear(self, signal_number: int) -> None:
        """The run ends after the update at hand, saved."""
        self.asked_to_stop = signal_number

    @property
    def _stopping(self) -> int | None:
        """The signal that ends the run here; with several ranks, once all know of it."""
        return self.asked_to_stop if self.ranks.alone else self.agreed_to_stop

    def _first_state(self) -> CarriedState | None:
        """What is carried into an epoch's first batch, in the lanes of this rank."""
        return None if self.lanes is None else first_state(self.model, len(self.ranks.places(self.lanes)))

    def _event(self, rate: float, seconds: float) -> dict[str, Any]:
        """A line for the log, which begins a new count."""
        position = self.position
        mean = position.loss_since / position.tokens_since if position.tokens_since else nan  # all were skipped
        self.position = replace(position, loss_since=0.0, tokens_since=0)
        return {
            "event": "train",
            "step": position.step,
            "epoch": position.epoch,
            "loss": mean,
            "perplexity": exp(min(mean, 700.0)),
            "rate": rate,
            "norm": self.norm,
            "tokens_per_second": position.tokens_since / seconds,
        }

    def _check(self, log: Any) -> None:
        """Validate, where there is something to validate on, and save; that too where validation fails."""
        self._settle()
        if self.validate is not None:
            try:
                found = self._validated(self.validate)
            except Exception:
                if self.ranks.alone or (self.sharded is None and self.carried is None):  # nobody else is needed to save
                    self.save()
                raise
            self._note(log, found)
        self.position = replace(self.position, checked=True)
        self.save()

    def _validated(self, validate: Callable[[Model], Validation]) -> Validation:
        with self.averaged(), nullcontext() if self.sharded is None else self.sharded.gathered():
            self.model.eval()
            found = validate(self.model)
            self.model.train()
        told = self.ranks.gathered(list(found.values.values()))[0]  # one rank's, should machines differ in a last bit
        return replace(found, values=dict(zip(found.values, told, strict=True)))

    def _note(self, log: Any, found: Validation) -> None:
        """How validation went, and whether this is the best so far."""
        step, config = self.position.step, self.config
        value, better = found.values[config.monitor], HIGHER_IS_BETTER[config.monitor]
        course = self.position.course.after(value, step, config, higher_is_better=better)
        self.position = replace(self.position, course=course)
        event = {"event": "validation", "step": step, **found.values, "best": course.best_step == step}
        self._log(log, event | ({"samples": found.samples} if found.samples else {}))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with the weights that count: their running mean, where there is one."""
        if self.mean is None:
            yield
            return
        self.mean.swap(self.model)
        try:
            yield
        finally:
            self.mean.swap(self.model)

    def save(self) -> None:
        """A checkpoint of this moment, and away with those that are not kept. All ranks give, the first one writes."""
        self._settle()
        position = self.position
        folder = store.step_folder(self.run, position.step)
        state = vars(position) | {"course": position.course.as_dict(), "data": self.data_key}
        kept = moments(self.model, self.optimiser)
        if self.carried is not None:
            lanes = self.lanes or 0
            tensors = self.carried.tensors()
            kept |= {f"carried.{name}": self.ranks.spread(tensor, 0, lanes) for name, tensor in tensors.items()}
        if self.mean is not None:
            kept |= {f"weight.{name}": tensor.detach().clone() for name, tensor in self.model.named_parameters()}
        with self.averaged():
            weights = store.weights_of(self.model)
            if self.sharded is not None:
                kept, weights = self.sharded.whole(kept), self.sharded.whole(weights)
            if self.ranks.first:
                self._write(folder, state, {"model.safetensors": weights, "training.safetensors": kept})

    def _write(self, folder: Path, state: dict[str, Any], tensors: dict[str, dict[str, Tensor]]) -> None:
        position = self.position
        try:
            store.write(folder, self.texts | {"training.json": store.as_json(state)}, tensors)
            best = position.course.best_step
            store.prune(self.run, self.config.keep_checkpoints, set() if best is None else {best})
        except OSError as error:
            raise TrainingFailed(
                f"{folder}: wanted to save a checkpoint; got {error.strerror or error}. "
                "The checkpoints before it are as they were: make room, and resume."
            ) from error
        self.tell({"event": "checkpoint", "step": position.step, "folder": str(folder)})

    def resume(self, content: dict[str, bytes], folder: Path) -> None:
        """Stand where a checkpoint stood."""
        state = store.document(content, "training.json", folder)
        saved = store.tensors(content, "training.safetensors", folder)
        weights = store.tensors(content, "model.safetensors", folder)
        if self.sharded is not None:
            saved, weights = self.sharded.divided(saved), self.sharded.divided(weights)
        if self.mean is not None:
            for mean, name in zip(self.mean.means, self.mean.names, strict=True):
                mean.copy_(weights[name])
            weights |= {name: saved[f"weight.{name}"] for name in self.mean.names}
        store.put_weights(self.model, weights, folder)
        put_moments(self.model, self.optimiser, saved)
        if self.carried is not None:
            names = self.carried.tensors()
            every = self.carried.with_tensors({name: saved[f"carried.{name}"].to(self.device) for name in names})
            self.carried = every.reorder(self.ranks.places(self.lanes or 0).to(self.device))
        state.pop("data")
        self.position = RunState(**state | {"course": ValidationHistory(**state["course"])})
        if self.ranks.first:
            cut(self.run / "log.jsonl", self.position.step)
            remove_leftovers(self.run)

    def _precision(self) -> Any:
        if self.config.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def _warn(self, message: str) -> None:
        self.tell({"event": "warning", "message": message})

    def _log(self, log: Any, event: dict[str, Any]) -> None:
        log.write(as_json_line(event) + "\n")
        log.flush()
        self.tell(event)


def _sharded(model: Model, objective: Objective, ranks: ProcessGroup, device: str) -> "ShardedModel":
    from regard.training.fsdp import ShardedModel  # what it needs of PyTorch takes its time to import

    return ShardedModel(model, objective, ranks, device)


def _taken(group: list[Batch]) -> int:
    """How many batches of the epoch all ranks have taken with these."""
    return sum(batch.plan_batches for batch in group)
