"""Clients of poolers, which stay connected while their compute does not run."""
