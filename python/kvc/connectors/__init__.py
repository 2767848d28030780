"""Connectors of inference engines, a module each. None is imported by `import kvc`."""
