"""Learning from one's own captions: samples count by how much better CIDEr finds them than the likeliest caption.

Self-critical training (https://arxiv.org/abs/1612.00563). What is drawn is a function of the seed, the update's number
and the weights, so a run that was stopped goes on as it would have.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from regard.core.sequence import Packed, Tokens
from regard.core.shapes import Float, Tensor
from regard.data.batching import Batch
from regard.data.corpus import Corpus
from regard.data.tokenizer import END, START, Labels, Tokenizer
from regard.decoding.config import DecodeConfig
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.request import Request, SearchTask
from regard.decoding.search import search
from regard.evaluation.caption_metrics import CaptionTokens, DocumentFrequency, TfIdfVector, cider_d
from regard.evaluation.ptb_tokenizer import tokenize
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq
from regard.recipe.recipe import Recipe
from regard.training.distributed import ALONE, ProcessGroup

STEPS = 1 << 32  # between one seed's draws and the next one's
PICTURES = 1 << 13  # whose references are kept as CIDEr sees them
STOP = "</s>"  # the end is a word here: a caption that breaks off must not be worth as much as one that ends


class SelfCriticalReward:
    """What a model says to a batch, and what each is worth beside the references of its picture."""

    def __init__(self, recipe: Recipe, corpus: Corpus, target: Tokenizer | Labels, ranks: ProcessGroup = ALONE) -> None:
        assert isinstance(target, Tokenizer)
        self.recipe, self.target, self.ranks = recipe, target, ranks
        pictures = getattr(corpus.source, "pictures", corpus.source)  # what was made of pictures knows them
        self.which: Sequence[int] = getattr(pictures, "which", range(len(corpus)))  # the picture of each example
        self.references: dict[int, list[CaptionTokens]] = defaultdict(list)
        for row, picture in enumerate(self.which):
            self.references[int(picture)].append((*self._words(corpus.target.row(row)), STOP))
        self.rarity = DocumentFrequency()
        for references in self.references.values():
            self.rarity.add(references)
        self.weighed = lru_cache(maxsize=PICTURES)(self._weighed)

    def _words(self, ids: Any) -> CaptionTokens:
        """Of a target, as numbers; what is unknown among words stands for none of those that are known."""
        apart = self.recipe.data.target.tokenizer == "words"
        return tokenize(" ".join(self.target.pieces(ids[1:-1])) if apart else self.target.decode(ids[1:-1]))

    def __call__(self, model: Seq2Seq, batch: Batch, step: int) -> tuple[Tokens, Float[Tensor, " B"]]:
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            assert not isinstance(batch.source, Packed)
            memory = model.encode(batch.source)
            assert memory is not None
            plain = DecodeConfig(max_length=self.recipe.decode.max_length)
            likeliest = self._said(model, memory, plain)
            seed = self.recipe.train.seed * STEPS + step * self.ranks.world + self.ranks.rank
            drawn = self._said(model, memory, DecodeConfig(max_length=plain.max_length, sample=True, seed=seed))
        model.train(was_training)
        rows = batch.rows.tolist()
        worth = [
            self.reward(row, mine) - self.reward(row, usual)
            for row, mine, usual in zip(rows, drawn, likeliest, strict=True)
        ]
        device = memory.states.device
        said = Tokens.of([[START, *each.tokens, *[END] * each.ended] for each in drawn], device=device)
        return said, torch.tensor(worth, device=device)

    def reward(self, row: int, said: Hypothesis) -> float:
        """CIDEr-D of an output to this example of the corpus."""
        words = (*tokenize(self.target.decode(said.tokens)), *[STOP] * said.ended)
        return cider_d(self.rarity.weigh(words), self.weighed(int(self.which[row])))

    def _weighed(self, picture: int) -> list[TfIdfVector]:
        return [self.rarity.weigh(reference) for reference in self.references[picture]]

    def _said(self, model: Seq2Seq, memory: Memory, config: DecodeConfig) -> list[Hypothesis]:
        """One output for each row of a memory."""
        found: dict[int, Hypothesis] = {}
        places = range(len(memory.states))

        def collate(rows: Sequence[int]) -> Memory:
            return memory.reorder(torch.tensor(rows, device=memory.states.device))

        inputs = [Request(row, memory.states.shape[1]) for row in places]
        for row, hypotheses in search(SearchTask(model, collate, config), inputs):
            found[row] = hypotheses[0]
        return [found[row] for row in places]
