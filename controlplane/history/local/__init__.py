"""The history of a branch: its write-ahead log and base copies, from which a past moment is made.

`log` reads files of the log, `chain` knows what is kept, `pulling` and `bases` add to it,
`occupied` measures what the bases take, `commits` finds the position that a moment names, and
`recovering` makes a branch of it.
"""
