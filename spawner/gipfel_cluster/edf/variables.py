"""The variables that an EDF may use: the image's own where they can be read, else the caller's."""

from collections.abc import Mapping
from pathlib import Path

from .image import image_environment


class Variables:
    """Looks variables up, and remembers which of them only the image has.

    Parameters
    ----------
    host
        The caller's environment.
    image
        The EDF's image; it is opened when the first variable is asked for.
    """

    def __init__(self, host: Mapping[str, str], image: str) -> None:
        self._host = host
        self._image = image
        self._of_image: Mapping[str, str] | None = None
        #: Names that were asked for and that only the image has.
        self.image_only: list[str] = []

    def __call__(self, name: str) -> str | None:
        """Give the value, which the image's word wins over the host's, or None."""
        value = self._read_image().get(name)
        if value is None:
            return self._host.get(name)
        if name not in self._host:
            self.image_only.append(name)
        return value

    @property
    def image_is_read(self) -> bool:
        """Whether the image could be asked; one in a registry can't."""
        return self._image.startswith("/")

    def _read_image(self) -> Mapping[str, str]:
        if self._of_image is None:
            self._of_image = image_environment(Path(self._image)) if self.image_is_read else {}
        return self._of_image
