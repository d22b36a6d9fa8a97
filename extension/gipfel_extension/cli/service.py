"""``gipfel service``: blueprints of services."""

import json
import os
from pathlib import Path

import click

from .terminal import examples, report_line


@click.group()
def service() -> None:
    """List and check blueprints of services, such as dashboards."""


@service.command(epilog=examples("gipfel service blueprints", "gipfel service blueprints --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def blueprints(*, as_json: bool) -> int:
    """List the blueprints of services with their parameters.

    They are found in ~/.gipfel/blueprints, the directories of $GIPFEL_BLUEPRINTS, and installed packages; the
    first one with a name is used. Exit status: 0; 1 if a blueprint can't be used.
    """
    from ..services.lookup import known_blueprints  # noqa: PLC0415 - pydantic, which --help can do without

    found, problems = known_blueprints(os.environ)
    if as_json:
        listed = [{"origin": origin, **each.model_dump(mode="json")} for origin, each in found.values()]
        click.echo(json.dumps({"blueprints": listed, "problems": [each.model_dump() for each in problems]}))
        return 1 if problems else 0
    for name, (origin, each) in sorted(found.items()):
        click.echo(f"{name:<20}  {each.title} ({origin})")
        for key, parameter in each.parameters.items():
            default = "required" if parameter.default is None else f"default {parameter.default}"
            click.echo(f"  -p {key} {parameter.type.upper()}  {default}. {parameter.help}".rstrip())
        if each.outbound:
            click.echo(f"  contacts {', '.join(each.outbound)}")
    for problem in problems:
        report_line(str(problem))
        report_line(f"  {problem.fix}")
    return 1 if problems else 0


@service.command(epilog=examples("gipfel service check my-dashboard.yaml"))
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def check(*, files: tuple[Path, ...], as_json: bool) -> int:
    """Check blueprints' files: each mistake is one line with its line number, and the fix on the next.

    Exit status: 0 all can be used; 1 otherwise.
    """
    from ..services.blueprint_file import check_blueprint  # noqa: PLC0415 - pydantic

    checked = [(path, *check_blueprint(path)) for path in files]
    if as_json:
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


@service.command(epilog=examples("gipfel service schema > blueprint.schema.json"))
def schema() -> int:
    """Print the JSON Schema of blueprints, for editors."""
    from ..services.blueprint_file import blueprint_schema  # noqa: PLC0415 - pydantic

    click.echo(json.dumps(blueprint_schema(), indent=2))
    return 0
