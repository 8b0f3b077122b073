//! Values by id. An id always gives the same bytes, and the lengths cover every size threshold of the engine.

use farbank_pm::rng::Rng;

use crate::child::UnwrittenValue;

/// Number that identifies a value. Every write of a run uses a new one.
pub(super) type ValueId = u32;

/// Bytes of the id at the start of a value.
const NUMBER_BYTES: usize = size_of::<ValueId>();

/// Distance of two ids. Odd ids have values that fit into a group on the smallest pool under test.
pub(super) const STEP: ValueId = 2;

/// Returns whether the value with this id fits into a group, also with others like it.
pub(super) fn is_grouped(id: ValueId) -> bool {
    id % STEP == 1
}

/// Returns the value with this id.
pub(super) fn value(id: ValueId) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(id));
    let len = len(&mut rng, is_grouped(id));
    let mut bytes = id.to_le_bytes().to_vec();
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.draw().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Draws a length: mostly short, sometimes near a threshold at which the engine stores values differently, up to 1 MB.
fn len(rng: &mut Rng, grouped: bool) -> usize {
    let near = |len: u64, rng: &mut Rng| len - 64 + rng.below(128);
    let len = match rng.below(200) {
        0..=7 if grouped => near(30_000, rng),
        0 => 1_000_000,
        1..=2 => near(200 << 10, rng),
        3..=7 => near(64 << 10, rng),
        8..=19 => near(8 << 10, rng),
        20..=39 => near(4 << 10, rng),
        40..=79 => near(1 << 10, rng),
        _ => 4 + rng.below(60),
    };
    usize::try_from(len).unwrap_or(NUMBER_BYTES)
}

/// Returns the id of a value.
///
/// # Errors
/// The bytes are not those of any value.
pub(super) fn number(bytes: &[u8]) -> Result<ValueId, UnwrittenValue> {
    let Some(id) = bytes.first_chunk().map(|id| ValueId::from_le_bytes(*id)) else {
        return Err(UnwrittenValue(format!(
            "the value has {} bytes, too few for an id",
            bytes.len()
        )));
    };
    let whole = value(id);
    match bytes == whole {
        true => Ok(id),
        false => Err(UnwrittenValue(format!(
            "the value has {} bytes and id {id}, but differs from the {} bytes written with this id",
            bytes.len(),
            whole.len()
        ))),
    }
}
