"""Vetting: find unhealthy nodes before training, and the component of each that is at fault.

This module imports nothing, because the GPU readings (`gpus`), the statistics, the reference values and the
probes (`checks/probes`) also run where pydantic is not installed.
"""
