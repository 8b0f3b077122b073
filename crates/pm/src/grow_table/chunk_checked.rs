//! A chunk of a table under a model checker: its elements are made one by one.

/// Most elements the first chunk may have: a checker's atomics are large, and growing is to be seen.
pub(super) const FIRST_MAX: usize = 4;

/// What a table's elements start as: their default, which is all zero.
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
