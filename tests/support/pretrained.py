"""Random models of Hugging Face's transformers, saved as a user would find them, and the same models as ours."""

from pathlib import Path

import torch

from regard.core.sequence import Tokens
from regard.interop.pretrained import PretrainedFolder
from regard.model.build import build
from regard.model.weights import load_weights

VOCABULARY = 31
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ = {
    "vocab_size": VOCABULARY, "d_model": 18, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "max_position_embeddings": 24,
    "decoder_start_token_id": 0, "forced_eos_token_id": None, **SPECIAL,
}  # fmt: skip
ENCODER = {
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 22,
}
LARGER = {
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 64,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_positions": 24,
    "n_embd": 15,
    "n_layer": 2,
    "n_head": 3,
    **SPECIAL,
}
BERT = {"vocab_size": VOCABULARY, "max_position_embeddings": 24, "pad_token_id": 0}
T5 = {"vocab_size": VOCABULARY, "d_model": 14, "d_kv": 5, "d_ff": 20, "num_layers": 3, "num_decoder_layers": 2,
      "num_heads": 3, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0,
      "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}  # fmt: skip
LLAMA = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 3, "intermediate_size": 32, "head_dim": 6, **SPECIAL}  # fmt: skip
ODD = {"hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 5,
       "intermediate_size": 56, "head_dim": 8, "tie_word_embeddings": True}  # fmt: skip
VIT = {**ENCODER, "image_size": 12, "patch_size": 4, "num_labels": 5}

# Name: (class of the model, class of its configuration, options).
CASES = {
    "marian": ("MarianMTModel", "MarianConfig", {**SEQ2SEQ, "scale_embedding": True, "activation_function": "swish"}),
    "marian-separate": ("MarianMTModel", "MarianConfig", {**SEQ2SEQ, "activation_function": "relu", "d_model": 36,
                        "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 29}),
    "marian-untied": ("MarianMTModel", "MarianConfig", {**SEQ2SEQ, "share_encoder_decoder_embeddings": False,
                      "tie_word_embeddings": False}),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", {**SEQ2SEQ, "scale_embedding": True}),
    "pegasus-larger": ("PegasusForConditionalGeneration", "PegasusConfig", {**SEQ2SEQ, "d_model": 30,
                       "encoder_layers": 3, "decoder_attention_heads": 5, "decoder_ffn_dim": 36,
                       "activation_function": "relu"}),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ),
    "bart-larger": ("BartForConditionalGeneration", "BartConfig", {**SEQ2SEQ, "d_model": 36, "encoder_layers": 3,
                    "scale_embedding": True, "activation_function": "relu"}),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", {**SEQ2SEQ, "scale_embedding": True}),
    "mbart-larger": ("MBartForConditionalGeneration", "MBartConfig", {**SEQ2SEQ, "d_model": 30, "encoder_layers": 3,
                     "decoder_attention_heads": 5, "decoder_ffn_dim": 36}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2-untied": ("GPT2LMHeadModel", "GPT2Config", {**GPT2, "n_embd": 40, "n_head": 5, "n_inner": 48,
                    "activation_function": "gelu", "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False}),
    "bert-mlm": ("BertForMaskedLM", "BertConfig", {**BERT, **ENCODER}),
    "bert-mlm-untied": ("BertForMaskedLM", "BertConfig", {**BERT, **LARGER, "layer_norm_eps": 1e-3,
                        "type_vocab_size": 3, "tie_word_embeddings": False}),
    "bert": ("BertForSequenceClassification", "BertConfig", {**BERT, **ENCODER, "num_labels": 3, "hidden_act": "relu"}),
    "bert-tags": ("BertForTokenClassification", "BertConfig", {**BERT, **ENCODER, "num_labels": 5}),
    "roberta-tags": ("RobertaForTokenClassification", "RobertaConfig", {**BERT, **LARGER, "pad_token_id": 1}),
    "distilbert-tags": ("DistilBertForTokenClassification", "DistilBertConfig", {**BERT, "dim": 40, "n_layers": 3,
                        "n_heads": 5, "hidden_dim": 20, "num_labels": 4}),
    "roberta-mlm": ("RobertaForMaskedLM", "RobertaConfig", {**BERT, **ENCODER, "pad_token_id": 1, "bos_token_id": 0}),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", {**BERT, **LARGER, "pad_token_id": 1}),
    "distilbert-mlm": ("DistilBertForMaskedLM", "DistilBertConfig", {**BERT, "dim": 15, "n_layers": 2, "n_heads": 3,
                       "hidden_dim": 20}),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertConfig", {**BERT, "dim": 40, "n_layers": 3,
                   "n_heads": 5, "hidden_dim": 20, "activation": "relu", "num_labels": 4}),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "t5-gated": ("T5ForConditionalGeneration", "T5Config", {**T5, "feed_forward_proj": "gated-gelu", "d_model": 24,
                 "tie_word_embeddings": False}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "rope_parameters": {"rope_type": "default",
              "rope_theta": 500.0}}),
    "llama-biased": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "hidden_size": 36, "attention_bias": True,
                     "mlp_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 6}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 4}),
    "mistral-larger": ("MistralForCausalLM", "MistralConfig", {**LLAMA, **ODD, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {key: value for key, value in LLAMA.items() if key != "head_dim"}),
    "qwen2-window": ("Qwen2ForCausalLM", "Qwen2Config", {**{k: v for k, v in LLAMA.items() if k != "head_dim"},
                     "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0,
                     "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 10, "rms_norm_eps": 1e-3}),
    "qwen3-larger": ("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, **ODD, "attention_bias": True}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**LLAMA, "num_key_value_heads": 1}),
    "gemma-larger": ("GemmaForCausalLM", "GemmaConfig", {**LLAMA, **ODD, "tie_word_embeddings": False}),
    "vit": ("ViTForImageClassification", "ViTConfig", {**VIT, "hidden_size": 24}),
    "vit-larger": ("ViTForImageClassification", "ViTConfig", {**VIT, **LARGER, "hidden_act": "relu", "image_size": 16}),
    "deit": ("DeiTForImageClassification", "DeiTConfig", VIT),  # of an odd dimension
    "deit-teacher": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {**VIT, **LARGER, "image_size": 16}),
    "captioner": ("VisionEncoderDecoderModel", "VisionEncoderDecoderConfig", {"hidden_size": 24}),
    "captioner-larger": ("VisionEncoderDecoderModel", "VisionEncoderDecoderConfig", {**LARGER, "n_head": 5}),
}  # fmt: skip
SOURCE = Tokens.of([[4, 5, 6, 7, 8, 9, 2], [3, 9, 4, 2], [11, 28, 5, 12, 2]])
TARGETS = torch.randint(3, 29, (3, 9), generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(3, 3, 12, 12, generator=torch.Generator().manual_seed(2))


def random_theirs(name, seed=3):
    """A model of transformers with weights that hide no mistake: no zero biases, no gains of one."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model_class, config_class, options = CASES[name]
    torch.manual_seed(seed)
    if name.startswith("captioner"):
        own = {"n_embd": options["hidden_size"], "n_head": options.get("n_head", GPT2["n_head"])}
        parts = (
            transformers.ViTConfig(
                **{**VIT, **{key: options[key] for key in options if key != "n_head"}}
            ),
            transformers.GPT2Config(**{**GPT2, **own}),
        )
        config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
            *parts, decoder_start_token_id=1, pad_token_id=0, eos_token_id=2
        )
    else:
        config = getattr(transformers, config_class)(**options)
    theirs = getattr(transformers, model_class)(config).eval()
    if hasattr(theirs, "final_logits_bias"):
        theirs.final_logits_bias.normal_()
    for parameter in theirs.parameters():
        if parameter.requires_grad:  # Marian's sinusoids are no weights
            parameter.data += 0.3 * torch.randn_like(parameter)
    if (
        name == "t5-gated"
    ):  # the head of a published file is not tied, whatever the configuration says
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight))
    return theirs


def ours_of(folder: Path):
    """Our model of a folder of transformers, and the folder."""
    pretrained = PretrainedFolder(folder)
    model = build(pretrained.table).eval()
    load_weights(model, dict(pretrained.weights()), folder)
    return model, pretrained


def assert_same_logits(got, wanted, tolerance=1e-5):
    """Logits are the same to 1e-5 of the largest of them, or of 1 where all are smaller: float32 rounds relatively.

    This is what "equal to 1e-5" means for every architecture.
    """
    scale = float(wanted.abs().max().clamp(min=1))
    assert float((got - wanted).abs().max()) <= tolerance * scale


def logits(name, theirs, ours):
    """Their logits and ours for the same input."""
    mask = SOURCE.mask.long()
    if name.startswith("captioner"):
        return theirs(pixel_values=IMAGES, decoder_input_ids=TARGETS).logits, ours(IMAGES, TARGETS)
    if hasattr(theirs.config, "image_size"):
        side = theirs.config.image_size
        images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(2))
        return theirs(pixel_values=images).logits, ours(images)
    if theirs.config.is_encoder_decoder:
        given = theirs(input_ids=SOURCE.ids, attention_mask=mask, decoder_input_ids=TARGETS).logits
        return given, ours(SOURCE, TARGETS)
    if theirs.can_generate():
        return theirs(input_ids=TARGETS).logits, ours(None, TARGETS)
    ids = SOURCE.ids.masked_fill(~SOURCE.mask, theirs.config.pad_token_id)
    given, own = theirs(input_ids=ids, attention_mask=mask).logits, ours(SOURCE)
    return (given[SOURCE.mask], own[SOURCE.mask]) if own.dim() == 3 else (given, own)
