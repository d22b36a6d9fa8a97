"""Data sets in one file: pack a directory into a SquashFS image, verify, compare, extend and mount it.

Reading order: `source` (what is packed), `options`, `stream`, `pack` (write an image), `manifest` (what is
written beside and inside it), `squashfs` and `tree` (read an image), `verify` (also compares), `layers`,
`webdataset` and `shards` (tar files of samples).
"""
