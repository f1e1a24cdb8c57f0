import torch


def exercise_1(query, keys, values):
    return torch.softmax(keys @ query, -1) @ values


def exercise_2(scores):
    shifted = (scores - scores.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def exercise_3(states):
    return torch.zeros(1, states.shape[1]), torch.zeros_like(states)
