"""A directory with EDFs, for the tests of their rules."""

import pytest

from gipfel_cluster.edf import resolve


class Place:
    """A folder with EDFs, which is also the search path and the caller's folder."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {"HOME": str(folder), "EDF_PATH": str(folder)}

    def write(self, text, name="x"):
        path = self.folder / f"{name}.toml"
        path.write_bytes(text.encode())
        return str(path)

    def resolve(self, text, dialect="ce", **variables):
        self.write(text)
        return resolve("x", environment=self.environment | variables, directory=self.folder, dialect=dialect)

    def load(self, text, **variables):
        result = self.resolve(text, **variables)
        assert result.edf is not None, result.diagnostics
        return result.edf

    def errors(self, text, dialect="ce", **variables):
        result = self.resolve(text, dialect, **variables)
        assert result.edf is None
        return [each for each in result.diagnostics if each.severity == "error"]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)
