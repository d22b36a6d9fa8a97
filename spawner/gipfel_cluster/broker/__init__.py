"""The broker: serves processes in a job's container on the host, as the same user, over a Unix socket."""
