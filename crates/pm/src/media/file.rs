//! A file read through a mapping and written by pwritev.
