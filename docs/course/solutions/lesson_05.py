import torch


def exercise_1(length, dim):
    frequency = 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
    angle = torch.arange(length)[:, None] * frequency
    return torch.cat((angle.sin(), angle.cos()), -1)


def exercise_2(dim, shift):
    angle = shift * 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
    cos, sin = torch.diag(angle.cos()), torch.diag(angle.sin())
    return torch.cat((torch.cat((cos, sin), 1), torch.cat((-sin, cos), 1)))


def exercise_3(n, slope):
    distance = torch.arange(n)[:, None] - torch.arange(n)[None]
    return torch.where(distance >= 0, -slope * distance, -torch.inf)
