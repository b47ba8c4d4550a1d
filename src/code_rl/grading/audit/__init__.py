"""The audit of a grader: a corpus of programs (`programs`) is put to it (`graders/`), `scorecard`
counts what it pays, `page` draws the card.

The verb imports these; nothing else imports this room.
"""
