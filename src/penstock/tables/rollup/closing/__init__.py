"""From partials to closed windows: the watermark, the closes, and what is cleaned up after them."""
