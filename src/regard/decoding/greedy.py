"""The most likely next token, again and again, until each sentence has ended."""

from dataclasses import dataclass
from typing import Any

import torch

from regard.configuration import Checked, Count
from regard.data.tokens import END, MASK, PAD, START
from regard.model.seq2seq import Seq2Seq
from regard.shapes import Int, Tensor

NEVER = [PAD, START, MASK]  # no part of any text


@dataclass(frozen=True)
class DecodeConfig(Checked):
    """What a recipe's [decode] table may say."""

    longest: Count = 200  # tokens of an output, at most
    batch_tokens: Count = 4096  # of the source, read at once


@torch.inference_mode()
def greedy(
    model: Seq2Seq, source: Any, *, prompt: Int[Tensor, "B P"], longest: int, ends: bool = True
) -> Int[Tensor, "B T"]:
    """What follows the prompt, for each row of the source; padding after a sentence's end.

    The prompt begins with the token that starts a text. Without `ends`, the end of a sentence is a token like others.
    """
    decoder: Any = model.decoder
    rows, said = len(prompt), []
    state = decoder.start(model.encode(source), batch=rows, capacity=prompt.shape[1] + longest)
    for tokens in prompt.T[:-1]:
        _, state = decoder.step(tokens, state)
    tokens, ended = prompt[:, -1], torch.zeros(rows, dtype=torch.bool, device=prompt.device)
    for _ in range(longest):
        logits, state = decoder.step(tokens, state)
        logits[:, NEVER] = -torch.inf
        tokens = logits.argmax(-1).masked_fill(ended, PAD)
        said.append(tokens)
        if ends:
            ended = ended | (tokens == END)
            if bool(ended.all()):
                break
    return torch.stack(said, 1)
