"""Resource templates: what a site offers for one click, and what a user started last."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.scheduler.durations import parse_duration

from .options import UserOptions, read_options


class Preset(Frozen):
    """A named choice; what its ``options`` leave out is the site's default."""

    title: Annotated[Line, Field(min_length=1, max_length=40)]
    description: Annotated[Line, Field(max_length=120)] = ""
    options: UserOptions = UserOptions()

    @property
    def words(self) -> str:
        """The description, else what the options say."""
        return self.description or describe_options(self.options)


def read_presets(given: Sequence[object]) -> tuple[tuple[Preset, ...], tuple[str, ...]]:
    """The presets of a site's configuration, and one line for each that can't be used."""
    presets: list[Preset] = []
    problems: list[str] = []
    for number, content in enumerate(given, 1):
        if not isinstance(content, Mapping):
            problems.append(_problem(number, "it is no dictionary."))
            continue
        try:
            options = {key: content[key] for key in content if key not in {"title", "description"}}
            presets.append(
                Preset(
                    title=content.get("title", ""),
                    description=content.get("description", ""),
                    options=read_options(options),
                )
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            problems.append(_problem(number, f"its {first['loc'][0]}: {first['msg']}."))
        except GipfelError as error:
            problems.append(_problem(number, str(error)))
    return tuple(presets), tuple(problems)


def describe_options(options: UserOptions) -> str:
    """What was chosen, in a few words: ``4 GPUs · 2 nodes · 8 h · pytorch``."""
    words = []
    if options.gpus is not None:
        words.append(f"{options.gpus} GPU{'' if options.gpus == 1 else 's'}")
    if options.nodes != 1:
        words.append(f"{options.nodes} nodes")
    words += [
        each
        for each in (describe_time(options.time), options.edf, options.cluster, options.partition)
        if each
    ]
    return " · ".join(words) or "the defaults"


def describe_time(time: str) -> str:
    """A time limit in Slurm's syntax in words: ``30 min``, ``2 h``, ``1 d 12 h``; empty for an empty text."""
    seconds = parse_duration(time) if time else 0
    if seconds is None:
        return "no time limit"
    parts = (
        (seconds // 86400, "d"),
        (seconds // 3600 % 24, "h"),
        (seconds // 60 % 60, "min"),
        (seconds % 60, "s"),
    )
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def _problem(number: int, what: str) -> str:
    return f"Preset {number} can't be used: {what} Tell the hub's administrators."
