//! A chunk of a [`GrowTable`](super::GrowTable) under a model checker: elements are created one by one.

/// Maximum number of elements in the first chunk. It is small because a model checker's atomics are large, and
/// because the checked code should reach growth.
pub(super) const FIRST_MAX: usize = 4;

/// Elements whose default value is all zero.
pub trait Zeroed: Default {}

impl<T: Default> Zeroed for T {}

/// Elements that never move.
pub(super) struct Chunk<T>(Box<[T]>);

impl<T: Zeroed> Chunk<T> {
    pub(super) fn zeroed(len: usize) -> Chunk<T> {
        Chunk((0..len).map(|_| T::default()).collect())
    }
}

impl<T> std::ops::Deref for Chunk<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}
