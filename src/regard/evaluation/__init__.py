"""How good a model is, in the numbers its field uses."""
