"""`code-rl serve`: the embedded engine behind the Tinker SDK's wire protocol.

`application` routes requests (`wire`) to calls; `core` holds what they share and puts operations in
order; `promises` are their results; `engine` trains and samples; `store` is what survives a
restart. The verb imports all of these but `wire`; nothing else imports this room.
"""
