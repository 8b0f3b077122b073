//! RESP over a Farbank store.
