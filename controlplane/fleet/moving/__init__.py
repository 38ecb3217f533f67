"""A branch's files on their way to another host: `messages` has the messages of the two workers,
`sending` reads the files on the one host, and `receiving` makes the branch on the other. If its
compute runs, `streaming` sends its log, and `following` has a standby replay it.
"""
