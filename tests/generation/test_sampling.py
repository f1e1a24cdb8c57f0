"""The filters of sampling, in every combination, against those of transformers."""

import random

import pytest
import torch

from regard.generation.choose.sampling import filtered
from regard.generation.config import DecodeConfig

transformers = pytest.importorskip("transformers")

VALUES = {
    "temperature": lambda random: random.uniform(0.4, 2.0),
    "top_k": lambda random: random.randint(1, 60),
    "top_p": lambda random: random.uniform(0.1, 0.98),
    "min_p": lambda random: random.uniform(0.001, 0.4),
    "typical_p": lambda random: random.uniform(0.1, 0.98),
}


@pytest.fixture(scope="module")
def theirs():
    """A model of transformers: it decides itself in which order its filters follow one another."""
    config = transformers.GPT2Config(vocab_size=40, n_embd=4, n_layer=1, n_head=1, n_positions=4)
    return transformers.GPT2LMHeadModel(config)


def _filtered_by(theirs, scores, options):
    """The scores after the filters of transformers; options that are left out are turned off."""
    off = {"top_k": 0, "top_p": 1.0, "typical_p": 1.0}
    generation = transformers.GenerationConfig(**{"do_sample": True, **off, **options})
    generation, _ = theirs._prepare_generation_config(generation)
    processors = theirs._get_logits_processor(generation, input_ids_seq_length=1)
    return processors(torch.zeros(len(scores), 1, dtype=torch.long), scores.clone())


@pytest.mark.parametrize("count", range(1, len(VALUES) + 1))
def test_combined_filters_keep_the_tokens_that_transformers_keeps(count, theirs):
    choose = random.Random(count)
    generator = torch.Generator().manual_seed(count)
    for _ in range(60):
        options = {key: VALUES[key](choose) for key in choose.sample(list(VALUES), count)}
        spread = choose.uniform(0.3, 4.0)
        scores = torch.randn(3, 40, generator=generator) * spread
        scores[:, :2] = -torch.inf  # tokens that other constraints exclude
        wanted = _filtered_by(theirs, scores, options)
        got = filtered(scores[:, None], DecodeConfig(sample=True, **options))[:, 0]
        assert torch.equal(got.isfinite(), wanted.isfinite()), options
        torch.testing.assert_close(got.softmax(-1), wanted.softmax(-1))
