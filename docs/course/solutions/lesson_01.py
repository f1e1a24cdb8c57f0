import math


def exercise_1(log_probabilities):
    return math.exp(sum(log_probabilities))  # exp underflows to 0.0 by itself


def exercise_2(length, alphabet, dim, bits):
    return alphabet**length <= 2 ** (dim * bits)


def exercise_3(source, target):
    return ["<s>", *target], [*target, "</s>"]
