"""Self-critical sequence training (https://arxiv.org/abs/1612.00563):
REINFORCE with the greedy output as baseline.

With several samples of each source, the baseline of each is the mean reward of the others instead:
it needs no search of its own, and its variance is lower (https://arxiv.org/abs/2003.09971).

Samples are a function of the seed, the update's number and the weights, so a resumed run is exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from regard.core.sequence import PackedSequences, Tokens
from regard.core.shapes import Float, Int, Tensor
from regard.data.batching import Batch
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq
from regard.training.distributed import SINGLE_PROCESS, ProcessGroup

STEPS = 1 << 32  # sampling seeds between those of one run's seed and the next
Reward = Callable[[int, Hypothesis], float]  # of an output for this row of the corpus


class SelfCriticalSampler:
    """Samples outputs for each source of a batch;
    the advantage of each is its reward less a baseline.

    samples       of each source; of one, the baseline is the reward of the greedy output, of
                  several the others' mean
    temperature   of the softmax that tokens are sampled from
    """

    def __init__(
        self,
        reward: Reward,
        *,
        max_length: int,
        seed: int,
        samples: int = 1,
        temperature: float = 1.0,
        special_tokens: SpecialTokens = DEFAULT_TOKENS,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.reward = reward
        self.seed = seed
        self.process_group = process_group
        self.samples = samples
        self.temperature = temperature
        self.special_tokens = special_tokens
        self.greedy = DecodeConfig(max_length=max_length)

    def __call__(
        self, model: Seq2Seq, batch: Batch, step: int
    ) -> tuple[Tokens, Float[Tensor, " B"]]:
        """The sampled outputs from the start token to the end token, and their advantages;
        of a source, in a row.
        """
        seed = self.seed * STEPS + step * self.process_group.world_size + self.process_group.rank
        was_training = model.training
        device = next(model.parameters()).device
        model.eval()
        # Without autocast, because CUDA graphs of the steps are recorded without it.
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            assert not isinstance(batch.source, PackedSequences)
            memory = model.encode(batch.source)
            assert memory is not None
            baselines = []
            if self.samples == 1:
                baselines = self._decode(model, memory, self.greedy)
            repeated = memory.reorder(repeated_rows(len(batch.rows), self.samples, device))
            sampling = replace(self.greedy, sample=True, seed=seed, temperature=self.temperature)
            outputs = self._decode(model, repeated, sampling)
        model.train(was_training)
        rows = batch.rows.tolist()
        of_outputs = [row for row in rows for _ in range(self.samples)]
        scores = torch.tensor(list(map(self.reward, of_outputs, outputs)))
        rewards = scores.view(-1, self.samples)  # (B, samples)
        if self.samples == 1:
            baseline = torch.tensor(list(map(self.reward, rows, baselines)))[:, None]
        else:
            baseline = (rewards.sum(1, keepdim=True) - rewards) / (self.samples - 1)
        start = self.special_tokens.start
        assert start is not None
        sampled = []
        for each in outputs:
            tokens = [start, *each.tokens]
            if each.end is not None:
                tokens.append(each.end)
            sampled.append(tokens)
        return Tokens.of(sampled, device=device), (rewards - baseline).flatten().to(device)

    def _decode(self, model: Seq2Seq, memory: Memory, config: DecodeConfig) -> list[Hypothesis]:
        """One output for each sequence of a memory."""
        outputs: dict[int, Hypothesis] = {}
        rows = range(len(memory.states))

        def collate(rows: Sequence[int]) -> Memory:
            return memory.reorder(torch.tensor(rows, device=memory.states.device))

        task = SearchTask(model, collate, config, special_tokens=self.special_tokens)
        for row, hypotheses in search(
            task, [GenerationRequest(row, memory.states.shape[1]) for row in rows]
        ):
            outputs[row] = hypotheses[0]
        return [outputs[row] for row in rows]


def repeated_rows(rows: int, times: int, device: torch.device) -> Int[Tensor, " N"]:
    """The index of each row, as often as it is sampled."""
    return torch.arange(rows, device=device).repeat_interleave(times)
