"""Lint rules about variables that let others choose what is installed or run."""

from collections.abc import Iterator

from ..installs import variable_problem
from .model import Diagnostic
from .rule import LintContext, Rule


class _VariableRule(Rule):
    """A variable that `variable_problem` finds fault with; the first one of a kind is reported."""

    def check(self, context: LintContext) -> Iterator[Diagnostic]:
        for name, entry in context.document.env.items():
            problem = variable_problem(name, entry.text)
            if problem is not None and problem.code == self.code:
                yield self.diagnostic(entry, name=name)
                return


class ExtraIndex(_VariableRule):
    """Several package indexes, of which pip takes the highest version."""

    code = "extra-index"
    reason = "with {name}, packages come from several indexes"
    consequence = (
        "the highest version of all is installed, so a public package can replace yours of the same name"
    )
    fix = "Write PIP_INDEX_URL with one index that has all packages, and take {name} out."


class InsecureIndex(_VariableRule):
    """A package index without encryption or without its check."""

    code = "insecure-index"
    reason = "{name} allows an index that is not authenticated"
    consequence = "an attacker in the network can choose what is installed"
    fix = "Write an index that begins with https://, and take {name} out."


class UnsafeLoad(_VariableRule):
    """PyTorch configured to run the code in checkpoints."""

    code = "unsafe-load"
    reason = "with {name}, torch.load runs the code in every checkpoint"
    consequence = "a foreign model can act as you"
    fix = "Take it out, and pass weights_only=False where you trust the file."


INSTALL_RULES: tuple[Rule, ...] = (ExtraIndex(), InsecureIndex(), UnsafeLoad())
