"""Fields: what each part of an example is (a text, a label, an image, ...),
with one class for each kind.
"""

from regard.data.fields import kinds  # noqa: F401  enters the kinds of the package into `FIELDS`
from regard.data.fields.base import FIELDS

__all__ = ["FIELDS"]
