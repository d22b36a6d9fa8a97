"""What every test may lean on, whoever started them."""

import signal


def pytest_configure() -> None:
    """Give back what a shell's background job or nohup ignores: tests send signals to what they start."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
