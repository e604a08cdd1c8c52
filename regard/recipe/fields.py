"""What fields are made of, and how messages and pages show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 1 << 20  # of all sizes; what is larger is a slip of the finger
WIDTH = 256  # of an encoder that names none, and so of its decoder

Size = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=1 << 53)]
Whole = Annotated[int, Field(ge=0, le=1 << 53)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Share = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """Strict, because TOML has types of its own: "3" is not 3, and `true` is not 1."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def shown(value: Any) -> str:
    """A value as a message shows it, cut where it gets long."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= 80 else f"{written[:77]}..."


def allowed(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words, for the table and for the errors.

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
    }[schema["type"]]
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [
        f"{sign} {schema[key]:,}"
        for key, sign in signs.items()
        if abs(schema.get(key, 1 << 53)) < 1 << 53
    ]
    return " ".join([noun, " and ".join(bounds)]).strip()
