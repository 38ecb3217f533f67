"""A copy of the whole service: taking it while the service runs, and making a state directory
of it again. Called by the commands `backup` and `restore`.

What makes the copy true: a branch's data is copied before the rows that speak of it, and with
each branch is noted which roles and databases its data holds at the moment of its copy. The rows
come last, in one snapshot. So whatever they call ready has been there to be copied; what was
made or dropped between the two moments is told by comparing, which `restored_rows` does.
"""
