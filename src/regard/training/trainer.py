"""The training loop, the same for every model.

Everything in an update is a function of the seed, the update's number and the weights before it:
batches and their order, dropout, masked and sampled tokens. So a run that was killed resumes from
its last checkpoint and ends with the same weights, bit for bit, as one that was not.

Several processes make the same updates, each from its share of the batches (`distributed.py`). Rank
0 writes.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from math import exp, isfinite, nan
from pathlib import Path
from typing import NoReturn

import torch

from regard.core.errors import Diverged, InterruptedTraining, TrainingFailed
from regard.data.batching import Batch
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.model.seq2seq import Model
from regard.tasks.base import task_of
from regard.tasks.carried import CarriedStates
from regard.tasks.distillation import Distillation
from regard.tasks.objective import Objective, Sampler
from regard.training.checkpointing import Checkpointer
from regard.training.epoch_batches import EpochBatches
from regard.training.frozen_rows import FrozenRows
from regard.training.monitor import Validate, Validation
from regard.training.optimizers import WeightAverage
from regard.training.run_state import PendingUpdate, RunState
from regard.training.schedules import learning_rate_at
from regard.training.signals import StopRequest, ValidationStopped, catch_stop_signals
from regard.training.telemetry.log_file import Event, EventHandler, event_log, ignore_event
from regard.training.update import Updater

SKIPS = 10  # consecutive skipped updates after which training counts as diverged


class Trainer:
    """Trains a model: updates, learning rate, validation, early stopping, checkpoints."""

    def __init__(
        self,
        model: Model,  # on its device, unless it is to be sharded
        epoch_batches: EpochBatches,
        *,
        texts: Mapping[str, str],  # of every checkpoint: configuration, vocabularies, card
        run: Path,
        data_key: str,
        validate: Validate | None = None,
        sampler: Sampler | None = None,  # self-critical training
        distillation: Distillation | None = None,
        special_tokens: SpecialTokens = DEFAULT_TOKENS,  # of the targets
        frozen_rows: FrozenRows | None = None,  # of word vectors
        on_event: EventHandler = ignore_event,
    ) -> None:
        config = epoch_batches.config
        process_group = epoch_batches.process_group
        lanes = epoch_batches.lanes
        self.model = model
        self.config = config
        self.run = run
        self.process_group = process_group
        self.epoch_batches = epoch_batches
        self.validate = validate
        self.on_event = on_event
        config = config.with_defaults(task_of(model))
        assert config.label_smoothing is not None
        objective = Objective(
            config.label_smoothing,
            mask_probability=config.mask_probability,
            scheduled_sampling=config.scheduled_sampling,
            r_drop=config.r_drop,
            doubly_stochastic=config.doubly_stochastic,
            ctc_weight=config.ctc_weight,
            output_loss=config.loss,
            sampler=sampler,
            distillation=distillation,
            special_tokens=special_tokens,
            reward_temperature=config.reward_temperature,
            reward_likelihood=config.reward_likelihood,
            reward_dropout=config.reward_dropout,
        )
        self.updater = Updater(
            model, objective, config, process_group, epoch_batches.device, on_event
        )
        self.device = self.updater.device
        self.ema = None
        if config.ema_decay is not None:
            self.ema = WeightAverage(model, config.ema_decay)
        self.checkpointer = Checkpointer(
            run,
            texts,
            data_key,
            self.updater,
            self.ema,
            frozen_rows or FrozenRows(model),
            lanes,
            on_event,
        )
        self.state = RunState()
        self.carried = self._first_states()
        self.pending: PendingUpdate | None = None
        self.stop = StopRequest()
        self._has_perplexity = "perplexity" in task_of(model).monitors
        # A GPU computes an update while the host goes on.
        self.asynchronous = self.device.type == "cuda"

    def fit(self) -> RunState:
        """Train to the end, or until a signal, an error or early stopping,
        with checkpoints on the way.
        """
        main = self.process_group.is_main
        with catch_stop_signals(self.stop), event_log(self.run, self.on_event, write=main) as log:
            self.model.train()
            if self._validation_due:
                self._validate_and_save(log)
            began = time.perf_counter()
            for batches in self._groups():
                self._update(batches)
                log.check_folder()
                if self.state.tokens_since:
                    # This event is not logged.
                    figures = self._figures(time.perf_counter() - began)
                    self.on_event({"event": "update", **figures})
                if self.state.step % self.config.log_every == 0 or self._limit_reached:
                    log(self._train_event(time.perf_counter() - began))
                    began = time.perf_counter()
                if self._stopping is not None:
                    self._save_and_stop()
                if self._validation_due:
                    self._validate_and_save(log)
                    began = time.perf_counter()
            self._settle()
            epoch_has_ended = self.state.batch == 0
            if epoch_has_ended and self._limit_reached and self.state.tokens_since:
                log(self._train_event(time.perf_counter() - began))
            if self._validation_due:
                self._validate_and_save(log)
        return self.state

    @property
    def done(self) -> bool:
        return (
            self._limit_reached or self.state.history.exhausted(self.config)
        ) and not self._validation_due

    @property
    def _limit_reached(self) -> bool:
        steps = self.config.max_steps
        epochs = self.config.max_epochs
        return (steps is not None and self.state.step >= steps) or (
            epochs is not None and self.state.epoch >= epochs
        )

    @property
    def _validation_due(self) -> bool:
        """Whether this step is to be validated and was not;
        a run stopped before its validation resumes with it.
        """
        return not self.state.validated and (
            self.state.step % self.config.validate_every == 0 or self._limit_reached
        )

    @property
    def _stopping(self) -> int | None:
        return self.stop.pending(self.process_group)

    def _groups(self) -> Iterator[list[Batch]]:
        """The batches of each update until the run is done.

        No update reaches over the end of an epoch.
        """
        while not self.done and not self._limit_reached:
            batches = self.epoch_batches(self.state.epoch, self.state.batch)
            empty = True
            while not self.done and (group := self._next_group(batches)):
                empty = False
                yield group
            if self.done:
                return
            if empty and self.state.batch == 0:
                raise TrainingFailed(
                    "train: wanted at least one batch of examples; got none. Is the corpus empty?"
                )
            self.state = replace(self.state, epoch=self.state.epoch + 1, batch=0)
            self.carried = self._first_states()

    def _next_group(self, batches: Iterator[Batch]) -> list[Batch]:
        group: list[Batch] = []
        try:
            while (
                _consumed(group) < self.config.accumulate_steps
                and (batch := next(batches, None)) is not None
            ):
                group.append(batch)
            return group
        except Exception as error:
            raise TrainingFailed(
                f"step {self.state.step + 1}: wanted its batches; got {type(error).__name__}: "
                f"{error}. Earlier checkpoints are intact: check the data, and resume."
            ) from error

    def _update(self, batches: list[Batch]) -> None:
        """One update by the mean loss of all target tokens of these batches."""
        state = self.state
        config = self.config
        torch.manual_seed(self.process_group.seed_at(config.seed, state.step))
        if config.unfreeze_after is not None and state.epoch >= config.unfreeze_after:
            self.model.requires_grad_(True)
        self.updater.optimizer.set_learning_rate(self._learning_rate(state.step))
        result, tokens, carried = self.updater(batches, state.step, self.carried, self.stop)
        self.state = replace(
            state, step=state.step + 1, batch=state.batch + _consumed(batches), validated=False
        )
        # Wait for the update before. A GPU computes this one meanwhile.
        self._settle()
        self.pending = None
        if result is not None:
            self.pending = PendingUpdate(self.state.step, tokens, result, carried)
        # The next update needs the moving average and the carried states of this one.
        if not self.asynchronous or self.ema is not None or self.carried is not None:
            self._settle()

    def _learning_rate(self, step: int) -> float:
        total = self.epoch_batches.total_steps
        factor = self.state.history.factor
        return learning_rate_at(step, self.config, total_steps=total, plateau_factor=factor)

    def _settle(self) -> None:
        """Wait for the pending update, and count it unless it was skipped."""
        update = self.pending
        self.pending = None
        state = self.state
        if update is None:
            return
        loss, nll, norm = update.result()
        if all(map(isfinite, (loss, nll, norm))):
            if self.ema is not None:
                self.ema.update(self.model, update.step - 1)
            self.carried = update.carried
            self.state = state.counting(update.tokens, loss, nll, norm)
        elif self.config.on_nan == "stop" or state.skipped + 1 >= SKIPS:
            got = f"loss {loss / max(1, update.tokens):g}, gradient norm {norm:g}"
            remedy = "Lower train.learning_rate, warm up longer, or clip more"
            if self.config.on_nan == "stop":
                remedy += "; train.on_nan = 'skip' skips such batches"
            else:
                got += f", {SKIPS} updates in a row"
            wanted = "a finite loss and gradient"
            raise Diverged(
                f"step {update.step}: wanted {wanted}; got {got}. The last "
                f"checkpoint is intact. {remedy}."
            )
        else:
            finite_norm = norm if isfinite(norm) else None
            self.state = replace(state, skipped=state.skipped + 1, grad_norm=finite_norm)

    def _first_states(self) -> CarriedStates | None:
        """The recurrent states carried into an epoch's first batch, for the lanes of this rank."""
        lanes = self.epoch_batches.lanes
        if lanes is None:
            return None
        rows = len(self.process_group.own_lanes(lanes))
        return self.updater.objective.first_states(self.model, rows)

    def _validate_and_save(self, log: EventHandler) -> None:
        """Validate, where there are validation data, and save; if validation fails or is stopped,
        save and raise.
        """
        self._settle()
        if self.validate is not None:
            try:
                result = self._validation(self.validate)
            except Exception:
                collective = self.updater.sharded is not None or self.carried is not None
                # Saving is collective then, and other ranks may not get as far as saving.
                if self.process_group.single or not collective:
                    self.save()
                raise
            if result is None:
                self._save_and_stop()
            step = self.state.step
            history = self.state.history.after(result.values, self.state.step, self.config)
            self.state = replace(self.state, history=history)
            event = {
                "event": "validation",
                "step": step,
                **result.values,
                "best": history.best_step == step,
            }
            shown = {"samples": result.samples, "heads": result.heads}
            log(event | {name: values for name, values in shown.items() if values})
        self.state = replace(self.state, validated=True)
        self.save()

    def _save_and_stop(self) -> NoReturn:
        self.save()
        assert self._stopping is not None
        raise InterruptedTraining(self._stopping, self.run)

    def _validation(self, validate: Validate) -> Validation | None:
        """None if a signal stopped it, on any rank."""
        result = None
        averaged = nullcontext() if self.ema is None else self.ema.swapped(self.model)
        sharded = self.updater.sharded
        whole = nullcontext() if sharded is None else sharded.unsharded()
        with averaged, whole:
            self.model.eval()
            with suppress(ValidationStopped), self.stop.interrupting():
                result = validate(self.model)
            self.model.train()
        own_signal = self.stop.received or 0
        # A signal that came after the validation is handled after the next update.
        if result is not None:
            own_signal = 0
        stopped = self.process_group.all_gather([own_signal])
        if number := int(max(stopped)[0]):
            self.stop.agreed = number
            return None
        assert result is not None
        # All ranks get rank 0's values, as machines may differ in the last bit.
        values = self.process_group.all_gather(list(result.values.values()))[0]
        return replace(result, values=dict(zip(result.values, values, strict=True)))

    def save(self) -> None:
        """Write a checkpoint of this moment."""
        self._settle()
        self.checkpointer.save(self.state, self.carried)

    def resume(self, content: Mapping[str, bytes], folder: Path) -> None:
        """Continue from a checkpoint whose bytes `store.read` has checked."""
        self.state, self.carried = self.checkpointer.resume(content, folder, self.carried)

    def _train_event(self, seconds: float) -> Event:
        """The figures of a line of the log, which those of the next begin after."""
        self._settle()
        figures = self._figures(seconds)
        self.state = replace(self.state, loss_since=0.0, nll_since=0.0, tokens_since=0)
        return {"event": "train", **figures}

    def _figures(self, seconds: float) -> Event:
        """The mean loss with and without label smoothing, and the throughput,
        since the last line of the log.
        """
        state = self.state
        # Not a number where all updates were skipped.
        loss = nan
        nll = nan
        if state.tokens_since:
            loss = state.loss_since / state.tokens_since
            nll = state.nll_since / state.tokens_since
        perplexity = {}
        if self._has_perplexity:
            perplexity["perplexity"] = exp(min(nll, 700.0))
        return {
            "step": state.step,
            "epoch": state.epoch - (state.batch == 0),  # of the last update
            "loss": loss,
            "nll": nll,
            **perplexity,
            "rate": self._learning_rate(state.step - 1),
            "norm": nan if state.grad_norm is None else state.grad_norm,
            "tokens_per_second": state.tokens_since / seconds,
        }


def _consumed(group: list[Batch]) -> int:
    """How many batches of the epoch all ranks have consumed with these."""
    return sum(batch.plan_batches for batch in group)
