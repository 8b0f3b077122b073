//! Test of a bare pool on a medium: numbered records, written one by one into a ring of slots.
//!
//! Record n goes into slot n modulo [`SLOTS`]. The writer waits for each record before it writes the next. So after a
//! power cut only the slot after the newest record may hold neither its old nor its new record.

use std::path::Path;

use farbank_pm::media::{AnyMedium, OpenError, OpenOptions, create_path, open_path};
use farbank_pm::pool::{Pool, PoolLayout};
use farbank_pm::{Medium, Off, PersistCtx};

use super::ack_log::WriterLog;
use super::error::PowerError;
use super::plan::CheckFindings;

const LAYOUT: PoolLayout = PoolLayout {
    segment_bytes: 64 << 10,
};
/// Segments of a new pool, and after it has grown.
const SEGMENTS: [u32; 2] = [4, 36];
/// Record lengths in bytes: within a line, across lines, and long enough for stores that bypass the cache.
const LENGTHS: [usize; 4] = [48, 208, 1040, 2064];
const SLOT_BYTES: u64 = 2064;
const SLOTS: u64 = 1000;
/// Records between two acknowledgements.
const AT_A_TIME: u64 = 100;
/// Odd, so that the product can be inverted: the first word of a record gives its number.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Inverse of `SPREAD` modulo 2^64.
const GATHER: u64 = 0xf1de_83e1_9937_733d;

fn slot<M: Medium>(pool: &Pool<M>, record: u64) -> Off {
    pool.segment(0).plus(record % SLOTS * SLOT_BYTES)
}

fn record(n: u64) -> Vec<u8> {
    let words = (0..).map(|i: u64| (n + 1).wrapping_mul(SPREAD) ^ i);
    words
        .flat_map(u64::to_le_bytes)
        .take(LENGTHS[n as usize % LENGTHS.len()])
        .collect()
}

/// Writes records from number `from` on, until the power is cut or another writer fails.
pub(super) fn write(path: &Path, from: u64, to: &WriterLog<'_>) -> Result<(), PowerError> {
    make(path)?;
    match open_path(path, &OpenOptions::default())? {
        AnyMedium::Mapped(medium) => write_on(medium, from, to),
        AnyMedium::File(medium) => write_on(medium, from, to),
    }
}

fn write_on<M: Medium>(medium: M, from: u64, to: &WriterLog<'_>) -> Result<(), PowerError> {
    let mut ctx = PersistCtx::new(0);
    let pool = Pool::open(medium, &mut ctx)?;
    for n in from.. {
        let bytes = record(n);
        let (head, body) = bytes.split_at(24);
        pool.medium()
            .copy_in(&mut ctx, slot(&pool, n), &[head, body]);
        let ticket = pool.medium().drain(&mut ctx);
        pool.medium().wait(ticket)?;
        if (n + 1).is_multiple_of(AT_A_TIME) {
            to.acknowledge(n + 1)?;
            if to.is_over() {
                break;
            }
        }
    }
    Ok(())
}

/// Creates the pool if it does not exist: small first, then grown.
fn make(path: &Path) -> Result<(), PowerError> {
    let bytes = |segments: u32| LAYOUT.first_segment() + u64::from(segments) * LAYOUT.segment_bytes;
    match create_path(
        path,
        bytes(SEGMENTS[0]),
        &OpenOptions::default(),
        &mut |_, _| {},
    ) {
        Ok(AnyMedium::Mapped(medium)) => make_on(medium),
        Ok(AnyMedium::File(medium)) => make_on(medium),
        Err(OpenError::Exists { .. } | OpenError::Occupied { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn make_on<M: Medium>(medium: M) -> Result<(), PowerError> {
    let mut ctx = PersistCtx::new(0);
    let pool = Pool::create(medium, &mut ctx, &LAYOUT)?;
    pool.grow(&mut ctx, SEGMENTS[1])
        .map_err(|source| PowerError::Io {
            what: "cannot grow the bare pool".into(),
            source,
        })
}

/// Compares the slots with the records they must hold, given that `acknowledged` records were durable.
pub(super) fn check(path: &Path, acknowledged: u64) -> Result<CheckFindings, PowerError> {
    match open_path(path, &OpenOptions::default())? {
        AnyMedium::Mapped(medium) => check_on(medium, acknowledged),
        AnyMedium::File(medium) => check_on(medium, acknowledged),
    }
}

fn check_on<M: Medium>(medium: M, acknowledged: u64) -> Result<CheckFindings, PowerError> {
    let pool = Pool::open(medium, &mut PersistCtx::new(0))?;
    let is_whole = |n: &u64| pool.medium().matches(slot(&pool, *n), &record(*n));
    let in_slot = |n| {
        pool.medium()
            .load(slot(&pool, n))
            .wrapping_mul(GATHER)
            .wrapping_sub(1)
    };
    // Number after that of the newest record.
    let newest = (0..SLOTS)
        .map(in_slot)
        .filter(is_whole)
        .max()
        .map_or(0, |newest| newest + 1);
    let due = newest.max(acknowledged);
    let oldest = (due + 1).saturating_sub(SLOTS);
    let missing: Vec<u64> = (oldest..due).filter(|n| !is_whole(n)).collect();
    Ok(CheckFindings {
        lost: missing.iter().filter(|n| **n < acknowledged).count() as u64,
        wrong: missing
            .iter()
            .map(|n| format!("record {n} is missing or torn"))
            .collect(),
        ..CheckFindings::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_a_record_gives_its_number() {
        for n in [0, 1, 999, 1 << 40] {
            let word = u64::from_le_bytes(*record(n).first_chunk().expect("a word"));
            assert_eq!(word.wrapping_mul(GATHER).wrapping_sub(1), n);
        }
    }
}
