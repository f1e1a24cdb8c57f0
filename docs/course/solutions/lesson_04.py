import torch


def exercise_1(X, W_Q, W_K, W_V):
    scores = (X @ W_Q) @ (X @ W_K).T / W_K.shape[1] ** 0.5
    return scores.softmax(-1) @ (X @ W_V)


def exercise_2(layer, x):
    orders = [torch.randperm(len(x)) for _ in range(10)]
    return all(torch.allclose(layer(x[order]), layer(x)[order], atol=1e-4) for order in orders)


def exercise_3(permutation):
    return [permutation.index(i) for i in range(len(permutation))]
