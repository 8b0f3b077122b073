//! [`Corruption`], the report of damaged bytes on a medium.

use std::borrow::Cow;
use std::fmt;

use crate::offset::Off;

/// Damage on a medium: bytes that are not what the format requires.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Corruption {
    /// Damaged object, for example "the header of segment 12".
    pub what: Cow<'static, str>,
    /// Offset of the object, in bytes.
    pub at: Off,
    /// Value that the format requires.
    pub expected: Cow<'static, str>,
    /// Value found.
    pub found: Cow<'static, str>,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Corruption {
            what,
            at,
            expected,
            found,
        } = self;
        write!(
            f,
            "{what} at {:#x}: found {found}, expected {expected}",
            at.0
        )
    }
}

impl std::error::Error for Corruption {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_object_the_offset_and_both_values() {
        let corruption = Corruption {
            what: "the header of segment 12".into(),
            at: Off(0x3000),
            expected: "checksum 0x99f0".into(),
            found: "0x1b2c".into(),
        };
        assert_eq!(
            corruption.to_string(),
            "the header of segment 12 at 0x3000: found 0x1b2c, expected checksum 0x99f0"
        );
    }
}
