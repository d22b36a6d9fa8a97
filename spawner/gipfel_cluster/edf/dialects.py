"""Who is going to read the EDF: the production Container Engine, the Sarus Suite, or upstream Pyxis."""

from typing import Literal, get_args

Dialect = Literal["ce", "sarus", "pyxis"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

#: Whether the image's entrypoint runs where the EDF doesn't say; Pyxis leaves it to its site, mostly like CE.
ENTRYPOINT: dict[Dialect, bool] = {"ce": False, "sarus": True, "pyxis": False}
