"""Launches and batch notebooks: from a user's request to a job of the scheduler."""
