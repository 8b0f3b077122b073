//! Tests a request parser with many inputs, quickly: requests by a grammar, changed a little and split at random.
//!
//! ```text
//!   parsers memcached|resp SEED FROM COUNT
//! ```
//!
//! Input N of a seed is always the same. A failure ends the run and prints the command that reproduces it.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use farbank_fuzz::request_builder::RequestBuilder;
use farbank_fuzz::transcript::{Comparer, Cut, ReadFn};
use farbank_fuzz::{memcached, resp};
use farbank_pm::rng::Rng;

/// Number of inputs that a thread takes at a time.
const CHUNK: u64 = 4096;
/// Length of the longest input that may be split into single bytes.
const SINGLE_BYTES_MAX: usize = 400;

/// A parser under test.
#[derive(Clone, Copy)]
struct Parser {
    name: &'static str,
    hear: ReadFn,
    draft: fn(&mut RequestBuilder<'_>),
}

const PARSERS: [Parser; 2] = [
    Parser {
        name: "memcached",
        hear: memcached::hear,
        draft: memcached::draft,
    },
    Parser {
        name: "resp",
        hear: resp::hear,
        draft: resp::draft,
    },
];

/// Buffers and counters of one thread.
#[derive(Default)]
struct Thread {
    judge: Comparer,
    bytes: Vec<u8>,
    read: u64,
    requests: u64,
    refused: u64,
}

impl Thread {
    fn run(&mut self, parser: Parser, seed: u64, number: u64) {
        let mut rng = Rng::new(seed).fork(number);
        let mut draft = RequestBuilder::new(&mut rng, &mut self.bytes);
        (parser.draft)(&mut draft);
        draft.mutate();
        let len = self.bytes.len();
        let mut reads = [1; 4];
        let mut count = 1 + rng.below(4) as usize;
        if len <= SINGLE_BYTES_MAX && rng.one_in(8) {
            count = 1;
        } else {
            let most = (len / 8).max(32) as u64;
            reads = reads.map(|_| 1 + rng.below(most) as usize);
        }
        let cut = Cut {
            reads: &reads[..count],
            ahead: 1 + rng.below(4) as usize,
        };
        let heard = self.judge.compare(parser.hear, &self.bytes, cut);
        self.read += len as u64;
        self.requests += heard.requests();
        self.refused += u64::from(heard.is_refused());
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, numbers @ ..] = &args[..] else {
        return usage();
    };
    let parser = PARSERS.iter().find(|parser| parser.name == name);
    let numbers: Vec<u64> = numbers.iter().flat_map(|text| text.parse()).collect();
    let (Some(parser), &[seed, from, count]) = (parser, &numbers[..]) else {
        return usage();
    };
    match search(*parser, seed, from, count) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: parsers memcached|resp SEED FROM COUNT");
    ExitCode::from(2)
}

/// Returns whether each of the inputs `from..from + count` gives the same requests for every split.
fn search(parser: Parser, seed: u64, from: u64, count: u64) -> bool {
    let (next, found) = (AtomicU64::new(0), AtomicBool::new(false));
    let started = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut thread = Thread::default();
        while !found.load(Relaxed) {
            let chunk = next.fetch_add(CHUNK, Relaxed);
            if chunk >= count {
                break;
            }
            for number in chunk..count.min(chunk + CHUNK) {
                let number = from + number;
                let run = AssertUnwindSafe(|| thread.run(parser, seed, number));
                if catch_unwind(run).is_err() {
                    found.store(true, Relaxed);
                    let input = thread.bytes.escape_ascii();
                    eprintln!("{}: input {number} of seed {seed}: {input}", parser.name);
                    eprintln!("repeat: parsers {} {seed} {number} 1", parser.name);
                    return thread;
                }
            }
        }
        thread
    };
    let all: Vec<Thread> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended
            .map(|thread| thread.expect("all panics are caught"))
            .collect()
    });
    if found.load(Relaxed) {
        return false;
    }
    let sum = |of: fn(&Thread) -> u64| all.iter().map(of).sum::<u64>();
    let secs = started.elapsed().as_secs_f64();
    println!(
        "{}: seed {seed}, {count} inputs of {} bytes on average, {} requests, {} inputs refused, in {secs:.1} s: \
         {:.0} per second on {threads} CPUs",
        parser.name,
        sum(|thread| thread.read) / count.max(1),
        sum(|thread| thread.requests),
        sum(|thread| thread.refused),
        count as f64 / secs
    );
    true
}
