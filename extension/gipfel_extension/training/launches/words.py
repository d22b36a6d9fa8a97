"""A parameter's value as it was typed: a number, a truth value, a list … or else the very text."""

import json

from pydantic import JsonValue


def parameter_value(text: str) -> JsonValue:
    """The value that a text stands for; what is no JSON is a text, and nothing is evaluated."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)
    return value
