"""Tests, in the layout of the tree."""
