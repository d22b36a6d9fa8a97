"""``python -m gipfel_cluster.broker.hub --socket PATH``: a hub's access to Slurm, on a host that has it."""

import argparse
import asyncio
import os
import pwd
import signal
import socket
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from ..model import GipfelError
from ..scheduler.machine import slurm_presence
from ..scheduler.slurm import SlurmScheduler
from .hub_server import ActableUsers, HubBroker
from .serving import listen


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a hub until SIGTERM or SIGINT."""
    given = _parser().parse_args(arguments)
    path: Path = given.socket.absolute()
    try:
        hub = _uid(given.hub_user)
        _check_commands()
        scheduler = SlurmScheduler(
            environment=os.environ,
            exec_prefix=given.exec_prefix,
            limit=given.answer_limit,
            carrier=(given.python, "-I", "-m", "gipfel_cluster.scheduler.carry"),
        )
        broker = HubBroker(
            path,
            scheduler,
            peer=hub,
            environment=os.environ,
            arguments=given.submit_argument,
            actable=_actable(given),
        )
        listener = _listen(path, hub)
    except GipfelError as error:
        print(f"gipfel: {error}", file=sys.stderr)  # noqa: T201
        return 1
    with listener:
        sys.stderr.write(f"gipfel: the hub's broker listens on {path} for user {hub}\n")
        asyncio.run(_serve(broker, listener))
    return 0


def _check_commands() -> None:
    presence = slurm_presence(os.environ)
    if not presence.configured:
        raise GipfelError(presence.problem, "Start the broker where Slurm's commands and configuration are.")


async def _serve(broker: HubBroker, listener: socket.socket) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await broker.serve(listener, ended)


def _listen(path: Path, hub: int) -> socket.socket:
    try:
        _check_folder(path.parent)
        if path.is_socket() and not _answers(path):
            path.unlink()
        return listen(path, owner=hub)
    except OSError as error:
        raise GipfelError(
            f"The socket {path} can't be made: {error.strerror}.",
            "End the broker that listens there already, or name another path.",
        ) from error


def _check_folder(folder: Path) -> None:
    """Refuse a folder where others could put a socket of their own and receive every server's token."""
    if stat.S_IMODE(folder.stat().st_mode) & 0o022:
        raise GipfelError(
            f"Other users can write into {folder}.", "Choose a folder that only its owner can write."
        )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def _uid(name: str) -> int:
    if not name:
        return os.getuid()
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise GipfelError(f"There is no unix user {name!r} here.", "Name the hub's user.") from None


def _actable(given: argparse.Namespace) -> ActableUsers:
    try:
        return ActableUsers(least=given.least_uid, most=given.most_uid)
    except ValidationError:
        raise GipfelError("--least-uid and --most-uid take numbers of unix users, from 0 on.") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gipfel_cluster.broker.hub", description=main.__doc__)
    parser.add_argument(
        "--socket", type=Path, required=True, help="where to listen: EDFSpawner.broker_socket"
    )
    parser.add_argument("--hub-user", default="", help="who may ask; by default the broker's own user")
    parser.add_argument("--exec-prefix", default="", help="how to act as a user, as EDFSpawner.exec_prefix")
    parser.add_argument(
        "--least-uid",
        type=int,
        default=ActableUsers().least,
        help="the first user that is acted as (%(default)s); root and Slurm's own never are",
    )
    parser.add_argument(
        "--most-uid",
        type=int,
        default=ActableUsers().most,
        help="the last user that is acted as (%(default)s); a directory service may give larger numbers",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter with gipfel that every user can execute"
    )
    parser.add_argument(
        "--answer-limit", type=float, default=10.0, help="seconds that a command of Slurm may take"
    )
    parser.add_argument(
        "--submit-argument",
        action="append",
        default=[],
        help="the site's own for sbatch, such as --submit-argument=--exclusive; may be given several times",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
