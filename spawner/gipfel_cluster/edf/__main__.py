"""``python -m gipfel_cluster.edf``: the EDF commands that a hub runs as another user.

They need nothing of the ``gipfel`` command line.
"""

import argparse
import json
import os
import sys

from .check import as_json, check_edf, check_edfs, show_edf
from .lookup import current_directory, list_edfs
from .model import DIALECTS, schema_text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gipfel_cluster.edf", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="check EDFs")
    check.add_argument("names", nargs="+", metavar="FILE|NAME|DIR")
    check.add_argument("--here", action="store_true", help="image and mount sources must exist")
    check.add_argument("--dialect", choices=DIALECTS, default="ce", help="the engine that reads the EDF")
    check.add_argument("--json", action="store_true")
    show = commands.add_parser("show", help="print a resolved EDF")
    show.add_argument("name", metavar="FILE|NAME")
    show.add_argument("--origin", action="store_true", help="also print the file that each value comes from")
    show.add_argument("--json", action="store_true")
    show.add_argument("--dialect", choices=DIALECTS, default="ce", help="the engine that reads the EDF")
    commands.add_parser("schema", help="print the JSON Schema of an EDF, for editors and forms")
    names = commands.add_parser("list", help="list the EDFs on the search path")
    names.add_argument("--json", action="store_true")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return 0 if all EDFs are valid, 1 if one is not, 2 for a wrong command."""
    options = _parser().parse_args(arguments)
    environment, directory = dict(os.environ), current_directory()
    if options.command == "list":
        found = list_edfs(environment=environment)
        _write(json.dumps(found) if options.json else "\n".join(found))
        return 0
    if options.command == "schema":
        _write(schema_text().rstrip("\n"))
        return 0
    if options.command == "show":
        resolution = check_edf(
            options.name, environment=environment, directory=directory, dialect=options.dialect
        )
        lines = show_edf(resolution, origin=options.origin)
        _write(json.dumps(as_json(resolution, origin=options.origin)) if options.json else "\n".join(lines))
        return 0 if resolution.edf else 1
    checked = check_edfs(
        options.names,
        environment=environment,
        directory=directory,
        here=options.here,
        dialect=options.dialect,
    )
    if options.json:
        documents = [as_json(each) for each in checked]
        _write(json.dumps(documents[0] if len(documents) == len(options.names) == 1 else documents))
    else:
        _write("\n".join(str(each) for resolution in checked for each in resolution.diagnostics))
    return 0 if all(each.valid for each in checked) else 1


def _write(text: str) -> None:
    if not text or sys.stdout is None:
        return
    # Characters of an EDF that the locale's encoding lacks are written as escapes.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _run() -> int:
    try:
        status = main()
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Otherwise Python reports the closed output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"The output can't be written: {error.strerror}.\n")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(_run())
