"""Finding the best output: one search loop for every decoder."""
