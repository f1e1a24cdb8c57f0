"""The same logits as Hugging Face's models, built at random from small configurations, with copied weights."""

import pytest
import torch

from regard.core.sequence import Tokens
from support.hugging_face import translate, twin

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SEQ2SEQ = {
    "vocab_size": 31,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 20,
}
ENCODER = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
THEIRS = {
    "marian": lambda **o: transformers.MarianMTModel(
        transformers.MarianConfig(**SEQ2SEQ, **SPECIAL, decoder_start_token_id=0, **o)
    ),
    "bart": lambda **o: transformers.BartForConditionalGeneration(
        transformers.BartConfig(**SEQ2SEQ, **SPECIAL, decoder_start_token_id=2, **o)
    ),
    "gpt2": lambda **o: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=31, n_positions=20, n_embd=16, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2, **o
        )
    ),
    "bert": lambda **o: transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=31, max_position_embeddings=20, pad_token_id=0, **ENCODER, **o)
    ),
    "vit": lambda **o: transformers.ViTForImageClassification(
        transformers.ViTConfig(**ENCODER, image_size=12, patch_size=4, num_labels=5, **o)
    ),
}
SOURCE = Tokens.of([[4, 5, 6, 7, 8, 9], [3, 9, 4], [11, 30, 5, 12]])
TARGETS = torch.randint(3, 31, (3, 7), generator=torch.Generator().manual_seed(1))
VARIANTS = [
    ("marian", {"scale_embedding": True, "activation_function": "swish"}),
    ("marian", {"scale_embedding": False, "activation_function": "relu"}),
    ("bart", {"scale_embedding": False, "activation_function": "gelu"}),
    ("bart", {"scale_embedding": True, "activation_function": "gelu"}),
    ("gpt2", {}),
    ("gpt2", {"n_inner": 48, "activation_function": "gelu", "layer_norm_epsilon": 1e-3}),
    ("bert", {}),
    ("bert", {"layer_norm_eps": 1e-3}),
    ("vit", {}),
    ("vit", {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
]


def random_peer(kind, options):
    torch.manual_seed(3)
    theirs = THEIRS[kind](**options).eval()
    for parameter in theirs.parameters():  # biases at zero, gains at one and tables of 0.02 would hide mistakes
        if parameter.requires_grad:  # Marian's waves are no weights
            parameter.data += 0.2 * torch.randn_like(parameter)
    return theirs


def logits_of(kind, theirs, ours):
    if kind in ("marian", "bart"):
        mask = SOURCE.mask.long()
        given = theirs(input_ids=SOURCE.ids, attention_mask=mask, decoder_input_ids=TARGETS).logits
        return given, ours(SOURCE, TARGETS)
    if kind == "gpt2":
        return theirs(input_ids=TARGETS).logits, ours(None, TARGETS)
    if kind == "bert":
        given = theirs(input_ids=SOURCE.ids, attention_mask=SOURCE.mask.long()).logits
        return given[SOURCE.mask], ours(SOURCE)[SOURCE.mask]
    images = torch.randn(3, 3, 12, 12, generator=torch.Generator().manual_seed(2))
    return theirs(pixel_values=images).logits, ours(images)


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
@torch.no_grad()
def test_same_logits(kind, options):
    theirs = random_peer(kind, options)
    given, mine = logits_of(kind, theirs, twin(kind, theirs))
    assert given.std() > 0.1
    torch.testing.assert_close(mine, given, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["marian", "bart"])
@torch.no_grad()
def test_same_words(kind):
    """Their cached greedy search and our steps choose the same tokens."""
    theirs = random_peer(kind, {})
    ours = twin(kind, theirs)
    options = transformers.GenerationConfig(
        max_new_tokens=9, num_beams=1, do_sample=False, decoder_start_token_id=2, pad_token_id=0, eos_token_id=None
    )
    given = theirs.generate(SOURCE.ids, attention_mask=SOURCE.mask.long(), generation_config=options)
    state = ours.decoder.start(ours.encode(SOURCE), batch=3, capacity=9)
    said = [torch.full((3,), 2)]
    for _ in range(8):
        logits, state = ours.decoder.step(said[-1], state)
        said.append(logits.argmax(-1))
    assert torch.equal(torch.stack(said, 1), given[:, :9])  # the last may be forced to end the sentence


def test_an_unknown_weight_is_refused():
    theirs = random_peer("gpt2", {})
    with pytest.raises(ValueError, match=r"transformer.h.0.surprise has 0 places here"):
        translate("gpt2", theirs.config, theirs.state_dict() | {"transformer.h.0.surprise": torch.zeros(1)})
