//! State that all threads of a server share.

pub(crate) mod shared;
