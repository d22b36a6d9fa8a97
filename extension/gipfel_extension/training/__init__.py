"""Launches and batch notebooks: from what a user asks for to a job of the scheduler."""
