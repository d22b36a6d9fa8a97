"""Services in place of a notebook server: which a user can start, and the preparation of one, as the user."""

from typing import Any

from jupyterhub import orm
from sqlalchemy.orm import object_session

from gipfel_cluster.job.service import PreparedService, ServiceOffer, ServiceOffers, ServiceOrder
from gipfel_cluster.model import GipfelError

from ..form.options import OptionError, UserOptions
from .account import UserCommands

__all__ = ["ServiceOffer", "prepare_service", "restrict_token", "service_offers", "with_resources"]

_MAX_NAME = 30


async def service_offers(commands: UserCommands) -> ServiceOffers:
    """Return the services that the user can start.

    Raises
    ------
    GipfelError
        The command that lists them failed.
    """
    return await commands.service("list", None, ServiceOffers)


async def prepare_service(
    options: UserOptions, *, server: str, prefix: str, edf: str, engine: str, commands: UserCommands
) -> PreparedService:
    """Write the directory of the service that the options name, and return what its job needs.

    Parameters
    ----------
    server
        Name of the server, which is the service's name, too.
    prefix
        Path of the server's URL.

    Raises
    ------
    OptionError
        The server has no name, or the blueprint or a parameter can't be used.
    """
    if not server or len(server) > _MAX_NAME:
        raise OptionError(
            "A service needs a name of at most 30 characters of its own.",
            "Start it as a new session with a name.",
            field="service",
        )
    order = ServiceOrder(
        name=server,
        blueprint=options.service,
        parameters=options.parameters,
        prefix=prefix,
        edf=edf,
        engine=engine,
    )
    prepared = await commands.service("prepare", order, PreparedService)
    if prepared.problem:
        field = prepared.field if prepared.field in {"service", "parameters"} else ""
        raise OptionError(prepared.problem, prepared.fix, field=field)
    if not prepared.directory.startswith("/"):
        raise GipfelError("The service can't be prepared: the answer is not valid.")
    return prepared


def with_resources(options: UserOptions, prepared: PreparedService) -> UserOptions:
    """Return the options with the service's resources where the user chose none."""
    wanted = prepared.resources
    return options.model_copy(
        update={
            "gpus": wanted.gpus if options.gpus is None else options.gpus,
            "cpus": options.cpus or wanted.cpus or None,
            "memory": options.memory or wanted.memory,
            "time": options.time or wanted.time,
            "partition": options.partition or wanted.partition,
        }
    )


def restrict_token(orm_spawner: Any, token: str) -> None:
    """Limit the token of a server to what a front door needs, and store the server's changes.

    A service is not trusted with the rights of a notebook server, such as starting other servers.
    """
    session = object_session(orm_spawner)
    stored = None if session is None else orm.APIToken.find(session, token)
    if session is None or stored is None:
        raise GipfelError("The service's token is not in the hub's database.", "Start the service again.")
    user, server = orm_spawner.user.name, orm_spawner.name
    stored.update_scopes([f"users:activity!user={user}", f"access:servers!server={user}/{server}"])
    session.commit()
