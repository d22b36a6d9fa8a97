"""Scan YAML in linear time: what is nested more deeply than a person writes is refused where it begins.

PyYAML looks at every open bracket again for each token, and calls itself for each level: a few kilobytes of
brackets take it half a minute.
"""

from typing import Any

import yaml

DEEPEST = 40


class Shallow(yaml.scanner.Scanner):  # type: ignore[misc]
    """Base class for YAML loaders that read text from elsewhere; it comes first among the bases."""

    def fetch_flow_collection_start(self, token: Any) -> None:
        """Read the start of a list or mapping in brackets."""
        if self.flow_level >= DEEPEST:
            raise self._too_deep()
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        """Read the start of a list or mapping on lines of its own."""
        if len(self.indents) >= DEEPEST:
            raise self._too_deep()
        return bool(super().add_indent(column))

    def _too_deep(self) -> yaml.YAMLError:
        return yaml.scanner.ScannerError(None, None, "it is nested too deeply", self.get_mark())
