"""Output of commands that check files which users write, such as ``gipfel rules check``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gipfel_cluster.definition_files import FileDiagnostic


def report_checked(
    checked: Sequence[tuple[Path, Any, tuple["FileDiagnostic", ...]]], *, as_document: bool
) -> int:
    """Print the mistakes of files, or that each can be used; return the exit status.

    Parameters
    ----------
    checked
        Each file with what it defines, None if it can't be used, and its mistakes.
    """
    if as_document:
        document = [
            {
                "file": str(path),
                "valid": found is not None,
                "problems": [each.model_dump() for each in problems],
            }
            for path, found, problems in checked
        ]
        click.echo(json.dumps(document))
    else:
        for path, found, problems in checked:
            for each in problems:
                click.echo(f"{each}\n  {each.fix}")
            if found is not None:
                click.echo(f"{path}: can be used.")
    return 0 if all(found is not None for _, found, _ in checked) else 1
