"""Services: programs such as dashboards and databases that run beside notebooks, behind a front door.

Reading order: `blueprint` (what a service is, and where blueprints are found), `plan` (a blueprint with
values), `front_door` (the only listening port) with `request_rules` and `access`, `supervisor`
(runs a service in its job), `start`.
"""
