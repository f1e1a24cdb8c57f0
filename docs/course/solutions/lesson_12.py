import torch


def exercise_1(tokens, window):
    for i, word in enumerate(tokens):
        for j in range(max(0, i - window), min(len(tokens), i + window + 1)):
            if j != i:
                yield word, tokens[j]


def exercise_2(center, context, negatives):
    right, wrong = (
        torch.sigmoid(context @ center).log(),
        torch.sigmoid(-negatives @ center).log().sum(),
    )
    return -(right + wrong)


def exercise_3(counts, power):
    raised = {word: count**power for word, count in counts.items()}
    return {word: value / sum(raised.values()) for word, value in raised.items()}
