"""Each contract of test_models must fail for a model with a planted fault."""

import pytest
import test_models
import torch

from regard.core.sequence import Vectors
from regard.model import convolution, rnn_decoder, rnn_encoder, transformer
from regard.model.convolution import ConvLayer, ConvState
from regard.model.memory import Memory
from regard.model.multihead import MultiHead
from regard.model.rnn_state import RnnState
from regard.model.transformer import TransformerState
from regard.model.transformer_block import FeedForward, InputLayer


def forgets_position(monkeypatch):
    right = InputLayer.forward
    monkeypatch.setattr(InputLayer, "forward", lambda self, x, start=0: right(self, x, 0))


def forgets_the_last_inputs(monkeypatch):
    right = ConvLayer.step
    monkeypatch.setattr(ConvLayer, "step", lambda self, x, seen: (right(self, x, seen)[0], seen))


def keeps_its_state(monkeypatch):
    right = rnn_decoder.RnnDecoder.step
    monkeypatch.setattr(
        rnn_decoder.RnnDecoder,
        "step",
        lambda self, tokens, state: (right(self, tokens, state)[0], state),
    )


def sees_the_future(monkeypatch):
    right = MultiHead.forward
    monkeypatch.setattr(
        MultiHead,
        "forward",
        lambda self, x, source=None, *, causal=False, **rest: right(self, x, source, **rest),
    )


def pads_on_both_sides(monkeypatch):
    right = ConvLayer.__init__

    def wrong(self, config, dilation, *, causal):
        right(self, config, dilation, causal=False)

    monkeypatch.setattr(ConvLayer, "__init__", wrong)


def sees_padding(monkeypatch):
    right = MultiHead._attend
    monkeypatch.setattr(
        MultiHead,
        "_attend",
        lambda self, q, memory, mask, *rest, **more: right(self, q, memory, None, *rest, **more),
    )


def attends_to_padding(monkeypatch):
    right = rnn_decoder.attend
    monkeypatch.setattr(rnn_decoder, "attend", lambda *a, mask=None, **rest: right(*a, **rest))


def convolves_padding(monkeypatch):
    right = ConvLayer.forward
    monkeypatch.setattr(ConvLayer, "forward", lambda self, x, mask=None: right(self, x))


def reads_backwards_from_the_padding(monkeypatch):
    full = lambda x, lengths, **rest: (x, None)  # noqa: E731
    monkeypatch.setattr(rnn_encoder, "pack_padded_sequence", lambda x, lengths, **rest: x)
    monkeypatch.setattr(rnn_encoder, "pad_packed_sequence", lambda x, **rest: full(x, None))


def reads_the_padding_of_vectors(monkeypatch):
    monkeypatch.setattr(Vectors, "places", property(lambda self: ~self.values[..., 0].isnan()))


def averages_padding(monkeypatch):
    for module in (transformer, convolution):
        monkeypatch.setattr(module, "masked_mean", lambda states, mask: states.mean(1))


def does_not_reorder(monkeypatch):
    for state in (TransformerState, RnnState, ConvState):
        monkeypatch.setattr(state, "reorder", lambda self, index: self)


def does_not_reorder_the_memory(monkeypatch):
    monkeypatch.setattr("regard.model.kv_cache.KeyValue.reorder", lambda self, index: self)


def keeps_the_gradient(monkeypatch):
    monkeypatch.setattr(RnnState, "detached", lambda self: self)


def changes_cached_keys(monkeypatch):
    right = MultiHead.step

    def wrong(self, x, cache, **rest):
        with torch.no_grad():
            cache._key[:, :, : cache.length] += 0.1
        return right(self, x, cache, **rest)

    monkeypatch.setattr(MultiHead, "step", wrong)


def skips_the_feed_forward_network(monkeypatch):
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: x)


def loads_nothing(monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", lambda self, state: None)


PLANTED = [
    (forgets_position, test_models.test_forward_equals_steps, ("transformer", True)),
    (forgets_the_last_inputs, test_models.test_forward_equals_steps, ("conv", True)),
    (keeps_its_state, test_models.test_forward_equals_steps, ("rnn", False)),
    (sees_the_future, test_models.test_logits_do_not_depend_on_later_tokens, ("transformer", True)),
    (pads_on_both_sides, test_models.test_logits_do_not_depend_on_later_tokens, ("conv", False)),
    (sees_padding, test_models.test_decoded_in_a_batch_equals_decoded_alone, ("transformer",)),
    (
        attends_to_padding,
        test_models.test_decoded_in_a_batch_equals_decoded_alone,
        ("gru bahdanau additive",),
    ),
    (sees_padding, test_models.test_encoded_in_a_batch_equals_encoded_alone, ("transformer",)),
    (convolves_padding, test_models.test_encoded_in_a_batch_equals_encoded_alone, ("conv",)),
    (
        reads_backwards_from_the_padding,
        test_models.test_encoded_in_a_batch_equals_encoded_alone,
        ("gru",),
    ),
    (averages_padding, test_models.test_padding_does_not_change_the_memory, ("transformer",)),
    (convolves_padding, test_models.test_padding_does_not_change_the_memory, ("conv",)),
    (averages_padding, test_models.test_an_empty_sequence_has_an_empty_memory, ("conv",)),
    (
        sees_the_future,
        test_models.test_a_causal_encoder_sees_nothing_later,
        ("transformer causal",),
    ),
    (
        sees_the_future,
        test_models.test_a_causal_encoder_sees_nothing_later,
        ("transformer causal of vectors",),
    ),
    (
        reads_the_padding_of_vectors,
        test_models.test_padding_does_not_change_the_memory,
        ("gru, convolution of vectors",),
    ),
    (forgets_position, test_models.test_forward_equals_steps, ("transformer of vectors", True)),
    (
        does_not_reorder,
        test_models.test_reordered_state_equals_reordered_prefixes,
        ("gru luong input-feeding of vectors", True),
    ),
    (
        does_not_reorder,
        test_models.test_reordered_state_equals_reordered_prefixes,
        ("transformer", False),
    ),
    (
        does_not_reorder,
        test_models.test_reordered_state_equals_reordered_prefixes,
        ("gru luong input-feeding", True),
    ),
    (does_not_reorder, test_models.test_reordered_state_equals_reordered_prefixes, ("conv", True)),
    (
        does_not_reorder_the_memory,
        test_models.test_reordered_state_equals_reordered_prefixes,
        ("conv", True),
    ),
    (keeps_the_gradient, test_models.test_carried_state_equals_one_pass, ("gru luong", True)),
    (
        keeps_its_state,
        test_models.test_captured_weights_of_steps_equal_those_of_forward,
        ("lstm luong dot",),
    ),
    (
        changes_cached_keys,
        test_models.test_captured_weights_of_steps_equal_those_of_forward,
        ("transformer",),
    ),
    (
        skips_the_feed_forward_network,
        test_models.test_gradient_reaches_every_parameter_of_a_decoder,
        ("transformer",),
    ),
    (
        skips_the_feed_forward_network,
        test_models.test_gradient_reaches_every_parameter_of_an_encoder,
        ("transformer",),
    ),
    (loads_nothing, test_models.test_saved_equals_loaded, ("rnn",)),
]


@pytest.mark.parametrize(
    ("plant", "contract", "arguments"),
    PLANTED,
    ids=[f"{p.__name__}-{c.__name__}" for p, c, _ in PLANTED],
)
def test_planted_fault_is_found(plant, contract, arguments, monkeypatch):
    contract(*arguments)  # right as it is
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        contract(*arguments)


def test_the_padding_of_the_memory_is_not_zero():
    """Without it, half of the contracts could not fail."""
    from support.models import memory

    given = memory()
    assert isinstance(given, Memory)
    assert (given.states[~given.mask] == 30).all()
