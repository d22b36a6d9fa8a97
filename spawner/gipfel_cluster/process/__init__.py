"""Supervise processes: identify them, end process trees, fork programs and restart recorders.

Read ``tree`` first (a process and its descendants), then ``locks`` (that keep a job alive), ``fork`` (run a
program in a fork of this process) and ``supervisor`` (restart a recorder).
"""
