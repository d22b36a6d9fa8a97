"""Print the enabled rules as JSON: ``python -m gipfel_extension.rules``.

A recorder starts this program, so that it needs neither YAML nor pydantic in its own memory.
"""

import json
import os
import sys

from . import enabled_rules, known_rules

if __name__ == "__main__":
    known, problems = known_rules(os.environ)
    for problem in problems:
        sys.stderr.write(f"{problem} {problem.fix}\n")
    sys.stdout.write(json.dumps([rule.to_json() for rule in enabled_rules(known)]))
