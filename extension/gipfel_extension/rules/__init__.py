"""Rules that users, sites and packages write as YAML files, and those of Gipfel (``catalogue/``).

Reading order: `rule_file` (the format and where files are), `../diagnosis/rules.py` (what a rule does),
`run` (rules applied to a run that was recorded), `__main__` (rules as JSON, for the recorder).
"""
