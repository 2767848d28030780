"""Connectors: programs and classes by which engines keep prefixes of prompts in a store of kvc."""
