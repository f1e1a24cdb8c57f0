def exercise_1(features):
    return features.flatten(1).T


def exercise_2(image, patch):
    tiles = image.unfold(1, patch, patch).unfold(
        2, patch, patch
    )  # (C, rows, columns, patch, patch)
    return tiles.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)


def exercise_3(features, state, W):
    regions = exercise_1(features)
    return (regions @ (state @ W)).softmax(-1) @ regions
