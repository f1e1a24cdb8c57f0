"""The linear-chain CRF against an enumeration of all paths; constraints, padding, and sequences without any path."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch

from regard.core.errors import InvalidArgument
from regard.model.crf import LinearChainCRF, TagConstraints

LABELS = 3
LENGTHS = [4, 0, 1, 3, 2]


def random_crf(labels=LABELS, constraints=None, dtype=torch.float64, **options):
    crf = LinearChainCRF(labels, constraints, **options).to(dtype)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    return crf


def batch(lengths=LENGTHS, labels=LABELS, dtype=torch.float64, longest=None):
    longest = max(lengths) if longest is None else longest
    emissions = torch.randn(len(lengths), longest, labels, dtype=dtype) * 2
    tags = torch.randint(labels, (len(lengths), longest))
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return emissions, tags, mask


def some_constraints():
    """Tag 2 may only follow 1, which may not end; 0 may not begin where it is followed by 1."""
    return TagConstraints(
        torch.tensor([True, True, False]),
        torch.tensor([[True, False, False], [False, True, True], [True, True, False]]),
        torch.tensor([True, False, True]),
    )


def never_two():
    """Paths of one word only: no tag may follow another."""
    return TagConstraints(
        torch.tensor([True, True, False]),
        torch.zeros(3, 3, dtype=torch.bool),
        torch.tensor([True, False, True]),
    )


def permitted(constraints, path):
    if constraints is None or not path:
        return True
    steps = all(bool(constraints.transitions[a, b]) for a, b in pairwise(path))
    return steps and bool(constraints.starts[path[0]]) and bool(constraints.ends[path[-1]])


def path_score(crf, emissions, path):
    if not path:
        return emissions.sum() * 0
    score = crf.start_transitions[path[0]] + crf.end_transitions[path[-1]]
    for position, tag in enumerate(path):
        score = score + emissions[position, tag]
    for before, after in pairwise(path):
        score = score + crf.transitions[before, after]
    return score


def paths(length, constraints=None, labels=LABELS):
    """All permitted paths; if there is none, all."""
    every = list(product(range(labels), repeat=length))
    return [path for path in every if permitted(constraints, path)] or every


def enumerated(crf, emissions, constraints=None):
    """The scores of all paths that count, and these paths."""
    found = paths(len(emissions), constraints)
    return torch.stack([path_score(crf, emissions, path) for path in found]), found


def gradients(value, crf, emissions):
    return torch.autograd.grad(value, [emissions, *crf.parameters()], allow_unused=True)


def assert_close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_log_likelihood_and_gradients_equal_an_enumeration():
    crf = random_crf()
    emissions, tags, mask = batch()
    emissions.requires_grad_()
    expected = []
    for row, length in enumerate(LENGTHS):
        scores, _ = enumerated(crf, emissions[row, :length])
        own = path_score(crf, emissions[row, :length], tags[row, :length].tolist())
        expected.append(own - scores.logsumexp(0))
    expected = torch.stack(expected)
    weights = torch.randn(len(LENGTHS), dtype=torch.float64)
    values = crf.log_likelihood(emissions, tags, mask)
    assert_close(values, expected)
    theirs = gradients((weights * expected).sum(), crf, emissions)
    for ours, wanted in zip(
        gradients((weights * values).sum(), crf, emissions), theirs, strict=True
    ):
        assert_close(ours, wanted)


def test_constrained_training_is_a_distribution_over_permitted_paths():
    constraints = some_constraints()
    crf = random_crf(constraints=constraints, constrain_training=True)
    lengths = [3, 3, 1, 4]
    emissions, _, mask = batch(lengths)
    emissions.requires_grad_()
    tags = torch.tensor([[1, 1, 2, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 2, 1, 2]])
    assert crf.allows(tags, mask).all()
    expected = []
    for row, length in enumerate(lengths):
        scores, _ = enumerated(crf, emissions[row, :length], constraints)
        own = path_score(crf, emissions[row, :length], tags[row, :length].tolist())
        expected.append(own - scores.logsumexp(0))
    expected = torch.stack(expected)
    values = crf.log_likelihood(emissions, tags, mask)
    assert_close(values, expected)
    theirs = gradients(expected.sum(), crf, emissions)
    for ours, wanted in zip(gradients(values.sum(), crf, emissions), theirs, strict=True):
        assert_close(ours, wanted)


def test_training_is_unconstrained_unless_asked_for():
    free = random_crf()
    constrained = LinearChainCRF(LABELS, some_constraints()).double()
    constrained.load_state_dict(free.state_dict())
    data = batch()
    assert torch.equal(constrained.log_likelihood(*data), free.log_likelihood(*data))


def test_a_sequence_whose_tags_are_forbidden_is_trained_without_constraints():
    constraints = some_constraints()
    crf = random_crf(constraints=constraints, constrain_training=True)
    free = random_crf()
    free.load_state_dict(crf.state_dict())
    emissions, _, mask = batch([3, 3])
    emissions.requires_grad_()
    tags = torch.tensor([[2, 0, 1], [1, 1, 2]])
    assert crf.allows(tags, mask).tolist() == [False, True]
    values = crf.log_likelihood(emissions, tags, mask)
    expected = free.log_likelihood(emissions, tags, mask)
    assert_close(values[0], expected[0])
    assert values[1] > expected[1]  # fewer paths share the probability
    theirs = gradients(expected[0], free, emissions)
    for ours, wanted in zip(gradients(values[0], crf, emissions), theirs, strict=True):
        assert_close(ours, wanted)


@pytest.mark.parametrize("constraints", [None, some_constraints(), never_two()])
def test_decoding_finds_the_best_of_all_paths(constraints):
    crf = random_crf(constraints=constraints)
    emissions, _, mask = batch()
    tags, scores = crf.decode(emissions, mask)
    partitions = crf.log_partition(emissions, mask)
    assert not tags[~mask].any()
    for row, length in enumerate(LENGTHS):
        every, found = enumerated(crf, emissions[row, :length], constraints)
        assert tuple(tags[row, :length].tolist()) == found[int(every.argmax())]
        assert_close(scores[row], every.max().detach())
        assert_close(partitions[row], every.logsumexp(0))


@pytest.mark.parametrize("constraints", [None, some_constraints(), never_two()])
def test_marginals_are_sums_over_paths(constraints):
    crf = random_crf(constraints=constraints)
    emissions, _, mask = batch()
    marginals = crf.marginals(emissions, mask)
    expected = torch.zeros_like(emissions)
    for row, length in enumerate(LENGTHS):
        every, found = enumerated(crf, emissions[row, :length], constraints)
        for probability, path in zip(every.softmax(0), found, strict=True):
            for position, tag in enumerate(path):
                expected[row, position, tag] += probability.detach()
    assert_close(marginals, expected)


def test_a_sequence_without_any_permitted_path_is_decoded_without_constraints():
    crf = random_crf(constraints=never_two())
    free = random_crf()
    free.load_state_dict(crf.state_dict())
    emissions, _, mask = batch([1, 3])
    tags, scores = crf.decode(emissions, mask)
    assert tags[0, 0] == 0  # the only tag that may both begin and end
    assert torch.equal(tags[1], free.decode(emissions, mask).tags[1])
    assert scores[1] == free.decode(emissions, mask).scores[1]


@pytest.mark.parametrize("constrain_training", [False, True])
def test_gradcheck(constrain_training):
    crf = random_crf(constraints=some_constraints(), constrain_training=constrain_training)
    emissions, tags, mask = batch([3, 0, 1, 2])
    tags[0] = torch.tensor([1, 1, 2])
    emissions.requires_grad_()

    def log_likelihood(emissions, *_):
        return crf.log_likelihood(emissions, tags, mask)

    inputs = (emissions, *crf.parameters())
    assert torch.autograd.gradcheck(log_likelihood, inputs)
    assert torch.autograd.gradcheck(lambda x, *_: crf.log_partition(x, mask), inputs)


@pytest.mark.parametrize("constraints", [None, some_constraints()])
def test_a_padded_sequence_gives_what_it_gives_alone(constraints):
    crf = random_crf(
        constraints=constraints,
        constrain_training=constraints is not None,
        dtype=torch.float32,
    )
    emissions, tags, mask = batch([5, 2, 9, 0, 1], dtype=torch.float32, longest=12)
    # Padding may hold anything.
    emissions[~mask] = float("nan")
    tags[~mask] = -100
    emissions.requires_grad_()
    together = crf.log_likelihood(emissions, tags, mask)
    (gradient,) = torch.autograd.grad(together.sum(), emissions)
    assert not gradient[~mask].any()
    decoded = crf.decode(emissions, mask)
    marginals = crf.marginals(emissions, mask)
    for row, length in enumerate([5, 2, 9, 0, 1]):
        own = emissions[row : row + 1, :length]
        own_mask = mask[row : row + 1, :length]
        own_tags = tags[row : row + 1, :length]
        alone = crf.log_likelihood(own, own_tags, own_mask)
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-6)
        (own_gradient,) = torch.autograd.grad(alone.sum(), own)
        torch.testing.assert_close(gradient[row, :length], own_gradient[0], rtol=0, atol=1e-6)
        best = crf.decode(own, own_mask)
        assert torch.equal(decoded.tags[row, :length], best.tags[0])
        torch.testing.assert_close(decoded.scores[row], best.scores[0], rtol=0, atol=1e-6)
        own_marginals = crf.marginals(own, own_mask)[0]
        torch.testing.assert_close(marginals[row, :length], own_marginals, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0), (2, 3)])
def test_empty_sequences_have_probability_one_and_no_gradient(shape):
    # Tag 0, which stands at padding, may not begin a sequence.
    constraints = replace(some_constraints(), starts=torch.tensor([False, True, True]))
    crf = random_crf(constraints=constraints, constrain_training=True)
    emissions = torch.randn(*shape, LABELS, dtype=torch.float64, requires_grad=True)
    tags = torch.zeros(shape, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.bool)
    values = crf.log_likelihood(emissions, tags, mask)
    assert values.tolist() == [0.0] * shape[0]
    for gradient in gradients(values.sum(), crf, emissions):
        assert gradient is None or not gradient.any()
    assert crf.log_partition(emissions, mask).tolist() == [0.0] * shape[0]
    decoded = crf.decode(emissions, mask)
    assert decoded.tags.tolist() == tags.tolist()
    assert decoded.scores.tolist() == [0.0] * shape[0]
    assert crf.marginals(emissions, mask).tolist() == torch.zeros(*shape, LABELS).tolist()
    assert crf.allows(tags, mask).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_emissions_of_half_precision_are_computed_in_float32(dtype):
    crf = random_crf(dtype=torch.float32)
    emissions, tags, mask = batch([40, 7], dtype=torch.float32)
    half = emissions.to(dtype).requires_grad_()
    values = crf.log_likelihood(half, tags, mask)
    assert values.dtype == torch.float32
    assert torch.equal(values, crf.log_likelihood(half.float(), tags, mask))
    (gradient,) = torch.autograd.grad(values.sum(), half)
    assert gradient.dtype == dtype
    assert crf.decode(half, mask).scores.dtype == torch.float32
    assert crf.marginals(half, mask).dtype == torch.float32
    # Also where the model itself has been converted.
    narrow = LinearChainCRF(LABELS).to(dtype)
    assert narrow.log_likelihood(half, tags, mask).dtype == torch.float32


def test_long_sequences_are_exact_in_float32():
    exact = random_crf()
    crf = LinearChainCRF(LABELS)
    crf.load_state_dict(exact.state_dict())
    emissions, tags, mask = batch([3000, 1800])
    emissions = (emissions * 10 + 500).requires_grad_()
    values = crf.log_likelihood(emissions.float(), tags, mask)
    expected = exact.log_likelihood(emissions, tags, mask)
    torch.testing.assert_close(values.double(), expected, rtol=1e-5, atol=0)
    (ours,) = torch.autograd.grad(values.sum(), emissions)
    (theirs,) = torch.autograd.grad(expected.sum(), emissions)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
    assert torch.equal(crf.decode(emissions.float(), mask).tags, exact.decode(emissions, mask).tags)


def test_a_scheme_with_much_padding_has_no_nan():
    """A tag of which no way leads to the end is forbidden at some positions and not at others."""
    constraints = TagConstraints(
        torch.tensor([True, False, False]),
        torch.tensor([[False, True, False], [False, False, True], [False, False, True]]),
        torch.tensor([True, False, True]),
    )
    crf = random_crf(constraints=constraints, constrain_training=True, dtype=torch.float32)
    emissions, _, mask = batch([1, 3, 8], dtype=torch.float32, longest=9)
    tags = torch.tensor([[0, 1, 2, 2, 2, 2, 2, 2, 2]]).expand(3, -1)
    emissions.requires_grad_()
    value = crf.log_likelihood(emissions, tags, mask)
    # There is one path of each length, which is therefore certain.
    torch.testing.assert_close(value, torch.zeros(3), rtol=0, atol=1e-5)
    for gradient in gradients(value.sum(), crf, emissions):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-5)
    certain = torch.nn.functional.one_hot(tags, 3).float() * mask[..., None]
    torch.testing.assert_close(crf.marginals(emissions, mask), certain, rtol=0, atol=1e-5)


def test_it_begins_as_a_softmax_at_each_position():
    crf = LinearChainCRF(LABELS)
    emissions, _, mask = batch(dtype=torch.float32)
    wanted = emissions.softmax(-1) * mask[..., None]
    torch.testing.assert_close(crf.marginals(emissions, mask), wanted)


def test_constraints_move_with_the_module_and_are_not_saved():
    crf = LinearChainCRF(LABELS, some_constraints())
    assert set(crf.state_dict()) == {"start_transitions", "transitions", "end_transitions"}
    assert {name for name, _ in crf.named_buffers()} == {
        "allowed_starts",
        "allowed_transitions",
        "allowed_ends",
    }


def test_wrong_arguments_are_refused():
    crf = LinearChainCRF(LABELS)
    emissions, tags, mask = batch(dtype=torch.float32)
    with pytest.raises(InvalidArgument, match=r"wanted 3 scores at each position.*got 2"):
        crf.decode(emissions[..., :2], mask)
    with pytest.raises(InvalidArgument, match="words after padding"):
        crf.log_likelihood(emissions, tags, mask.flip(1))
    with pytest.raises(InvalidArgument, match="at least one label"):
        LinearChainCRF(0)
    with pytest.raises(InvalidArgument, match=r"wanted those of 4 labels; got those of 3"):
        LinearChainCRF(4, some_constraints())
