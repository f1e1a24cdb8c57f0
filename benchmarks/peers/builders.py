"""One small function a contestant: its model, and how a batch becomes logits of every target position, or its loss.

Equal in all: 3 + 3 layers of width 256 with 4 heads and a perceptron of 1,024 with ReLU, dropout 0.1 wherever the peer
drops by default, one matrix for both embeddings and the output. Norms stand first where the peer leaves the choice.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from peers.batches import END, PAD, SMOOTHING, SPECIALS, START, VOCABULARY, Batch

WIDTH, LAYERS, HEADS, HIDDEN, DROPOUT, LONGEST = 256, 3, 4, 1024, 0.1, 256
Contestant = tuple[nn.Module, Callable[[Batch], Tensor]]


def regard_model(encoder: dict[str, Any], decoder: dict[str, Any]) -> Contestant:
    import regard
    from regard.core.sequence import Packing, Tokens
    from regard.tasks.losses import token_loss

    model = regard.build(
        {"encoder": encoder, "decoder": decoder, "vocab_size": VOCABULARY, "tie_embeddings": "all"}
    )

    def loss(batch: Batch) -> Tensor:
        """As its own training computes it: of the tokens that are there, and never all logits at once."""
        packing = Packing.of(batch.wanted_mask)
        memory = model.encode(Tokens(batch.source, batch.source_lengths))
        states = model.decoder.hidden(batch.given, memory, packing)
        labels = batch.wanted.flatten()[packing.indices]
        return token_loss(
            states, model.decoder.project, labels, label_smoothing=SMOOTHING
        ).loss / len(labels)

    return model, loss


def regard_transformer() -> Contestant:
    table = {
        "kind": "transformer",
        "dim": WIDTH,
        "layers": LAYERS,
        "heads": HEADS,
        "ffn_dim": HIDDEN,
    }
    return regard_model({**table, "dropout": DROPOUT}, {**table, "dropout": DROPOUT})


def regard_gru(**wiring: Any) -> Contestant:
    table = {"kind": "rnn", "cell": "gru", "dim": WIDTH, "layers": 1, "dropout": DROPOUT}
    return regard_model(table, {**table, **wiring})


def hugging_face(name: str) -> Contestant:
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        activation_function="relu",
        dropout=DROPOUT,
        max_position_embeddings=LONGEST,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        forced_eos_token_id=END,
        decoder_start_token_id=START,
        use_cache=False,
    )
    model = getattr(
        transformers, {"Marian": "MarianMTModel", "Bart": "BartForConditionalGeneration"}[name]
    )(config)

    def forward(batch: Batch) -> Tensor:
        return model(
            input_ids=batch.source,
            attention_mask=batch.source_mask.long(),
            decoder_input_ids=batch.given,
        ).logits

    return model, forward


class TorchTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        angles = torch.arange(LONGEST)[:, None] * 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("places", torch.cat((angles.sin(), angles.cos()), -1))
        self.dropout = nn.Dropout(DROPOUT)
        self.transformer = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, DROPOUT, batch_first=True, norm_first=True
        )

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * WIDTH**0.5 + self.places[: ids.shape[1]])

    def forward(self, batch: Batch) -> Tensor:
        later = torch.ones(batch.given.shape[1], batch.given.shape[1], dtype=torch.bool).triu(1)
        states = self.transformer(
            self.embed(batch.source),
            self.embed(batch.given),
            tgt_mask=later,
            tgt_is_causal=True,
            src_key_padding_mask=~batch.source_mask,
            memory_key_padding_mask=~batch.source_mask,
        )
        return nn.functional.linear(states, self.embedding.weight)


def torch_transformer() -> Contestant:
    model = TorchTransformer()
    return model, model


def joey_model(encoder: dict[str, Any], decoder: dict[str, Any], *, scale: bool) -> Contestant:
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    unk, pad, bos, eos = SPECIALS
    specials = SimpleNamespace(
        unk_token=unk, pad_token=pad, bos_token=bos, eos_token=eos, sep_token=None,
        unk_id=0, pad_id=PAD, bos_id=START, eos_id=END, sep_id=None, lang_tags=[],
    )  # fmt: skip
    words = Vocabulary([f"t{i}" for i in range(VOCABULARY - len(SPECIALS))], specials)
    embeddings = {"embedding_dim": WIDTH, "scale": scale, "dropout": DROPOUT}
    parts = {
        "encoder": {**encoder, "embeddings": embeddings},
        "decoder": {**decoder, "embeddings": embeddings},
        "tied_embeddings": True,
        "tied_softmax": True,
    }
    model = build_model(parts, words, words)

    def forward(batch: Batch) -> Tensor:
        logits, *_ = model._encode_decode(
            src=batch.source,
            trg_input=batch.given,
            src_mask=batch.source_mask[:, None],
            src_length=batch.source_lengths,
            trg_mask=batch.wanted_mask[:, None],
        )
        return logits

    return model, forward


def joey_transformer() -> Contestant:
    part = {
        "type": "transformer", "num_layers": LAYERS, "num_heads": HEADS, "hidden_size": WIDTH, "ff_size": HIDDEN,
        "dropout": DROPOUT, "layer_norm": "pre",
    }  # fmt: skip
    return joey_model(part, part, scale=True)


def joey_gru(attention: str, *, feed: bool) -> Contestant:
    """Joey NMT's decoder makes a step, then attends; `luong` is the bilinear score, `bahdanau` the additive one."""
    part = {"type": "recurrent", "rnn_type": "gru", "num_layers": 1, "dropout": DROPOUT}
    encoder = {**part, "hidden_size": WIDTH // 2, "bidirectional": True}
    decoder = {
        **part,
        "hidden_size": WIDTH,
        "hidden_dropout": DROPOUT,
        "attention": attention,
        "input_feeding": feed,
    }
    return joey_model(encoder, decoder, scale=False)


def x_transformers() -> Contestant:
    """As its XTransformer wires them, which itself cannot tie the output."""
    from x_transformers import Decoder, Encoder, TransformerWrapper

    part: dict[str, Any] = {
        "dim": WIDTH, "depth": LAYERS, "heads": HEADS, "attn_dropout": DROPOUT, "ff_dropout": DROPOUT,
        "ff_custom_activation": nn.ReLU(), "attn_flash": True,
    }  # fmt: skip
    around: dict[str, Any] = {
        "num_tokens": VOCABULARY,
        "max_seq_len": LONGEST,
        "emb_dropout": DROPOUT,
    }
    encoder = TransformerWrapper(attn_layers=Encoder(**part), return_only_embed=True, **around)
    decoder = TransformerWrapper(
        attn_layers=Decoder(cross_attend=True, **part),
        tie_embedding=True,
        token_emb=encoder.token_emb,
        **around,
    )

    def forward(batch: Batch) -> Tensor:
        states = encoder(batch.source, mask=batch.source_mask, return_embeddings=True)
        return decoder(batch.given, context=states, context_mask=batch.source_mask)

    return nn.ModuleList((encoder, decoder)), forward


BUILDERS: dict[str, Callable[[], Contestant]] = {
    "marian": partial(hugging_face, "Marian"),
    "bart": partial(hugging_face, "Bart"),
    "torch": torch_transformer,
    "joey": joey_transformer,
    "x": x_transformers,
    "regard": regard_transformer,
    "joey-additive-feed": partial(joey_gru, "bahdanau", input_feeding=True),
    "joey-bilinear-feed": partial(joey_gru, "luong", input_feeding=True),
    "joey-bilinear": partial(joey_gru, "luong", feed=False),
    "regard-additive-feed": partial(
        regard_gru, attention="luong", score="additive", input_feeding=True
    ),
    "regard-bilinear-feed": partial(
        regard_gru, attention="luong", score="bilinear", input_feeding=True
    ),
    "regard-bilinear": partial(regard_gru, attention="luong", score="bilinear"),
    "regard-before": partial(regard_gru, attention="bahdanau", score="additive"),
}
