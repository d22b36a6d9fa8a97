"""What is allowed in an EDF and yet most likely a mistake; the page about every rule is ``../README.md``."""

from collections.abc import Iterator

from ..dialects import DIALECTS
from ..model import Diagnostic
from .dialects import DIALECT_RULES
from .hooks import HOOK_RULES
from .images import IMAGE_RULES
from .mounts import MOUNT_RULES
from .rule import Rule, Subject
from .sarus import SARUS_RULES
from .values import VALUE_RULES

__all__ = ["RULES", "Rule", "Subject", "lint"]

RULES: tuple[Rule, ...] = (
    *VALUE_RULES,
    *IMAGE_RULES,
    *MOUNT_RULES,
    *HOOK_RULES,
    *DIALECT_RULES,
    *SARUS_RULES,
)
_BY_DIALECT = {name: tuple(rule for rule in RULES if name in rule.dialects) for name in DIALECTS}


def lint(subject: Subject) -> Iterator[Diagnostic]:
    """Yield what every rule has to say, but no warning about a value that is refused for the same cause."""
    for rule in _BY_DIALECT[subject.dialect]:
        for found in rule.look(subject):
            if rule.beside_errors or found.severity == "error" or found.key not in subject.failed:
                yield found
