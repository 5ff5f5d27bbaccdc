"""The closed forms that the other subpackages use: numbers in, numbers out.

A result of a paper that only its own claims need stands in that paper's folder of `prunus.papers`.
"""
