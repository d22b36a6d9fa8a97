"""Failed jobs: the catalogue of causes, each with a fix.

A new cause needs a `Cause` in `catalogue` or `containers` and a captured log in ``tests/spawner/data/logs``.
"""
