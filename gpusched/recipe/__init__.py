"""A recipe: YAML with line numbers in, a checked ``Recipe`` out, with all problems at once.

* ``load`` (from file to recipe) reads with ``yaml`` into a ``document``, checks against ``schema`` and ``checks``,
  and words findings with ``messages``; ``env`` and ``values`` read single values, ``mode`` finds out if less is
  better, ``policy`` reads policy options
* ``recipe`` is the result; ``write`` writes the resolved form
"""
