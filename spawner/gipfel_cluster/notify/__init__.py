"""Notify a user of what happened to a job: in JupyterLab, and by e-mail, Slack or ntfy if that is set up.

Read ``event`` first (what happened, and the message about it), then ``settings`` (the user's file),
``journal`` (the rate limit, which survives restarts, and the newest events), ``channels`` (one event to all
services) and ``reporter`` (called by supervisors).
"""
