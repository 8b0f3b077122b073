//! Hash chains of `v1`: linked key records in far memory.

use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off, PersistCtx};

use super::V1Core;
use crate::block::{UNIT, offset};
use crate::engine::{KEY_BYTES, Key, OpenError};

/// Bytes of a record's header, before its first value.
pub(super) const HEADER: usize = 32;
const KEY: usize = 8;
/// Offset, in a record, of the word that an update replaces.
pub(super) const WORD: usize = 24;

/// Place of a key's value, stored as one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ValuePlace {
    /// Number of the value's block.
    pub value: u32,
    /// Bytes of the value's block.
    pub room: u16,
    /// Bytes of the value.
    pub length: u16,
}

impl ValuePlace {
    pub(super) fn word(self) -> u64 {
        u64::from(self.value) | u64::from(self.room) << 32 | u64::from(self.length) << 48
    }

    fn of_word(word: u64) -> ValuePlace {
        ValuePlace {
            value: word as u32,
            room: (word >> 32) as u16,
            length: (word >> 48) as u16,
        }
    }

    pub(super) fn value_at(self) -> Off {
        Off(offset(self.value))
    }
}

/// Header of a key record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct V1Header {
    /// Number of the next record of the chain; 0 means none.
    pub next: u64,
    pub key: Key,
    pub place: ValuePlace,
}

impl V1Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..KEY].copy_from_slice(&self.next.to_le_bytes());
        bytes[KEY..WORD].copy_from_slice(&self.key);
        bytes[WORD..].copy_from_slice(&self.place.word().to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> V1Header {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        V1Header {
            next: word(0),
            key: bytes[KEY..KEY + KEY_BYTES].try_into().expect("sixteen"),
            place: ValuePlace::of_word(word(WORD)),
        }
    }
}

/// Places of a key's record and of its value.
#[derive(Clone, Copy)]
pub(super) struct V1Record {
    pub record: Off,
    pub place: ValuePlace,
}

impl<M: Medium> V1Core<M> {
    pub(super) fn head_at(&self, hash: u64) -> Off {
        Off((hash & (self.chains - 1)) * 8)
    }

    /// Returns the number of the newest record of a chain; 0 means none.
    pub(super) fn head(&self, hash: u64) -> u64 {
        if self.tuning.mirror {
            return self
                .mirror
                .get((hash & (self.chains - 1)) as usize)
                .load(Relaxed);
        }
        self.medium.load(self.head_at(hash))
    }

    /// Copies a head of far memory to the mirror (V1-INV-4).
    pub(super) fn mirror_head(&self, hash: u64, number: u64) {
        if self.tuning.mirror {
            let mirror = self.mirror.get((hash & (self.chains - 1)) as usize);
            mirror.store(number, Relaxed);
        }
    }

    fn header(&self, number: u64) -> (Off, V1Header) {
        let (at, mut bytes) = (Off(number * UNIT as u64), [0; HEADER]);
        self.medium.copy_out(at, &mut bytes);
        (at, V1Header::decode(&bytes))
    }

    /// Returns the record of `key`, if there is one, and the number of records read.
    pub(super) fn find(&self, hash: u64, key: &Key) -> (Option<V1Record>, u64) {
        let mut number = self.head(hash);
        let mut probes = 0;
        while number != 0 {
            let (record, header) = self.header(number);
            probes += 1;
            if header.key == *key {
                let place = header.place;
                return (Some(V1Record { record, place }), probes);
            }
            number = header.next;
        }
        (None, probes)
    }

    /// Returns the first chain that is not empty.
    pub(super) fn first_in_use(&self) -> Option<u64> {
        (0..self.chains).find(|&chain| self.head(chain) != 0)
    }

    /// Fills the mirror by walking all chains. Returns the end of the memory in use, rounded up to whole segments.
    pub(super) fn read_chains(&self, ctx: &mut PersistCtx) -> Result<u64, OpenError> {
        let layout = self.space.layout();
        let from = layout.range.start;
        let mut end = from;
        let mut left = (layout.range.end - from) / (HEADER + UNIT) as u64;
        for chain in 0..self.chains {
            let mut number = self.medium.load(self.head_at(chain));
            self.mirror_head(chain, number);
            self.flush_if_configured(ctx, self.head_at(chain), 8);
            while number != 0 {
                self.check_record(chain, number, left)?;
                left -= 1;
                let (record, header) = self.header(number);
                let value = header.place.value_at();
                let value_end = value.0 + u64::from(header.place.room);
                end = end.max(record.0 + HEADER as u64).max(value_end);
                self.flush_if_configured(ctx, record, HEADER);
                self.flush_if_configured(ctx, value, usize::from(header.place.length));
                number = header.next;
            }
        }
        let ticket = self.medium.drain(ctx);
        self.medium.wait_until_durable(ticket)?;
        Ok(from + (end - from).next_multiple_of(layout.segment_bytes))
    }

    /// Flushes bytes that recovery found, with [`V1Tuning::persist_recovered`](super::V1Tuning::persist_recovered).
    fn flush_if_configured(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        if self.tuning.persist_recovered {
            self.medium.flush(ctx, at, len);
        }
    }

    fn check_record(&self, chain: u64, number: u64, left: u64) -> Result<(), OpenError> {
        let range = &self.space.layout().range;
        let at = number.saturating_mul(UNIT as u64);
        if left > 0 && at >= range.start && at + HEADER as u64 <= range.end {
            return Ok(());
        }
        Err(OpenError::Unfit(format!(
            "chain {chain} refers to {at:#x}, expected a record between {:#x} and {:#x} and a chain that ends: \
             open it with the limits it was created with",
            range.start, range.end
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_encoding_and_decoding() {
        let header = V1Header {
            next: 7,
            key: *b"sixteen bytes !!",
            place: ValuePlace {
                value: u32::MAX,
                room: 1024,
                length: 1001,
            },
        };
        assert_eq!(V1Header::decode(&header.encode()), header);
        let word = header.encode()[WORD..].try_into().unwrap();
        assert_eq!(u64::from_le_bytes(word), header.place.word());
    }
}
