"""Why a server did not start or has ended, in words and with advice."""
