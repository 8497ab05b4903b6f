"""Who suggests configurations: a ``Sampler`` answers with the n-th one of a search.

* ``sequence``: the seam, and samplers that are functions of (seed, n): random, grid, independent
"""
