"""Target models: the embedded ones, their files in the cache, and the adapters that drive them."""
