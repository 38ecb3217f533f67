"""Passing clients, HTTP requests and cancel requests on to the proxy of another host of the region.

The first proxy is the one that the client has connected to. The second is the one on the host of
the client's endpoint. It serves the client in all respects as if the client had connected to it.
"""
