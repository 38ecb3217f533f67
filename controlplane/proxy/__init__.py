"""The connection proxy: it routes a Postgres client to its endpoint, authenticates it, wakes the
compute and then relays bytes. Started by `manage.py proxy` in several processes."""
