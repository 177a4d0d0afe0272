"""Experiments: recipes, the stages they are made of, and where their results are kept."""
