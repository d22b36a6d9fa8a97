"""What the hub lets run as a user, since it reads no user's files itself."""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.edf.model import Diagnostic
from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.scheduler.account import acting_as
from gipfel_cluster.scheduler.command import CommandResult, run_command

from .account import Account
from .form.options import OptionError

_BUILD = (
    "Its administrators run `gipfel runtime build FOLDER`, set c.EDFSpawner.runtime (or GIPFEL_RUNTIME) to "
    "that folder and restart it."
)
_LOG_BYTES = 16_000
# Of env, where it can't go to the folder; of env, where it can't run the program.
_NO_FOLDER, _NO_PROGRAM = 125, (126, 127)


class Errands:
    """Short commands in a user's account.

    Parameters
    ----------
    account
        Whose files are read.
    environment
        What the user's job gets, without any token.
    python
        An interpreter with this package that the user can execute.
    exec_prefix
        How to act as the user; see `acting_as`.
    has_runtime
        Whether the hub mounts a server into images.
    limit
        Seconds that a command may take.
    """

    def __init__(
        self,
        account: Account,
        *,
        environment: Mapping[str, str],
        python: str,
        exec_prefix: str = "",
        has_runtime: bool = True,
        limit: float = 20.0,
    ) -> None:
        self._account = account
        self._environment = environment
        self._python = python
        self._exec_prefix = exec_prefix
        self._has_runtime = has_runtime
        self._limit = limit

    async def environments(self) -> tuple[str, ...]:
        """Names of the EDFs on the user's search path.

        Raises
        ------
        GipfelError
            They can't be listed.
        """
        result = await self._ask("list")
        try:
            return tuple(str(name) for name in json.loads(result.output))
        except ValueError:
            raise GipfelError(f"Your environments can't be listed: {_last(result)}.") from None

    async def check(self, edf: str) -> bool:
        """Resolve and check an EDF, its image and its mounts; return whether it has an image.

        Raises
        ------
        OptionError
            The first thing that is wrong with it.
        """
        answer = await self.inspect(edf)
        try:
            if answer["valid"]:
                return bool(answer["edf"]["image"])
            error = next(each for each in answer["diagnostics"] if each["severity"] == "error")
            where = f" ({error['file']}{', line ' + str(error['line']) if error.get('line') else ''})"
            problem = f"{error['message'].rstrip('.')}{where if error.get('file') else ''}."
            fix = str(error["fix"])
        except (KeyError, TypeError, StopIteration):
            raise GipfelError(f"The environment {edf} can't be checked: its answer is broken.") from None
        raise OptionError(problem, fix, field="edf")

    async def inspect(self, edf: str) -> dict[str, Any]:
        """What ``edf check --here --json`` says of an EDF: ``file``, ``valid``, ``diagnostics``, ``edf``.

        Raises
        ------
        GipfelError
            It can't be asked, or the name is a folder's.
        """
        result = await self._ask("check", "--here", "--", edf)
        try:
            answer = json.loads(result.output)
            if isinstance(answer, list) and "/" not in edf:
                # A folder of this name in the home folder: the job takes the environment nevertheless.
                result = await self._ask("show", "--", edf)
                answer = json.loads(result.output)
                if answer["valid"]:
                    result = await self._ask("check", "--here", "--", str(answer["file"]))
                    answer = json.loads(result.output)
            if isinstance(answer, list):
                raise OptionError(f"{edf} is a folder.", "Name one environment in it.", field="edf")
        except (ValueError, KeyError, TypeError):
            raise GipfelError(f"The environment {edf} can't be checked: {_last(result)}.") from None
        if not isinstance(answer, dict):
            raise GipfelError(f"The environment {edf} can't be checked: its answer is broken.")
        return self._with_runtime(answer)

    async def draft(self, draft: Draft) -> dict[str, Any]:
        """Check an EDF that is not on disk yet, and save it where the draft says so.

        Raises
        ------
        GipfelError
            It can't be checked.
        """
        argv = (self._python, "-I", "-m", "gipfel_cluster.edf.draft")
        result = await self._run(argv, given=draft.model_dump_json())
        try:
            answer = json.loads(result.output)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise GipfelError(f"The environment can't be checked: {_last(result)}.")
        return self._with_runtime(answer)

    def _with_runtime(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Add an error where the environment has an image, and nothing could serve notebooks in it."""
        edf = answer.get("edf")
        if self._has_runtime or not isinstance(edf, dict) or not edf.get("image"):
            return answer
        error = Diagnostic(
            severity="error",
            code="no-runtime",
            file=str(answer.get("file", "")),
            line=None,
            key="image",
            message="This hub has no runtime for images: no server can be started in one.",
            fix=_BUILD,
        )
        found = [*answer.get("diagnostics", ()), error.model_dump(mode="json")]
        return answer | {"valid": False, "diagnostics": found}

    async def make_log_folder(self) -> None:
        """Make the folder of the jobs' logs, the user's alone.

        Raises
        ------
        GipfelError
            It can't be made.
        """
        # Each is named: the mode is not that of a parent that is made on the way.
        folders = (str(PurePosixPath(self._account.log_folder).parent), self._account.log_folder)
        result = await self._run(("mkdir", "--parents", "--mode=700", "--", *folders))
        if result.code:
            raise GipfelError(
                f"The folder {self._account.log_folder} can't be made: {_last(result)}.",
                "Check your home folder and quota.",
            )

    async def last_lines(self, path: str, *, most: int = 20) -> str:
        """The end of a log; empty where it can't be read."""
        try:
            # By bytes: a line may be as long as the log.
            result = await self._run(("tail", f"--bytes={_LOG_BYTES}", "--", path))
        except GipfelError:
            return ""
        lines = result.output.splitlines(keepends=True)
        return "".join(lines[-most:])[-8000:] if result.code == 0 else ""

    async def _ask(self, command: str, *arguments: str) -> CommandResult:
        return await self._run(
            (self._python, "-I", "-m", "gipfel_cluster.edf", command, "--json", *arguments)
        )

    async def _run(self, argv: Sequence[str], *, given: str = "") -> CommandResult:
        """Run a command as the user, in the home folder where there is one, as the job will."""
        result = await self._run_below(("env", f"--chdir={self._account.home}", *argv), given)
        if result.code == _NO_FOLDER:
            result = await self._run_below(("env", *argv), given)
        if result.code in _NO_PROGRAM:
            raise GipfelError(f"{argv[0]} can't be run: {_last(result).rpartition(': ')[2]}.")
        return result

    async def _run_below(self, argv: Sequence[str], given: str = "") -> CommandResult:
        prefix = acting_as(self._account.user, self._exec_prefix)
        try:
            return await run_command(
                (*prefix, *argv), environment=self._environment, limit=self._limit, given=given
            )
        except TimeoutError as error:
            raise GipfelError(
                f"Your home folder did not answer within {self._limit:g} s.", "Try again in a few minutes."
            ) from error


class Tail(Frozen):
    """The end of a job's log, and the one line of it that says what went wrong."""

    text: str = ""

    @property
    def verdict(self) -> str:
        """Our own last words, else the server's last error, else the last line."""
        lines = [one_line(line) for line in self.text.splitlines() if line.strip()]
        ours = [line for line in lines if line.startswith("gipfel: ")]
        errors = [line for line in lines if line.startswith(("[C ", "[E "))]
        return (ours or errors or lines or [""])[-1].removeprefix("gipfel: ")[:500]


def _last(result: CommandResult) -> str:
    lines = [line for line in result.errors.splitlines() if line.strip()]
    return one_line(lines[-1]).rstrip(".")[:300] if lines else f"exit status {result.code}"
