"""Failed starts and ends: the catalogue of causes, each with what helps.

A new entry is a `Cause` in `catalogue` or `containers`, and a captured log in ``tests/spawner/data/logs``.
"""
