"""How annotations reach the hooks of an engine."""

from collections.abc import Mapping


def annotation_variables(annotations: Mapping[str, str]) -> dict[str, str]:
    """Name the variables by which Enroot's hooks see annotations: a dot becomes two underscores."""
    return {f"OCI_ANNOTATION_{name.replace('.', '__')}": value for name, value in annotations.items()}
