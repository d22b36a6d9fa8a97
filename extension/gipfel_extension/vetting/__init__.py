"""Vetting: find unhealthy nodes before training, and the part of each that is at fault.

Nothing is imported here: the GPU readings (`gpus`), the statistics, the reference values and the probes
(`checks/probes`) are used where pydantic is not installed.
"""
