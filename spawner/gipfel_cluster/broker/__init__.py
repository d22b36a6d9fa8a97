"""The broker: what a process in a job's container asks of the host, as the same user, over a socket."""
