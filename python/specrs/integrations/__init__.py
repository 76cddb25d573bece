"""Adapters for engines that people already run; each module is imported on demand and names what it needs."""
