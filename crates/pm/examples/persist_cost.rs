//! What one persist costs on this machine: `copy_in` of a record, then a drain, in a row as a log
//! is written, around the cache against through it. The table in `media::mapped` comes from here.
//!
//! ```text
//! cargo run --release -p farbank-pm --example persist_cost
//! ```

use std::time::Instant;

use farbank_pm::media::Mapped;
use farbank_pm::{Medium, Off, PersistCtx};

const LOG_BYTES: u64 = 1 << 30;
const PERSISTS: u32 = 40_000;
const ROUNDS: usize = 9;
const SIZES: [usize; 12] = [16, 64, 112, 128, 256, 512, 640, 768, 896, 1024, 2048, 4096];

/// A place in the row where records start.
struct Start {
    name: &'static str,
    /// Bytes the first record is put off.
    shift: u64,
    /// Whether a record begins where the last one ended, or on the next line.
    packed: bool,
}

const STARTS: [Start; 2] = [
    Start {
        name: "own lines",
        shift: 0,
        packed: false,
    },
    Start {
        name: "16-aligned, packed",
        shift: 16,
        packed: true,
    },
];

fn main() {
    let path = |from| {
        Mapped::anonymous(LOG_BYTES)
            .expect("1 GiB")
            .with_non_temporal_from(from)
    };
    let mut media = [path(0), path(usize::MAX)];
    for medium in &mut media {
        medium.prefault(&mut |_, _| {});
    }
    println!(
        "ns per persist, median of {ROUNDS} rounds; write back by {}",
        media[0].write_back().name()
    );
    println!(
        "{:<20} {:>6} {:>14} {:>14}",
        "start", "bytes", "around", "through"
    );
    for start in &STARTS {
        for bytes in SIZES {
            let mut ns = [[0.0; ROUNDS]; 2];
            for round in 0..ROUNDS {
                for (medium, ns) in media.iter().zip(&mut ns) {
                    ns[round] = persists_ns(medium, start, bytes, round as u64);
                }
            }
            let [around, through] = ns.map(median);
            println!(
                "{:<20} {bytes:>6} {around:>14.0} {through:>14.0}",
                start.name
            );
        }
    }
}

/// Nanoseconds per persist; each round writes where none has written for long.
fn persists_ns(medium: &Mapped, start: &Start, bytes: usize, round: u64) -> f64 {
    let mut ctx = PersistCtx::new(0);
    let record = vec![0x5a; bytes];
    let step = if start.packed {
        bytes
    } else {
        bytes.next_multiple_of(64)
    } as u64;
    let region = LOG_BYTES / 2 - 4096;
    let mut at = start.shift + (round % 2) * LOG_BYTES / 2;
    let end = at + region;
    let begin = Instant::now();
    for _ in 0..PERSISTS {
        medium.copy_in(&mut ctx, Off(at), &[&record]);
        let _ticket = medium.drain(&mut ctx);
        at += step;
        if at >= end {
            at -= region / 64 * 64;
        }
    }
    begin.elapsed().as_nanos() as f64 / f64::from(PERSISTS)
}

fn median(mut ns: [f64; ROUNDS]) -> f64 {
    ns.sort_by(f64::total_cmp);
    ns[ROUNDS / 2]
}
