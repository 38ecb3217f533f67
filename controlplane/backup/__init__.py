"""Backups: copying the whole service while it runs, and creating a state directory from a copy.
Called by the commands `backup` and `restore`.

The copy is consistent for these reasons. A branch's data is copied before the rows that describe
it, and with each branch the backup records which roles and databases its data holds at the moment
of the copy. The rows are copied last, in one snapshot. So every branch that they call ready could
be copied before. What was created or dropped between the two moments is found by comparison, which
`restored_rows` does.
"""
