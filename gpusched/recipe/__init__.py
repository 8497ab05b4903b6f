"""A recipe: YAML with line numbers in, a checked ``Recipe`` out, with all problems at once.

* ``recipe``: the one list of keys, and the result; ``schema``: what a file may hold, made from that list
* ``load`` (from file to recipe) reads with ``yaml`` into a ``document``, checks against ``schema`` and ``checks``, and
  words findings with ``messages``; ``env`` and ``values`` read single values,
  ``policy`` reads options of the policy and the sampler
"""
