"""The table of architectures."""

from typing import Any

from regard.interop.architectures.base import Architecture
from regard.interop.architectures.bert import Bert, DistilBert, Roberta
from regard.interop.architectures.gpt2 import Gpt2
from regard.interop.architectures.llama import Gemma, Llama, Mistral, Qwen2, Qwen3
from regard.interop.architectures.seq2seq import Bart, Marian, MBart, Pegasus
from regard.interop.architectures.t5 import T5
from regard.interop.architectures.vision_encoder_decoder import VisionEncoderDecoder
from regard.interop.architectures.vit import Deit, Vit

_ALL: tuple[Architecture[Any], ...] = (
    Marian(), Pegasus(), Bart(), MBart(), T5(), Gpt2(), Llama(), Mistral(), Qwen2(), Qwen3(),
    Gemma(), Bert(),
    Roberta(), DistilBert(), Vit(), Deit(), VisionEncoderDecoder(),
)  # fmt: skip
# By the model_type of config.json.
ARCHITECTURES: dict[str, Architecture[Any]] = {
    architecture.model_type: architecture for architecture in _ALL
}
