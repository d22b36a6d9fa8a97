"""Vetting: is each node of an allocation fit for a large run, and if not, which part of it is to blame.

Nothing is imported here: the readings of GPUs (`gpus`), the figures and the probes (`checks/probes`) are used
where pydantic is not installed.
"""
