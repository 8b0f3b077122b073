//! Masks: a bit for each of a few places.

/// The numbers of a mask's ones, from the lowest.
#[inline]
pub(crate) fn ones(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let n = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (n < u64::BITS).then_some(n)
    })
}
