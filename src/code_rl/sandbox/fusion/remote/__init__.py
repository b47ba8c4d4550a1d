"""What runs inside a remote sandbox. Standard library only, Python 3.9 and later; it travels as text.

`fusion` reads it to send it: `harness`, with `confine`, `processes` and `watch`. `course` is the course's own program, for the audit and `tinker_utils`.
"""
