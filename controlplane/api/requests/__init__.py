"""What callers send. Lenient: unknown fields are ignored, and null is as good as absent.

Not ninja's own Schema, which reads the attributes of whatever it is given: to it, a list is
an object that leaves every field out.
"""
