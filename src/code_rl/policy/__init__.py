"""From a problem to a trajectory: environments, renderers, sampling and rewards.

`environments/` says what a problem is to a policy, `renderers/` turn messages into tokens and back,
`sample` draws and judges groups, `inflight` keeps completions and verdicts the moment they arrive,
`rewards` turn a judged `trajectory` into a number.
"""
