//! Bit masks over a few words.

/// Returns the mask of the words for which `holds` is true. All words are tested before the result is used, so that the
/// CPU needs no branch prediction and can start the next lookup while this one's lines are being fetched.
#[inline(always)]
pub(crate) fn match_mask<const N: usize>(words: [u64; N], holds: impl Fn(u64) -> bool) -> u64 {
    let mut found = 0;
    for (n, word) in words.into_iter().enumerate() {
        found |= u64::from(holds(word)) << n;
    }
    found
}
