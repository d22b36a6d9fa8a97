"""Launches as directories, and the process that supervises one."""
