"""Claims: the exclusive right of a process to a partition."""

from penstock.claims.static import Claims, StaticClaims

__all__ = ["Claims", "StaticClaims"]
