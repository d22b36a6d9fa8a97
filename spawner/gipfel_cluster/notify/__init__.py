"""Notify a user of what happened to a job: in JupyterLab, and by e-mail, Slack or ntfy if that is set up.

Read ``event`` first (what happened, and the message about it), then ``settings`` (the user's file),
``channels`` (one message to one service), ``limits`` (the rate limit, which survives restarts), ``send`` (one
event to all services) and ``reporter`` (called by supervisors).
"""
