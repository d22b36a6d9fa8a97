"""Reads catalogues: the shipped one, and a site's own after it."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.model import GipfelError

from ..settings import first_problem, read_yaml
from .model import Catalogue, Rule

#: The catalogue that comes with the package.
SHIPPED = Path(__file__).with_name("catalogue.yaml")


def load_rules(more: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """All rules; one of a later catalogue takes the place of an earlier one of its name.

    Raises
    ------
    GipfelError
        A file can't be read, is no catalogue, or names a rule twice.
    """
    rules: dict[str, Rule] = {}
    for path in (SHIPPED, *more):
        try:
            catalogue = Catalogue.model_validate(read_yaml(path))
        except ValidationError as error:
            raise GipfelError(f"{path} is no catalogue of rules: {first_problem(error)}") from None
        names = [rule.name for rule in catalogue.rules]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise GipfelError(f"{path} has two rules named {twice[0]}.")
        rules |= {rule.name: rule for rule in catalogue.rules}
    return tuple(rules.values())
