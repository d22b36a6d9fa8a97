"""From what a user chose to a job, and from a job to a server that answers."""
