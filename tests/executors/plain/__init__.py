"""A second live executor, as small as one can be: every rank a plain subprocess. It proves what the seam needs."""
