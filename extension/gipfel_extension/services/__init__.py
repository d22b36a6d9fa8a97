"""Services: programs such as dashboards and databases that run beside notebooks.

Reading order: `blueprint` (what a service is), `blueprint_file`, `lookup` (where they are found), `plan` (a
blueprint with values).
"""
