"""One update: gradients accumulated over its batches and summed over all ranks, clipped,
applied by the optimizer.
"""

from math import inf
from typing import TYPE_CHECKING

import torch

from regard.core.errors import TrainingFailed
from regard.core.host_future import HostFuture
from regard.core.shapes import Float, Tensor
from regard.data.batching import Batch
from regard.model.seq2seq import Model
from regard.model.transformer_block import use_fp8
from regard.tasks.carried import CarriedStates
from regard.tasks.objective import Objective
from regard.training.config import TrainConfig
from regard.training.distributed import GradientBuckets, ProcessGroup
from regard.training.graphed_update import GraphedUpdate
from regard.training.optimizers import Optimizer
from regard.training.signals import StopRequest
from regard.training.telemetry.log_file import EventHandler

if TYPE_CHECKING:
    from regard.training.fsdp import ShardedModel


class Updater:
    """Computes and applies the gradient of the mean loss of all target tokens of an update."""

    def __init__(
        self,
        model: Model,
        objective: Objective,
        config: TrainConfig,
        process_group: ProcessGroup,
        device: str,
        on_event: EventHandler,
    ) -> None:
        self.model = model
        self.objective = objective
        self.config = config
        self.process_group = process_group
        self.sharded = None
        self.buckets = None
        if not process_group.single:
            if config.fsdp:
                self.sharded = self._shard(device)
            else:
                self.buckets = GradientBuckets(model, process_group)
        self.device = next(model.parameters()).device
        if config.precision == "float8":
            use_fp8(model)
        self.optimizer = Optimizer(model, config)
        self.graphs = None
        if config.cuda_graphs:
            self.graphs = GraphedUpdate(
                model, lambda message: on_event({"event": "warning", "message": message})
            )

    def __call__(
        self, batches: list[Batch], step: int, carried: CarriedStates | None, stop: StopRequest
    ) -> tuple[HostFuture | None, int, CarriedStates | None]:
        """Update the weights.

        Returns the result (None without predictions), predictions and the carried states.

        The result: the summed loss and negative log-likelihood, and the gradient norm.
        """
        self.model.zero_grad()
        # The loss is divided by the number of predictions, or the gradients are after the last
        # batch where it is not known before: the numbers of other ranks are not, and a CUDA graph
        # cannot contain that of a packed batch.
        known = self.process_group.single and not self.config.packed
        divisor = sum(batch.tokens for batch in batches) if known else 1
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        tokens = 0
        for number, batch in enumerate(batches, start=1):
            if number == len(batches) and self.buckets is not None:
                self.buckets.expect()
            try:
                losses, count, carried = self._accumulate(batch, divisor, step, carried)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                raise self._failure(error, batch) from error
            total = total + losses
            tokens = tokens + count
        total, tokens = self._reduce(total, tokens, stop)
        # A masked-token objective draws its predictions. Where all texts are empty there are none,
        # and no update.
        if not tokens:
            return None, tokens, carried
        return self._apply(total, divisor / tokens), tokens, carried

    def _accumulate(
        self, batch: Batch, divisor: int, step: int, carried: CarriedStates | None
    ) -> tuple[Float[Tensor, "2"], int, CarriedStates | None]:
        if self.graphs is None:
            return self._gradient(batch, divisor, step, carried)
        return (
            self.graphs(batch, lambda batch: self._gradient(batch, divisor, step, None)[0]),
            batch.tokens,
            None,
        )

    def _gradient(
        self, batch: Batch, divisor: int, step: int, carried: CarriedStates | None
    ) -> tuple[Float[Tensor, "2"], int, CarriedStates | None]:
        """Add the gradient of a batch to the weights'; its loss and nll, predictions,
        and the states to carry.
        """
        batch = batch.to(self.device)
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.config.precision != "float32"
        ):
            if self.sharded is None:
                loss, nll, count, carried = self.objective(
                    self.model, batch, step=step, carried=carried
                )
            else:
                loss, nll, count, _ = self.sharded(batch, step)
        if batch.borrowed:
            loss = loss * 0.0
            nll = nll * 0.0
            count = 0
        torch.autograd.backward(loss / divisor)
        return torch.stack((loss.detach(), nll)), count, carried

    def _reduce(
        self, total: Float[Tensor, "2"], tokens: int, stop: StopRequest
    ) -> tuple[Float[Tensor, "2"], int]:
        """Losses, predictions and gradients summed over all ranks,
        which also exchange stop requests here.
        """
        if self.process_group.single:
            return total, tokens
        if self.buckets is not None:
            self.buckets.send_rest()
        ranks = self.process_group.all_gather([*total.tolist(), tokens, stop.received or 0])
        if self.buckets is not None:
            self.buckets.collect()
        losses, nlls, counts, signals = zip(*ranks, strict=True)
        stop.agreed = int(max(signals)) or None
        return total.new_tensor([sum(losses), sum(nlls)]), int(sum(counts))

    def _apply(self, total: Float[Tensor, "2"], scale: float) -> HostFuture:
        """Scale and clip the gradients, and step the optimizer."""
        if scale != 1.0:
            torch._foreach_mul_(
                [p.grad for p in self.model.parameters() if p.grad is not None], scale
            )
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm or inf)
        if self.sharded is not None:
            norm = self.sharded.full_tensor(norm)
        return self.optimizer.step_if_finite(total, norm)

    def _shard(self, device: str) -> "ShardedModel":
        from regard.training.fsdp import ShardedModel  # imports slowly

        return ShardedModel(self.model, self.objective, self.process_group, device)

    def _failure(self, error: RuntimeError, batch: Batch) -> RuntimeError | TrainingFailed:
        if self.process_group.is_communication_error(error):
            return self.process_group.unresponsive(error)
        if not isinstance(error, torch.OutOfMemoryError) and "allocate" not in str(error):
            return error
        return TrainingFailed(
            f"a batch of {batch.shape}: wanted memory for it; got none. No weight was changed. "
            "Lower train.batch_tokens and raise train.accumulate_steps by as much, or set "
            "activation_checkpointing = true in the model's parts."
        )
