//! Memory that is mapped and written by stores.
