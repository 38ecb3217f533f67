"""Limits that keep clients from taking up the whole proxy, and delays of their answers."""
