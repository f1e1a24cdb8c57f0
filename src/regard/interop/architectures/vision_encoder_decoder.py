"""Captioning models: a ViT encoder and a GPT-2 decoder, in transformers' VisionEncoderDecoder."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from regard.core.config import doc
from regard.core.errors import InvalidData, InvalidRecipe, Problem
from regard.core.shapes import Tensor
from regard.interop.architectures import gpt2, vit
from regard.interop.architectures.base import Architecture, SharedKeys, tied, transformer
from regard.interop.rules import Rule
from regard.interop.tensors import TensorFolder
from regard.model.model_config import ModelConfig
from regard.model.vision import VitConfig

EMBEDDING = f"decoder.{gpt2.EMBEDDING}"
HEAD = f"decoder.{gpt2.HEAD}"
POOLER = "encoder.pooler.dense"


class _Encoder(vit.Vit):
    """ViT with a pooler, whose weights are kept although no caption depends on them."""

    unused = vit.Vit.unused - {"pooler_act"}
    fixed = {**vit.Vit.fixed, "pooler_act": "tanh"}


class _Decoder(gpt2.Gpt2):
    """GPT-2 with cross-attention."""

    fixed = {**gpt2.Gpt2.fixed, "add_cross_attention": True, "is_decoder": True}


@dataclass(frozen=True)
class VisionEncoderDecoderKeys(SharedKeys):
    encoder: vit.VitKeys = field(default=vit.VitKeys(), metadata={"doc": "the encoder"})
    decoder: gpt2.Gpt2Keys = field(default=gpt2.Gpt2Keys(), metadata={"doc": "the decoder"})
    tie_word_embeddings: bool = doc(False, "without effect: the decoder has its own")


class VisionEncoderDecoder(Architecture[VisionEncoderDecoderKeys]):
    """A GPT-2 with cross-attention that reads the states of a ViT, including the [CLS] token's."""

    model_type = "vision-encoder-decoder"
    keys = VisionEncoderDecoderKeys
    classes = {"VisionEncoderDecoderModel": "generation"}
    ignored = (r"decoder\.transformer\.h\.\d+\.(attn|crossattention)\.(bias|masked_bias)",)

    def read(self, config: Mapping[str, Any], head: str, where: Path) -> VisionEncoderDecoderKeys:
        parts: dict[str, Any] = {}
        for name, architecture in (("encoder", _Encoder()), ("decoder", _Decoder())):
            part = config.get(name)
            if not isinstance(part, dict) or part.get("model_type") != architecture.model_type:
                got = part
                if isinstance(part, dict):
                    got = part.get("model_type")
                wanted = repr(architecture.model_type)
                remedy = "Other encoders and decoders are not imported."
                raise InvalidData(
                    f"{where}: {name}.model_type", wanted=wanted, got=repr(got)[:80], remedy=remedy
                )
            parts[name] = architecture.read(part, head, Path(f"{where}: {name}"))
        own_config = {key: value for key, value in config.items() if key not in parts}
        outer = super().read(own_config, head, where)
        keys = VisionEncoderDecoderKeys(
            pad_token_id=outer.pad_token_id,
            bos_token_id=outer.bos_token_id,
            eos_token_id=outer.eos_token_id,
            decoder_start_token_id=outer.decoder_start_token_id,
            **parts,
        )
        problems = [replace(each, key=f"{where}: {each.key}") for each in self.part_problems(keys)]
        if problems:
            raise InvalidRecipe(problems)
        return keys

    def part_problems(self, keys: VisionEncoderDecoderKeys) -> Iterator[Problem]:
        dim = keys.encoder.hidden_size
        decoder_dim = keys.decoder.n_embd
        if dim != decoder_dim:
            wanted = f"decoder.n_embd = {decoder_dim}: a projection between them is not imported"
            yield Problem("encoder.hidden_size", wanted, str(dim), "Use another model.")

    def computed(
        self, keys: VisionEncoderDecoderKeys, tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        if f"{POOLER}.weight" in tensors:
            return {}
        # transformers would initialize the pooler of a model that has none with random numbers.
        dim = keys.encoder.hidden_size
        return {f"{POOLER}.weight": torch.zeros(dim, dim), f"{POOLER}.bias": torch.zeros(dim)}

    def decoder_start(self, keys: VisionEncoderDecoderKeys) -> int | None:
        given = (keys.decoder_start_token_id, keys.bos_token_id, keys.decoder.bos_token_id)
        return next((token for token in given if token is not None), None)

    def table(
        self, keys: VisionEncoderDecoderKeys, head: str, tensors: TensorFolder | None
    ) -> dict[str, Any]:
        ties = tied(tensors, HEAD, (EMBEDDING,), keys_say=keys.decoder.tie_word_embeddings)
        encoder = vit.Vit().encoder(keys.encoder)
        pooler_dim = keys.encoder.pooler_output_size
        if tensors is not None:
            # The file says whether there is a pooler; the keys say its size, if that is not the hidden size.
            if f"{POOLER}.weight" in tensors:
                pooler_dim = pooler_dim or keys.encoder.hidden_size
            else:
                pooler_dim = None
        if pooler_dim is not None:
            encoder["pooler_dim"] = pooler_dim
        return {
            "encoder": encoder,
            "decoder": gpt2.decoder_table(keys.decoder),
            "vocab_size": keys.decoder.vocab_size,
            "tie_embeddings": "target" if ties else "none",
            "scale_embeddings": False,
            "output_bias": False,
        }

    def rules(self, keys: VisionEncoderDecoderKeys, model: ModelConfig) -> list[Rule]:
        decoder = gpt2.decoder_rules(
            tied=model.options.tie_embeddings != "none", cross_attention=True
        )
        encoder = [rule.under("encoder.") for rule in vit.encoder_rules()]
        pooler = Rule(f"{POOLER}.{{p}}", "encoder.pooler.{p}")
        return [*encoder, pooler, *(rule.under("decoder.") for rule in decoder)]

    def copies(
        self, keys: VisionEncoderDecoderKeys, model: ModelConfig
    ) -> dict[str, tuple[str, ...]]:
        return {EMBEDDING: () if model.options.tie_embeddings == "none" else (HEAD,)}

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        decoder = transformer(model.decoder)
        if len(model.encoders) != 1 or decoder is None:
            return {}
        encoder = model.encoders[0].config
        if not isinstance(encoder, VitConfig):
            return {}
        encoder_keys = {"model_type": "vit", **vit.export_encoder_keys(encoder)}
        if encoder.pooler_dim is not None:
            encoder_keys["pooler_output_size"] = encoder.pooler_dim
        decoder_keys = {
            "model_type": "gpt2",
            "add_cross_attention": True,
            "is_decoder": True,
            **gpt2.export_decoder_keys(model, decoder),
        }
        return {
            "encoder": encoder_keys,
            "decoder": decoder_keys,
            "is_encoder_decoder": True,
            "tie_word_embeddings": False,
        }
