"""A start: from a user's options to a job, and from a job to a server that answers."""
