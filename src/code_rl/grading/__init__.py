"""Is this program right?"""
