"""The kinds of fields of the package itself: importing this module enters them into `FIELDS`."""

from regard.data.fields.base import FIELDS, Field
from regard.data.fields.image import ImageField
from regard.data.fields.label import LabelField
from regard.data.fields.labels import LabelsField
from regard.data.fields.number import NumberField
from regard.data.fields.tags import TagsField
from regard.data.fields.text import TextField
from regard.data.fields.vectors import VectorsField
from regard.data.fields.words import WordsField

KINDS: dict[str, type[Field]] = {
    "text": TextField,
    "label": LabelField,
    "image": ImageField,
    "labels": LabelsField,
    "number": NumberField,
    "vectors": VectorsField,
    "words": WordsField,
    "tags": TagsField,
}
for name, field in KINDS.items():
    FIELDS.add(name, field)

__all__ = [
    "ImageField",
    "LabelField",
    "LabelsField",
    "NumberField",
    "TagsField",
    "TextField",
    "VectorsField",
    "WordsField",
]
