"""Torture: random requests, connections, kills and stops, and what must hold all the same."""
