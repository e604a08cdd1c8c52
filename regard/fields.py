"""Types of the fields of recipes and options, and how messages and documentation print them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from regard.marks import Mark

LARGEST = 1 << 20  # upper bound of all sizes, to catch typing errors
WIDTH = 256  # default width of the encoder, and so of its decoder

UNBOUNDED = 1 << 53  # whole numbers up to here are exact in JSON; not printed as a bound

Size = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=UNBOUNDED)]
Whole = Annotated[int, Field(ge=0, le=UNBOUNDED)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Share = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]

# Fields with marks.
File = Annotated[Text, Mark.PATH, Mark.FREE]
HeldOutFile = Annotated[Text, Mark.PATH, Mark.HELD_OUT, Mark.FREE]
Column = Annotated[Text | int, Mark.COLUMN, Mark.VOCABULARY, Mark.FREE]
MaxLength = Annotated[Size, Mark.VOCABULARY]
Turns = Annotated[int, Field(ge=1, le=100), Mark.VOCABULARY, Mark.WEIGHTS]
Dropout = Annotated[Share, Mark.TRAINING]
Augmentation = Annotated[Share, Mark.TRAINING, Mark.FREE]


class Section(BaseModel):
    """Base class of all sections. Strict, as TOML is typed: "3" is not 3, and `true` is not 1."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def shown(value: Any) -> str:
    """A value as JSON for a message, cut to 80 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):  # keys that JSON cannot have, or a circle
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def allowed(schema: Mapping[str, Any]) -> str:
    """The values a JSON schema allows, in words.

    >>> allowed({"type": "integer", "minimum": 1})
    'a whole number >= 1'
    """
    match schema:
        case {"anyOf": options}:
            return " or ".join(allowed(option) for option in options if option != {"type": "null"})
        case {"const": value}:
            return shown(value)
        case {"enum": values}:
            return " or ".join(shown(value) for value in values)
        case {"type": "array", "prefixItems": items}:
            return f"a list of {len(items)}, each {allowed(items[0])}"
        case {"type": "array", "items": item}:
            return f"a list, each {allowed(item)}"
    noun = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "true or false",
        "object": "a table",
    }[schema["type"]]
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = []
    for key, sign in signs.items():
        bound = schema.get(key, UNBOUNDED)
        if abs(bound) < UNBOUNDED:
            bounds.append(f"{sign} {bound:,}")
    return " ".join([noun, " and ".join(bounds)]).strip()
