"""The connection proxy. It finds the endpoint that a Postgres client asks for, authenticates the
client, wakes the compute and then relays bytes. `manage.py proxy` starts it in several processes.
"""
