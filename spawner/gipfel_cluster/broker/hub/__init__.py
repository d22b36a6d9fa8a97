"""The broker of a hub: a process of its host that asks the scheduler for it, over a socket."""
