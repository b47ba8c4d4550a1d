"""Programs that write files of the tree, and the audit of its packages."""
