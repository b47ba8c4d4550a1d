"""A recorded run again, without model or sandbox: `steps` computes it under other settings, `rejudge` with other verdicts.

Only the verbs import this room.
"""
