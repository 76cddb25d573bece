"""The cache drafter inside other engines. Nothing here is imported until an engine names it."""
