"""``python -m gipfel_extension.services.hub_commands list|prepare``: what the hub needs from a user's files.

The hub runs it as the user, before the start of a server. The order on stdin and the answer on stdout are
JSON of models in `gipfel_cluster.job.service_orders`.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.job.service_orders import (
    PreparedService,
    ServiceOffer,
    ServiceOffers,
    ServiceOrder,
    ServiceParameter,
    ServiceResources,
)
from gipfel_cluster.model import GipfelError, one_line

from .blueprint import Blueprint, Environment, find_blueprint, known_blueprints
from .directory import HUB, ServiceSpec, read_spec, service_directory
from .plan import INSTALL_S, find_environment, parameter_values
from .start import write_service

#: Seconds that a start may take in addition to the time limits of its parts.
_MARGIN_S = 120.0
_MAX_ORDER_BYTES = 1 << 20


def service_offers(environment: Mapping[str, str]) -> ServiceOffers:
    """Return all services of the user, with a line for each blueprint that can't be used."""
    found, problems = known_blueprints(environment)
    return ServiceOffers(
        services=tuple(_offer(each) for _, each in sorted(found.values(), key=lambda pair: pair[1].title)),
        problems=tuple(one_line(f"{each} {each.fix}")[:600] for each in problems),
    )


def prepare(order: ServiceOrder, environment: Mapping[str, str]) -> PreparedService:
    """Write the directory of a service that the hub is about to start, and return what its job needs.

    Raises
    ------
    GipfelError
        The blueprint, a parameter or a secret can't be used, or this service is running.
    """
    if order.is_successor:
        # The spec of the running job is used, even if the blueprint's file has changed since.
        return _prepared(read_spec(service_directory(order.name, environment)), environment)
    home = Path(environment.get("HOME") or Path.home())
    blueprint = find_blueprint(order.blueprint, directory=home, environment=environment)
    needs_host = blueprint.parts[blueprint.front_part].path == "host"
    if needs_host and not order.host:
        raise GipfelError(
            f"{blueprint.title} needs a host name of its own: {order.no_host}.",
            f"Run `gipfel service up {blueprint.name} --here` in a terminal, and open it through ssh -L.",
        )
    spec = ServiceSpec(
        name=order.name,
        blueprint=blueprint,
        parameters=parameter_values(blueprint, order.parameters),
        prefix="/" if needs_host else order.prefix,
        host=order.host if needs_host else "",
        scheduler=HUB,
        edf=order.edf or blueprint.edf,
        engine=order.engine,
        directory=str(home),
        source=order.blueprint,
    )
    write_service(spec, environment)
    return _prepared(spec, environment)


def _prepared(spec: ServiceSpec, environment: Mapping[str, str]) -> PreparedService:
    blueprint = spec.blueprint
    limit_s = _MARGIN_S + sum(part.ready.timeout_s for part in blueprint.parts.values())
    packages = find_environment(blueprint, environment)
    if blueprint.environment != Environment() and packages is None:
        limit_s += INSTALL_S
    return PreparedService(
        directory=str(service_directory(spec.name, environment)),
        packages=str(packages or ""),
        edf=spec.edf,
        resources=_resources(blueprint),
        limit_s=limit_s,
        keep_up=blueprint.keep_up,
        overlap_s=blueprint.overlap_s if blueprint.handover == "overlap" else 0,
        has_pages=blueprint.has_pages,
        host=spec.host,
    )


def _offer(blueprint: Blueprint) -> ServiceOffer:
    return ServiceOffer(
        name=blueprint.name,
        title=blueprint.title,
        about=blueprint.about,
        version=blueprint.version,
        license=blueprint.license,
        memory=blueprint.measured.memory,
        start_s=blueprint.measured.start_s,
        parameters=tuple(
            ServiceParameter(
                name=name,
                type=each.type,
                default="" if each.default is None else str(each.default),
                required=each.default is None,
                help=each.help,
                choices=each.choices,
            )
            for name, each in blueprint.parameters.items()
        ),
        edf=blueprint.edf,
        resources=_resources(blueprint),
    )


def _resources(blueprint: Blueprint) -> ServiceResources:
    return ServiceResources.model_validate(blueprint.resources.model_dump())


def main() -> int:
    """Run the command; a problem of a preparation is part of its answer."""
    if sys.argv[1:] == ["list"]:
        answer: ServiceOffers | PreparedService = service_offers(os.environ)
    elif sys.argv[1:] == ["prepare"]:
        try:
            order = ServiceOrder.model_validate_json(sys.stdin.buffer.read(_MAX_ORDER_BYTES))
            answer = prepare(order, os.environ)
        except GipfelError as error:
            answer = PreparedService(
                problem=one_line(error.problem), fix=one_line(error.fix), field="service"
            )
        except (OSError, ValidationError) as error:
            answer = PreparedService(problem=f"The service can't be prepared: {one_line(str(error))[:300]}.")
    else:
        sys.stderr.write("gipfel: use the command list or prepare.\n")
        return 2
    sys.stdout.write(answer.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
