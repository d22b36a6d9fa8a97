"""Data sets in one file: pack a directory into a SquashFS image, verify, compare, extend and mount it.

Reading order: `source` (scan what is packed), `options`, `stream`, `pack` (write an image), `manifest` (what
is written beside and inside it), `squashfs` (read an image), `verify` (also compares), `layers`, `webdataset`
and `shards` (tar files of samples).
"""
