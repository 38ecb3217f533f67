"""The copy of the history in an object store, off the host, from which a lost host is restored.

`packing` makes streams of directories, compresses and encrypts objects, `objects` puts and gets
them, and `layout` names them and has the lists of what is complete. `log_copies`, `base_copies` and
`host_copies` find and copy what is new, and `rounds` runs these in threads. `fetching` brings a
branch's history back for `restoring` and `drills`.
"""
