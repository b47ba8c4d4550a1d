"""What the whole tree uses."""
