"""Networks that map an image to pooled features."""
