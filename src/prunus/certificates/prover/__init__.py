"""Deciding: branch and bound over inputs, attacks, verdicts and labels."""
