"""A recurrent encoder reads long inputs in pieces, with the numbers of PyTorch's layer for the whole."""

import time
from itertools import pairwise, product

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.core.interruption import Interrupted, interruptible
from regard.core.sequence import Tokens
from regard.model.embedding import Embedding
from regard.model.rnn_encoder import LEAST_FILLED, RnnConfig, RnnEncoder, segments_of

CELLS = ("elman", "gru", "lstm")
LONG = 65_536  # tokens
WORDS = 50


def encoder(cell: str = "lstm", **options) -> RnnEncoder:
    torch.manual_seed(1)
    config = RnnConfig(cell, **{"dim": 16, "layers": 2, **options})
    return RnnEncoder(config, Embedding(WORDS, config.dim)).eval()


def text(length: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(WORDS, (length,), generator=generator).tolist()


@torch.inference_mode()
def whole(module: RnnEncoder, source: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """The states and the summary by one call of PyTorch's layer."""
    lengths = source.mask.sum(1).clamp(min=1)
    vectors = module.input_module.read(source).states()
    packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
    states, hidden = module.rnn(packed)
    states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.ids.shape[1])
    last = hidden[0] if isinstance(hidden, tuple) else hidden
    directions = 2 if module.rnn.bidirectional else 1
    return states * source.mask[..., None], torch.cat(tuple(last[-directions:]), -1)


@pytest.mark.parametrize(("cell", "bidirectional"), list(product(CELLS, (True, False))))
@pytest.mark.parametrize("length", [20_000, 8193, 16_385])
def test_a_long_input_has_the_bits_of_the_whole(cell, bidirectional, length):
    module = encoder(cell, bidirectional=bidirectional)
    source = Tokens.of([text(length)])
    checks = []
    with torch.inference_mode(), interruptible(lambda: checks.append(1)):
        memory = module(source)
    assert len(checks) > 2 * (1 + bidirectional)
    states, summary = whole(module, source)
    assert torch.equal(memory.states, states)
    assert torch.equal(memory.summary, summary)


@pytest.mark.parametrize(("cell", "bidirectional"), list(product(CELLS, (True, False))))
def test_long_inputs_of_a_batch_have_the_numbers_of_the_whole(cell, bidirectional):
    """Some end while others go on, one of them after a few tokens."""
    module = encoder(cell, bidirectional=bidirectional)
    lengths = (9001, 20_000, 3, 9000, 0, 12_000)
    source = Tokens.of([text(length, seed) for seed, length in enumerate(lengths)])
    with torch.inference_mode():
        memory = module(source)
    states, summary = whole(module, source)
    torch.testing.assert_close(memory.states, states, rtol=0, atol=2e-6)
    has_tokens = torch.tensor(lengths) > 0
    torch.testing.assert_close(memory.summary, summary * has_tokens[:, None], rtol=0, atol=2e-6)
    torch.testing.assert_close(memory.states[4], torch.zeros(20_000, 16))


@pytest.mark.parametrize(("dim", "length"), [(256, LONG), (1024, 4000)])
def test_a_long_input_can_be_interrupted_within_a_second(dim, length):
    """In one call, it would take longer. Others may be at work: the time is that of the processor for this thread."""
    module = encoder(dim=dim)
    source = Tokens.of([text(length)])
    times = [time.thread_time()]
    with torch.inference_mode(), interruptible(lambda: times.append(time.thread_time())):
        module(source)
    times.append(time.thread_time())
    assert max(later - earlier for earlier, later in pairwise(times)) < 1.0
    assert len(times) > 10


def test_an_interrupted_input_is_read_no_further():
    module = encoder()
    checks = []

    def stop() -> None:
        checks.append(1)
        if len(checks) == 3:
            raise Interrupted

    with torch.inference_mode(), interruptible(stop), pytest.raises(Interrupted):
        module(Tokens.of([text(LONG)]))
    assert len(checks) == 3


def test_training_reads_the_whole_at_once():
    """Its gradients are those of a layer that reads all steps."""
    module = encoder("gru", layers=1).train()
    checks = []
    with interruptible(lambda: checks.append(1)):
        module(Tokens.of([text(9000)])).states.sum().backward()
    assert len(checks) == 1
    assert module.rnn.weight_hh_l0.grad.abs().sum() > 0


@pytest.mark.parametrize(("cell", "bidirectional"), list(product(CELLS, (True, False))))
def test_sequences_of_many_lengths_have_the_numbers_of_the_whole(cell, bidirectional):
    """Padded to the longest of a group, whatever is computed after the end of a sequence."""
    module = encoder(cell, bidirectional=bidirectional)
    lengths = (5, 31, 1, 0, 30, 29, 9, 31, 2, 28)
    source = Tokens.of([text(length, seed) for seed, length in enumerate(lengths)])
    with torch.inference_mode():
        memory = module(source)
    states, summary = whole(module, source)
    torch.testing.assert_close(memory.states, states, rtol=0, atol=2e-6)
    has_tokens = torch.tensor(lengths) > 0
    torch.testing.assert_close(memory.summary, summary * has_tokens[:, None], rtol=0, atol=2e-6)


def test_segments_cover_every_step_with_little_padding():
    drawn = torch.Generator().manual_seed(3)
    for size in (1, 2, 7, 60):
        lengths = torch.randint(1, 90, (size,), generator=drawn).sort(descending=True)[0].tolist()
        segments = segments_of(lengths, 16)
        assert [first for first, _, _ in segments] == [0, *(end for _, end, _ in segments[:-1])]
        assert segments[-1][1] == lengths[0]
        assert all(0 < end - first <= 16 for first, end, _ in segments)
        for first, _, count in segments:
            assert count == sum(length > first for length in lengths)
        computed = sum(count * (end - first) for first, end, count in segments)
        assert sum(lengths) <= computed <= sum(lengths) / LEAST_FILLED
    assert len(segments_of([90] * 50 + [89] * 9, 90)) == 1
