"""A recipe: YAML with line numbers in, a checked ``Recipe`` out, with all problems at once.

* ``recipe``: the one list of keys, and the result; ``values`` reads single values
* ``load`` (from file to recipe) reads with ``yaml``, checks with ``checks`` (the machine) and ``classes`` (policy,
  sampler and loggers with their options), and words findings with ``messages``
"""
