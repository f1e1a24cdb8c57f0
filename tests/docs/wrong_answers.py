"""A plausible mistake for every exercise of the course, by (lesson, exercise). The grader must see it."""

import math

import torch


def _shift_labels(source, target):
    return [*target, "</s>"], ["<s>", *target]


def _alibi_without_mask(n, slope):
    return -slope * (torch.arange(n)[:, None] - torch.arange(n)[None]).abs().float()


def _one_head_scale(X, W_Q, W_K, W_V, W_O, heads):
    q, k, v = ((X @ W).unflatten(-1, (heads, -1)).transpose(0, 1) for W in (W_Q, W_K, W_V))
    return ((q @ k.mT / X.shape[1] ** 0.5).softmax(-1) @ v).transpose(0, 1).flatten(1) @ W_O


def _post_norm(x, attention, ffn, norm1, norm2):
    x = norm1(x + attention(x))
    return norm2(x + ffn(x))


def _mask_in_place(tokens, positions, mask_id):
    labels = [token if i in positions else -100 for i, token in enumerate(tokens)]
    for i in positions:
        tokens[i] = mask_id
    return tokens, labels


def _centered_convolution(x, weights, dilation):
    padded = torch.cat((x, torch.zeros((len(weights) - 1) * dilation)))
    return sum(w * padded[i * dilation : i * dilation + len(x)] for i, w in enumerate(weights))


WRONG = {
    (1, 1): lambda logs: sum(math.exp(each) for each in logs),
    (1, 2): lambda length, alphabet, dim, bits: length <= dim,
    (1, 3): _shift_labels,
    (2, 1): lambda query, keys, values: (keys @ query / 8**0.5).softmax(-1) @ values,  # scaled
    (2, 2): lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True),  # overflows
    (2, 3): lambda states: (states.mean(0, keepdim=True), states),
    (3, 1): lambda q, k, U, V, w: torch.tanh(q @ U.T) @ torch.diag(w) @ torch.tanh(k @ V.T).T,
    (3, 2): lambda dim, variance: dim**-0.5,
    (3, 3): lambda U, V: V.T @ U,
    (4, 1): lambda X, Q, K, V: ((X @ Q) @ (X @ K).T / X.shape[1] ** 0.5).softmax(-1) @ (X @ V),
    (4, 2): lambda layer, x: bool(torch.allclose(layer(x).sum(0), layer(x.flip(0)).sum(0), atol=1e-4)),  # invariance
    (4, 3): lambda permutation: list(permutation),
    (5, 1): lambda length, dim: torch.stack(
        [f(torch.arange(length)[:, None] * 1e4 ** (-torch.arange(0, dim, 2) / dim)) for f in (torch.sin, torch.cos)], -1
    ).flatten(1),  # interleaved
    (5, 2): lambda dim, shift: torch.eye(dim),
    (5, 3): _alibi_without_mask,
    (6, 1): lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(),  # top-left
    (6, 2): lambda lengths: torch.arange(max(lengths)) < torch.tensor(lengths)[:, None],
    (6, 3): lambda scores, mask: scores.masked_fill(~mask, -torch.inf).softmax(-1),  # NaN
    (7, 1): lambda x, heads: x.view(heads, len(x), -1),
    (7, 2): lambda dim, heads: 4 * heads * (dim * dim + dim),
    (7, 3): _one_head_scale,
    (8, 1): lambda x, gain, bias: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True) * gain + bias,
    (8, 2): _post_norm,
    (8, 3): lambda dim, ffn_dim: 4 * dim * dim + 2 * dim * ffn_dim,
    (9, 1): lambda tokens, size: [
        (tokens[i : i + size], tokens[i + 1 : i + size + 1]) for i in range(0, len(tokens), size)
    ],
    (9, 2): lambda states, mask: states.mean(1),
    (9, 3): _mask_in_place,
    (10, 1): lambda kernel, dilations: kernel * sum(dilations),
    (10, 2): _centered_convolution,
    (10, 3): lambda W, steps: torch.linalg.eigvals(W).abs().max() ** steps,
    (11, 1): lambda features: features.reshape(-1, features.shape[0]),
    (11, 2): lambda image, patch: image.reshape(-1, image.shape[0] * patch * patch),
    (11, 3): lambda features, state, W: features.flatten(1).T.mean(0),
    (12, 1): lambda tokens, window: [(a, b) for a in tokens for b in tokens if a != b],
    (12, 2): lambda center, context, negatives: (  # without logarithms
        -(torch.sigmoid(context @ center) + torch.sigmoid(-negatives @ center).sum())
    ),
    (12, 3): lambda counts, power: {word: count / sum(counts.values()) for word, count in counts.items()},
}  # fmt: skip
