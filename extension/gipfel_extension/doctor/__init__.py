"""Probes of `gipfel doctor`: they check machine, cluster, account and environment, and name fixes.

`examine.examine` runs all probes of `probes.probes` in parallel on a `machine.Machine`, with a time limit. A
probe is a function that returns an `examine.Finding`; `examine.format_lines` formats the findings.
"""
