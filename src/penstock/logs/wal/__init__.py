"""An append log of Penstock's own, for sources that cannot send their records again (docs/wal.md)."""
