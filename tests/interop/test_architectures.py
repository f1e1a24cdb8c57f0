"""Models of transformers as ours: the same logits, every weight used once, and the same bits back."""

import pytest
import torch

from regard.model.weights import weights_of
from support.pretrained import CASES, logits, ours_of, random_theirs

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Their model of each case, and the folder in which transformers saved it."""
    made = {}

    def of(name):
        if name not in made:
            theirs, folder = random_theirs(name), tmp_path_factory.mktemp(name)
            theirs.save_pretrained(folder)
            made[name] = theirs, folder
        return made[name]

    return of


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_logits_are_theirs(name, saved):
    theirs, folder = saved(name)
    ours, _ = ours_of(folder)
    wanted, got = logits(name, theirs, ours)
    assert wanted.std() > 0.1
    torch.testing.assert_close(got, wanted, atol=1e-5 * float(wanted.abs().max().clamp(min=1)), rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_weights_become_theirs_again_bit_for_bit(name, saved):
    _, folder = saved(name)
    ours, pretrained = ours_of(folder)
    back = {step.theirs: step.to_theirs(weights_of(ours)) for step in pretrained.steps}
    names = [each for each in pretrained.tensors if not pretrained.architecture.is_ignored(each) or each in back]
    assert sorted(back) == sorted(names)
    assert all(torch.equal(tensor, pretrained.tensors[each]) for each, tensor in back.items())
