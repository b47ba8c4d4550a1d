"""What writes files of the tree, and the audit of its packages: a program each."""
