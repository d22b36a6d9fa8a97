"""Broker: acts on the host for processes in a job's container, as the same user, over a Unix socket."""
