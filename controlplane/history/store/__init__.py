"""The copy of the history in an object store, off the host, from which a lost host is restored.

`packing` compresses and encrypts objects, `objects` puts and gets them, `layout` names them and has
the lists of what is complete, and `trees` makes streams of directories. `log_copies`,
`base_copies` and `row_copies` copy what is new; `log_round` and `base_round` find it, and `rounds`
runs these in threads. `fetching` brings a branch's history back for `restoring` and `drills`.
"""
