"""The history of a branch: its write-ahead log and base copies, from which a past moment is made.

`chain` knows what is kept, `pulling` and `bases` add to it, `commits` and `moments` find the
position that a moment names, and `recovering` makes a branch of it.
"""
