"""Recipes: the typed [data], [model], [train] and [decode] tables, their checks and their JSON Schema."""
