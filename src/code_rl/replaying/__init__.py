"""A recorded run again, without model or sandbox."""
