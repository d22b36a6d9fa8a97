"""Start of a server: from the user's options to a job, and from the job to a server that answers."""
