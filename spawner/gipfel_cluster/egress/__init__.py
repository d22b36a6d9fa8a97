"""A gate around a command: a network namespace that leads out by a proxy with an allow list alone.

``start`` says what can run behind a gate and renders it; ``log`` is what others read of it.
"""
