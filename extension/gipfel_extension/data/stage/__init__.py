"""Copies of data sets on every node of a job, read once from the shared file system."""
