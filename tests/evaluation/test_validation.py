"""The validation loss of a masked language model: the same masks in every call, on every machine."""

import pytest
import torch

import regard
from regard.api import evaluate as evaluate_verb
from regard.data.batching import evaluation_batches
from regard.recipe.load import read_recipe
from regard.tasks.objective import Objective
from regard.training.validation import mean_loss
from support.corpora import corpus_of
from support.predictors import PARTS, TEXT, tokenizer


def test_the_masks_of_a_validation_are_drawn_with_seed_0_and_leave_the_generator_alone():
    words = tokenizer()
    torch.manual_seed(5)
    model = regard.build(
        {"encoder": PARTS["transformer"], "head": "mlm", "vocab_size": words.size}
    ).eval()
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


@pytest.mark.parametrize("masked", [False, True])
def test_texts_whose_attention_is_summarised_are_a_thousand_letters(tmp_path, masked):
    """To be read to their end; those of a masked language model are read as they are. Empty ones are left out."""
    (tmp_path / "valid.txt").write_text("\n".join(["a" * 1500, "", "b" * 1000, "c", "d"]))
    part = {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1}
    model = {"encoder": part, "head": "mlm"} if masked else {"decoder": part}
    data = {"train": str(tmp_path / "valid.txt"), "valid": str(tmp_path / "valid.txt")}
    recipe = read_recipe(
        {"data": data, "model": model, "train": {"mask_probability": 0.15} if masked else {}}
    )
    end = None if masked else ""
    assert evaluate_verb._texts(recipe, 3) == [("a" * 1000, end), ("b" * 1000, end), ("c", end)]
