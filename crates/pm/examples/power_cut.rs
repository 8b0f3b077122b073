//! Writes numbered records durably until the power goes, then tells whether any acknowledged one
//! was lost. Made for a guest whose power can be cut, on any medium:
//!
//! ```text
//! power_cut write PATH          prints ACK n after record n is durable
//! power_cut check PATH LAST     exits with 1 if a record up to LAST is not whole
//! power_cut control PATH        writes without flush or drain: its check must fail
//! power_cut smoke PATH          creates, grows and reopens a pool, and prints what it is on
//! ```

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use farbank_pm::media::{AnyMedium, OpenOptions, create_path, open_path};
use farbank_pm::pool::{Layout, Pool};
use farbank_pm::{Lane, Medium, Off};

const BYTES: u64 = 32 << 20;
const LAYOUT: Layout = Layout {
    segment_bytes: 2 << 20,
};
/// Lengths of records: within a line, across lines, and long enough to go around the cache.
const LENGTHS: [usize; 4] = [48, 208, 1040, 2064];
const SLOT: u64 = 2064;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["write", path] => on_new(Path::new(path), &mut |pool| pool.write(true)),
        ["control", path] => on_new(Path::new(path), &mut |pool| pool.write(false)),
        ["check", path, last] => {
            let last = last.parse().ok().filter(|last| *last < slots());
            let last = last.expect("LAST is the number of a record");
            on_old(Path::new(path), &mut |pool| pool.check(last))
        }
        ["smoke", path] => smoke(Path::new(path)),
        _ => {
            Err("usage: power_cut write PATH | check PATH LAST | control PATH | smoke PATH".into())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("FAILED {e}");
            ExitCode::FAILURE
        }
    }
}

type Done = Result<(), Box<dyn Error>>;

/// What is done to a pool of either medium.
trait Act {
    fn write(&self, durably: bool) -> Done;
    fn check(&self, last: u64) -> Done;
    fn grow_and_fill(&self) -> Done;
}

impl<M: Medium> Act for Pool<M> {
    fn write(&self, durably: bool) -> Done {
        let mut lane = Lane::new(0);
        for n in 0..slots() {
            let (at, record) = (self.slot(n), record(n));
            if durably {
                let (head, body) = record.split_at(24);
                self.medium().copy_in(&mut lane, at, &[head, body]);
                let ticket = self.medium().drain(&mut lane);
                self.medium().wait(ticket)?;
            } else {
                for (word, i) in record.as_chunks().0.iter().zip(0..) {
                    let word = u64::from_le_bytes(*word);
                    self.medium().store(&mut lane, at.plus(8 * i), word);
                }
            }
            if n % 100 == 0 {
                println!("ACK {n}");
            }
        }
        println!("WRITTEN");
        Ok(())
    }

    fn check(&self, last: u64) -> Done {
        let lost = (0..=last).filter(|n| !self.medium().matches(self.slot(*n), &record(*n)));
        match lost.count() {
            0 => println!("CHECK {last} OK on {}", self.medium().caps().kind.name()),
            lost => return Err(format!("{lost} of {} acknowledged records LOST", last + 1).into()),
        }
        Ok(())
    }

    fn grow_and_fill(&self) -> Done {
        let mut lane = Lane::new(0);
        let device = self.medium().grow(self.medium().len() + 1).is_err();
        if !device {
            self.grow(&mut lane, self.segments() + 2)?;
        }
        let end = self.segment(self.segments() - 1);
        self.medium().copy_in(&mut lane, end, &[&[7; 4096]]);
        let ticket = self.medium().drain(&mut lane);
        self.medium().wait(ticket)?;
        self.set_root(&mut lane, &[9; farbank_pm::pool::ROOT_WORDS])?;
        Ok(())
    }
}

trait Slots {
    fn slot(&self, n: u64) -> Off;
}

impl<M: Medium> Slots for Pool<M> {
    fn slot(&self, n: u64) -> Off {
        self.segment(0).plus(n * SLOT)
    }
}

fn slots() -> u64 {
    (BYTES - LAYOUT.first_segment()) / SLOT
}

fn record(n: u64) -> Vec<u8> {
    let words = (0..).map(|i: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i);
    words
        .flat_map(u64::to_le_bytes)
        .take(LENGTHS[n as usize % LENGTHS.len()])
        .collect()
}

fn on_new(path: &Path, act: &mut dyn FnMut(&dyn Act) -> Done) -> Done {
    let mut lane = Lane::new(0);
    match create_path(path, BYTES, &OpenOptions::default(), &mut |_, _| {})? {
        AnyMedium::Mapped(medium) => act(&Pool::create(medium, &mut lane, &LAYOUT)?),
        AnyMedium::File(medium) => act(&Pool::create(medium, &mut lane, &LAYOUT)?),
    }
}

fn on_old(path: &Path, act: &mut dyn FnMut(&dyn Act) -> Done) -> Done {
    let mut lane = Lane::new(0);
    match open_path(path, &OpenOptions::default())? {
        AnyMedium::Mapped(medium) => act(&Pool::open(medium, &mut lane)?),
        AnyMedium::File(medium) => act(&Pool::open(medium, &mut lane)?),
    }
}

fn smoke(path: &Path) -> Done {
    on_new(path, &mut |pool| pool.grow_and_fill())?;
    let opened = open_path(path, &OpenOptions::default())?;
    println!("{:?}", opened.caps());
    match create_path(path, BYTES, &OpenOptions::default(), &mut |_, _| {}) {
        Err(refused) => println!("a second creation: {refused}"),
        Ok(_) => return Err("a second creation was not refused".into()),
    }
    opened.prefault(&mut |done, total| println!("prefault {done} of {total}"));
    opened.close()?;
    on_old(path, &mut |_| {
        println!("SMOKE OK");
        Ok(())
    })
}
