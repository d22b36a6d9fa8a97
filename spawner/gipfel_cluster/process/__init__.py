"""Processes that supervise others: identity, ending a tree, liveness, forks, and restarting.

Read ``tree`` first (a process by its identity, and all below it), then ``liveness`` (bound to a parent's
life, or shown by a lock), ``fork`` (a program in a fork of this one) and ``supervisor`` (one that is
restarted).
"""
