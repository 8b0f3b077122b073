//! Digest of a sequence of numbers, by which two explorations are compared.

use farbank_pm::rng::Rng;

/// Returns `digest` extended by one number. The order of the numbers matters.
pub(crate) fn fold(digest: u64, more: u64) -> u64 {
    Rng::new(digest ^ Rng::new(more).draw()).draw()
}
