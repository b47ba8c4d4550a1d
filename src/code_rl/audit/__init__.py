"""Checks of what others built: graders, back ends, training scripts. Each check is data of ours put to a target, and a card of what it did.

`programs` (a corpus of answers) and `graders/` (a file for each kind of target) belong to `scorecard`; `script/` and `backend` fill a `checklist`; `page` draws either.
The verb imports these; nothing else imports this room.
"""
