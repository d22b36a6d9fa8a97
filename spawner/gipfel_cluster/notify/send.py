"""Send one event to the services that the user set up, within the limits, and record the outcome.

``python -I -m gipfel_cluster.notify`` does so for the event that it reads as JSON; a supervisor starts it and
does not depend on it.
"""

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence

from ..model import GipfelError
from .channels import ChannelError, send_message
from .event import Event, Message, message_of, plain_text
from .limits import Outcome, admit, locked_state
from .settings import NotifySettings, read_settings

#: Seconds after which a service that has not answered counts as failed; services are asked side by side.
SEND_S = 9.0
#: Pause in seconds before the only retry, after an error that is temporary.
RETRY_S = 2.0


def deliver(event: Event, environment: Mapping[str, str]) -> dict[str, Outcome]:
    """Send an event to each service, unless the settings or the limits exclude it; return the outcomes.

    Raises
    ------
    OSError
        The state can't be written, so that nothing is sent: without it there is no rate limit.
    """
    try:
        settings = read_settings(environment)
    except GipfelError as error:
        with locked_state(environment) as (state, write):
            write(state.model_copy(update={"problem": plain_text(str(error), 600)}))
        return {}
    if settings is None or not settings.channels or event.kind not in settings.events:
        return {}
    with locked_state(environment) as (state, write):
        new, admitted = admit(state, event.key, now_ns=time.time_ns(), per_hour=settings.per_hour)
        # Before it is sent: a crash must not send it again and again.
        write(new.model_copy(update={"problem": ""}))
    if not admitted:
        return {}
    return send_to_all(settings, message_of(event, settings.hub, state.held_back), environment)


def send_to_all(
    settings: NotifySettings, message: Message, environment: Mapping[str, str], *, limit_s: float = SEND_S
) -> dict[str, Outcome]:
    """Send a message to all services side by side, record and return the outcomes by service."""
    outcomes = _send(settings, message, settings.channels, limit_s)
    with contextlib.suppress(OSError), locked_state(environment) as (state, write):
        write(state.model_copy(update={"outcomes": {**state.outcomes, **outcomes}}))
    return outcomes


def _send(
    settings: NotifySettings, message: Message, channels: Sequence[str], limit_s: float
) -> dict[str, Outcome]:
    problems: dict[str, str] = {}
    deadline = time.monotonic() + limit_s

    def send(channel: str) -> None:
        problem, temporary = _try(channel, settings, message)
        if temporary and time.monotonic() + RETRY_S < deadline:
            time.sleep(RETRY_S)
            problem, _ = _try(channel, settings, message)
        problems[channel] = problem

    # Daemons: a server that sends a byte from time to time would otherwise keep this process alive.
    threads = [threading.Thread(target=send, args=(each,), daemon=True) for each in channels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"It did not respond in {limit_s:g} s."
    found = dict(problems)
    return {each: Outcome(time_ns=time.time_ns(), problem=found.get(each, late)) for each in channels}


def _try(channel: str, settings: NotifySettings, message: Message) -> tuple[str, bool]:
    """Send to one service; return the problem, empty if it accepted the message, and whether to retry."""
    try:
        send_message(channel, settings, message)
    except ChannelError as error:
        return plain_text(str(error), 600), error.temporary
    except Exception as error:  # noqa: BLE001 - one service must not keep the others from their message
        # Without the text, which may have a secret.
        return f"The message could not be sent ({type(error).__name__}).", False
    return "", False
