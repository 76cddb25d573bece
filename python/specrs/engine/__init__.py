"""The round and what surrounds it: requests, laws, stops, text."""
