"""Clients' connections, from their first byte to their last."""
