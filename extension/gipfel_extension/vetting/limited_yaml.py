"""YAML scanner with a limited nesting depth, for text from untrusted sources.

PyYAML takes quadratic time and recurses for nested brackets: a few kilobytes of them take it half a minute.
"""

from typing import Any

import yaml

#: Levels of nesting at most.
MAX_DEPTH = 40


class DepthLimitedScanner(yaml.scanner.Scanner):  # type: ignore[misc]
    """Base class for YAML loaders of untrusted text; it must be the first of the bases."""

    def fetch_flow_collection_start(self, token: Any) -> None:
        """Scan the start of a list or mapping in brackets, unless it is nested too deeply."""
        if self.flow_level >= MAX_DEPTH:
            raise self._too_deep()
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        """Scan the start of an indented list or mapping, unless it is nested too deeply."""
        if len(self.indents) >= MAX_DEPTH:
            raise self._too_deep()
        return bool(super().add_indent(column))

    def _too_deep(self) -> yaml.YAMLError:
        return yaml.scanner.ScannerError(None, None, "it is nested too deeply", self.get_mark())
