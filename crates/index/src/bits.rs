//! Masks: a bit for each of a few places.

/// Of which words something holds. All are asked before any answer is looked at, so that the CPU need not guess which it
/// will be, and goes on to the next lookup while this one's lines are on their way.
#[inline(always)]
pub(crate) fn those<const N: usize>(words: [u64; N], holds: impl Fn(u64) -> bool) -> u64 {
    let mut found = 0;
    for (n, word) in words.into_iter().enumerate() {
        found |= u64::from(holds(word)) << n;
    }
    found
}
