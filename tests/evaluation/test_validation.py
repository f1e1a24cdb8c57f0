"""The validation loss of a masked language model: the same masks in every call, on every machine."""

import pytest
import torch

import regard
from regard.data.batching import evaluation_batches
from regard.evaluation.validation import mean_loss
from regard.training.objective import Objective
from support.corpora import corpus_of
from support.predictors import PARTS, TEXT, tokenizer


def test_the_masks_of_a_validation_are_drawn_with_seed_0_and_leave_the_generator_alone():
    words = tokenizer()
    torch.manual_seed(5)
    model = regard.build({"encoder": PARTS["transformer"], "head": "mlm", "vocab_size": words.size}).eval()
    corpus = corpus_of([(None, text) for text in TEXT], None, words)
    before = torch.get_rng_state()
    found = mean_loss(model, corpus, budget=128, masked=0.3)
    assert torch.equal(torch.get_rng_state(), before)
    assert mean_loss(model, corpus, budget=128, masked=0.3) == found
    torch.manual_seed(0)
    objective, total, count = Objective(mask_probability=0.3), 0.0, 0
    with torch.no_grad():
        for batch in evaluation_batches(corpus, budget=128):
            _, nll, tokens, _ = objective(model, batch)
            total, count = total + float(nll), count + tokens
    assert found == pytest.approx(total / count, rel=1e-6)
