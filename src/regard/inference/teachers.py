"""Load the teachers of knowledge distillation,
and refuse those that do not predict what the student learns.
"""

from collections.abc import Iterator

from regard.core.errors import InvalidRecipe, Problem
from regard.data.corpus import Prepared, VocabularyType
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.model.weights import fingerprint
from regard.recipe.recipe import Recipe
from regard.tasks.distillation import Distillation


def load_teachers(recipe: Recipe, data: Prepared, device: str) -> Distillation | None:
    """The teachers that a recipe names, for a student of these data; None where it names none."""
    config = recipe.train.distillation
    if config is None:
        return None
    teachers = [load(path, device=device) for path in config.teachers or ()]
    problems = [problem for teacher in teachers for problem in _problems(teacher, recipe, data)]
    if problems:
        raise InvalidRecipe([problem.under("train.distillation") for problem in problems])
    models = [teacher.model.eval().requires_grad_(False) for teacher in teachers]
    return Distillation(models, config.weight, config.temperature, tuple(map(fingerprint, models)))


def _problems(teacher: Predictor, recipe: Recipe, data: Prepared) -> Iterator[Problem]:
    """What keeps a model from predicting the targets of a batch of these data."""
    own = recipe.data
    other = teacher.recipe.data
    if teacher.recipe.task.name != recipe.task.name:
        got = f"{teacher.folder}, which gives {teacher.recipe.task.gives}"
        yield Problem("teachers", f"models that give {recipe.task.gives}", got, "Leave it out.")
        return
    if list(own.fields) != list(other.fields) or teacher.running_text != (
        own.context_length is not None
    ):
        got = f"{teacher.folder}, which has {_fields(teacher.recipe)}"
        yield Problem("teachers", f"models of {_fields(recipe)}", got, "Train it on the same data.")
        return
    vocabularies = zip(
        own.fields, (*data.sources, data.target), (*teacher.sources, teacher.target), strict=True
    )
    for name, own_vocabulary, its in vocabularies:
        if _hash(own_vocabulary) != _hash(its):
            wanted = f"the vocabulary of data.{name}, {_named(own_vocabulary)}"
            got = f"{teacher.folder} with {_named(its)}"
            yield Problem("teachers", wanted, got, "Train it on the same prepared data.")
    for name, field in own.fields.items():
        its_field = other.fields[name]
        if not (field.is_file or its_field.is_file):
            continue
        for key in ("kind", "image_size", "image_mean", "image_std"):
            mine = getattr(field, key, None)
            theirs = getattr(its_field, key, None)
            if mine != theirs:
                yield Problem(
                    "teachers",
                    f"data.{name}.{key} = {mine}",
                    f"{teacher.folder} with {theirs}",
                    "Change one.",
                )
    if recipe.train.packed and (reason := teacher.recipe.model.not_packable()) is not None:
        wanted = "models that take packed sequences, with train.packed"
        yield Problem(
            "teachers", wanted, f"{teacher.folder} with {reason}", "Leave train.packed out."
        )


def _hash(vocabulary: VocabularyType | None) -> str | None:
    return None if vocabulary is None else vocabulary.hash


def _named(vocabulary: VocabularyType | None) -> str:
    if vocabulary is None:
        return "none"
    return f"{vocabulary.size:,} entries ({vocabulary.hash[:8]})"


def _fields(recipe: Recipe) -> str:
    names = " and ".join(f"data.{name}" for name in recipe.data.fields)
    if recipe.data.context_length is not None:
        names += " of running text"
    return names
