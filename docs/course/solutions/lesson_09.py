def exercise_1(tokens, context_length):
    starts = range(0, len(tokens) - context_length, context_length)
    return [
        (tokens[i : i + context_length], tokens[i + 1 : i + context_length + 1]) for i in starts
    ]


def exercise_2(states, mask):
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def exercise_3(tokens, positions, mask_id):
    inputs = [mask_id if i in positions else token for i, token in enumerate(tokens)]
    return inputs, [token if i in positions else -100 for i, token in enumerate(tokens)]
