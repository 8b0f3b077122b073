//! Values by number: the same number is the same bytes, whose length crosses every threshold of the engine.

use farbank_pm::sim::Rng;

use super::family::ValueId;

/// Bytes that a value's number takes.
const NUMBER_BYTES: usize = size_of::<ValueId>();

/// Values with odd numbers fit into a group, on the smallest pool that is tried.
pub(super) const STEP: ValueId = 2;

/// The value of this number.
pub(super) fn value(id: ValueId) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(id));
    let len = len(&mut rng, id % STEP == 1);
    let mut bytes = id.to_le_bytes().to_vec();
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.draw().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// How long a value is: mostly short, sometimes near a length at which the engine stores it differently, up to 1 MB.
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

/// The number of a value.
///
/// # Errors
/// These are the bytes of no value.
pub(super) fn number(bytes: &[u8]) -> Result<ValueId, String> {
    let Some(id) = bytes.first_chunk().map(|id| ValueId::from_le_bytes(*id)) else {
        return Err(format!("{} bytes are no value", bytes.len()));
    };
    let whole = value(id);
    match bytes == whole {
        true => Ok(id),
        false => Err(format!(
            "{} bytes begin like value {id}, whose {} bytes are others",
            bytes.len(),
            whole.len()
        )),
    }
}
