from .base import KVConnectorRole, SupportsHMA

__all__ = ["KVConnectorRole", "SupportsHMA"]
