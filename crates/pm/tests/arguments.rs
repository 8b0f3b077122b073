//! Wrong arguments of the public functions: each causes a panic with a clear message and changes
//! nothing. It is never undefined behaviour.
//!
//! The tests call each medium with every combination of offsets, lengths and steps at an edge
//! of a word, a line, a page, the medium, 32 bits and 64 bits, and with products that wrap around to
//! a small number. A model of a few lines in 128-bit arithmetic decides which calls are valid. The simulator also runs
//! under Miri (suite `miri`), the real media under AddressSanitizer (suite `asan`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use farbank_pm::model::Modelled;
use farbank_pm::sim::{Persistency, Sim};
use farbank_pm::{Medium, Off, PersistCtx};

/// Bytes of a medium under test: two pages, or a few lines under Miri.
const BYTES: u64 = if cfg!(miri) { 256 } else { 2 * 4096 };
/// Words that one `load_words` call loads.
const MANY: usize = 5;
/// Fragments of clear messages about a wrong argument. Every panic message contains one of them.
const CLEAR: [&str; 6] = [
    "outside the",
    "aligned",
    "8-aligned",
    "pair at",
    "an offset has 64 bits",
    "outside any medium",
];

/// A medium and its expected content.
struct Tested<M> {
    name: &'static str,
    medium: M,
    ctx: PersistCtx,
    expected: Vec<u8>,
}

/// Returns offsets at edges and on either side of them.
fn offsets() -> Vec<u64> {
    let edges: &[u64] = match cfg!(miri) {
        true => &[0, BYTES, u64::MAX / 8 + 1],
        false => &[
            0,
            64,
            4096,
            BYTES,
            1 << 32,
            1 << 61,
            1 << 63,
            u64::MAX / 8 + 1,
        ],
    };
    let near = edges
        .iter()
        .flat_map(|edge| [-16_i64, -8, -1, 0, 1, 8, 16].map(|by| edge.wrapping_add_signed(by)));
    let mut offsets: Vec<u64> = near.collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

/// Returns lengths for calls that take a length but no buffer.
fn lengths() -> Vec<usize> {
    let end = BYTES as usize;
    let mut lengths = vec![0, 1, 7, 8, 9, 64, 65, end - 8, end - 1, end, end + 1];
    lengths.extend([1 << 32, isize::MAX as usize, usize::MAX - 8191, usize::MAX]);
    lengths
}

/// Returns steps between words. With [`MANY`] words of 8 bytes several products wrap around, some to almost zero.
fn steps() -> Vec<usize> {
    let wraps = usize::MAX / (MANY * 8);
    let last_wraps = usize::MAX / ((MANY - 1) * 8);
    let mut steps = vec![
        0,
        1,
        2,
        8,
        255,
        256,
        1 << 29,
        1 << 58,
        1 << 59,
        1 << 60,
        1 << 61,
    ];
    steps.extend([
        wraps,
        wraps + 1,
        last_wraps,
        last_wraps + 1,
        usize::MAX / 8 + 1,
        usize::MAX,
    ]);
    steps
}

/// Sector of a file that holds its host lease.
const LEASE_SECTOR: std::ops::Range<usize> = 1024..1536;

fn within(at: u64, len: u128) -> bool {
    u128::from(at) + len <= u128::from(BYTES)
}

fn aligned(at: u64, to: u64) -> bool {
    at.is_multiple_of(to)
}

impl<M: Medium> Tested<M> {
    fn new(name: &'static str, medium: M) -> Tested<M> {
        assert_eq!(medium.len(), BYTES);
        let expected: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8 + 1).collect();
        let mut ctx = PersistCtx::new(1);
        medium.copy_in(&mut ctx, Off(0), &[&expected]);
        let ticket = medium.drain(&mut ctx);
        medium.wait(ticket).expect("nothing failed");
        Tested {
            name,
            medium,
            ctx,
            expected,
        }
    }

    /// Makes a call. Checks that it returns if it is valid (`right`), and otherwise panics with a clear message.
    fn call<R>(
        &mut self,
        what: &str,
        right: bool,
        call: impl FnOnce(&M, &mut PersistCtx) -> R,
    ) -> Option<R> {
        let (medium, ctx) = (&self.medium, &mut self.ctx);
        let name = self.name;
        match catch_unwind(AssertUnwindSafe(|| call(medium, ctx))) {
            Ok(result) => {
                assert!(right, "{name}: {what} was not refused");
                Some(result)
            }
            Err(panic) => {
                let message = panic.downcast_ref::<String>().map(String::as_str);
                let message = message.or(panic.downcast_ref::<&str>().copied());
                let message = message.unwrap_or("no message");
                assert!(!right, "{name}: {what} was refused: {message}");
                let clear = CLEAR.iter().any(|part| message.contains(part));
                assert!(
                    clear,
                    "{name}: {what}: the panic message is not clear: {message}"
                );
                None
            }
        }
    }

    fn bytes(&self, at: u64, len: usize) -> &[u8] {
        &self.expected[at as usize..][..len]
    }

    fn word(&self, at: u64) -> u64 {
        let bytes = self.bytes(at, 8).try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    }

    fn unchanged(&self) {
        let mut found = vec![0; BYTES as usize];
        self.medium.copy_out(Off(0), &mut found);
        // The host lease of a file renews its sector every few seconds. A slow run meets that.
        found[LEASE_SECTOR].copy_from_slice(&self.expected[LEASE_SECTOR]);
        assert!(found == self.expected, "{}: the content changed", self.name);
    }

    fn words(&mut self, at: u64) {
        let right = aligned(at, 8) && within(at, 8);
        let found = self.call(&format!("load({at:#x})"), right, |m, _| m.load(Off(at)));
        assert_eq!(found, right.then(|| self.word(at)));
        // Writes the present value, so that the content does not change.
        let word = if right { self.word(at) } else { 7 };
        self.call(&format!("store({at:#x})"), right, |m, ctx| {
            m.store(ctx, Off(at), word);
        });
        self.call(&format!("cas({at:#x})"), right, |m, ctx| {
            m.cas(ctx, Off(at), word, word)
                .expect("the word has the expected value");
        });
        let pair = aligned(at, 16) && within(at, 16);
        let words = if pair {
            [word, self.word(at + 8)]
        } else {
            [7; 2]
        };
        self.call(&format!("copy_in_pair({at:#x})"), pair, |m, ctx| {
            m.copy_in_pair(ctx, Off(at), words);
            m.drain(ctx);
        });
    }

    fn word_rows(&mut self, at: u64, step: usize) {
        let ends = |n: usize| (n as u128 - 1) * step as u128 * 8 + 8;
        for (n, right) in [
            (1, aligned(at, 8) && within(at, ends(1))),
            (MANY, aligned(at, 8) && within(at, ends(MANY))),
        ] {
            let what = format!("load_words::<{n}>({at:#x}, {step})");
            let found = self.call(&what, right, |m, _| match n {
                1 => m.load_words::<1>(Off(at), step).to_vec(),
                _ => m.load_words::<MANY>(Off(at), step).to_vec(),
            });
            let expected = right.then(|| {
                let words = (0..n).map(|n| self.word(at + (n * step * 8) as u64));
                words.collect::<Vec<_>>()
            });
            assert_eq!(found, expected, "{what}");
        }
    }

    /// Makes the calls that take a length but no buffer.
    fn ranges(&mut self, at: u64, len: usize) {
        let right = within(at, len as u128);
        let what = |name| format!("{name}({at:#x}, {len})");
        let mut out = vec![1, 2, 3];
        self.call(&what("append_out"), right, |m, _| {
            m.append_out(Off(at), len, &mut out)
        });
        let expected = if right { self.bytes(at, len) } else { &[] };
        assert_eq!((&out[..3], &out[3..]), (&[1, 2, 3][..], expected));
        let crc = right.then(|| farbank_pm::crc::crc32c_append(9, self.bytes(at, len)));
        let found = self.call(&what("crc"), right, |m, _| m.crc(Off(at), len, 9));
        assert_eq!(found, crc);
        let same = self.call(&what("crc_is"), right, |m, _| {
            m.crc_is(Off(at), len, 9, crc.unwrap_or(0))
        });
        assert_eq!(same, right.then_some(true));
        self.call(&what("flush"), right, |m, ctx| m.flush(ctx, Off(at), len));
        self.call(&what("prefetch"), true, |m, _| m.prefetch(Off(at), len));
    }

    /// Makes the calls that take a buffer.
    fn copies(&mut self, at: u64, len: usize) {
        let right = within(at, len as u128);
        let what = |name| format!("{name}({at:#x}, {len} bytes)");
        let bytes = match right {
            true => self.bytes(at, len).to_vec(),
            false => vec![7; len],
        };
        let mut out = vec![0; len];
        self.call(&what("copy_out"), right, |m, _| {
            m.copy_out(Off(at), &mut out)
        });
        assert!(!right || out == bytes);
        let held = self.call(&what("copy_out_if"), right, |m, _| {
            m.copy_out_if(Off(at), &mut out, &|_| 1)
        });
        assert_eq!(held, right.then_some(true));
        let same = self.call(&what("matches"), right, |m, _| m.matches(Off(at), &bytes));
        assert_eq!(same, right.then_some(true));
        let (one, other) = bytes.split_at(len / 3);
        self.call(&what("copy_in"), right && aligned(at, 8), |m, ctx| {
            m.copy_in(ctx, Off(at), &[one, &[], other]);
            m.drain(ctx);
        });
    }

    fn all(mut self) {
        let (offsets, lengths) = (offsets(), lengths());
        for at in &offsets {
            self.words(*at);
            for step in steps() {
                self.word_rows(*at, step);
            }
            for len in &lengths {
                self.ranges(*at, *len);
                if *len <= BYTES as usize + 1 && !cfg!(miri) || *len < 100 {
                    self.copies(*at, *len);
                }
            }
            self.unchanged();
        }
    }
}

/// Runs `test` without printing the expected panics, whose messages are clear.
fn quietly(test: impl FnOnce()) {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if !CLEAR.iter().any(|part| text.contains(part)) {
            eprintln!("{text}");
        }
    }));
    test();
}

#[test]
fn the_simulator_refuses_wrong_arguments() {
    quietly(|| {
        // Miri takes minutes, and the persistency modes differ only in the state after a crash.
        let some = if cfg!(miri) {
            1
        } else {
            Persistency::ALL.len()
        };
        for persistency in Persistency::ALL.into_iter().take(some) {
            Tested::new("sim", Sim::new(BYTES, persistency)).all();
        }
    });
}

#[test]
fn the_model_refuses_wrong_arguments() {
    quietly(|| {
        let sim = Sim::new(BYTES, Persistency::Adr);
        Tested::new("model", Modelled::new(sim)).all();
    });
}

#[test]
fn an_offset_beyond_64_bits_is_refused() {
    quietly(|| {
        for (at, bytes) in [(1, u64::MAX), (u64::MAX, 1), (1 << 63, 1 << 63)] {
            let sum = catch_unwind(|| Off(at).plus(bytes)).map_err(|panic| {
                panic
                    .downcast_ref::<&str>()
                    .copied()
                    .expect("a message")
                    .to_owned()
            });
            let message = sum.expect_err("there is no such offset");
            assert!(message.contains("an offset has 64 bits"), "{message}");
        }
        assert_eq!(Off(u64::MAX - 1).plus(1), Off(u64::MAX));
    });
}

#[cfg(not(miri))]
mod real {
    use super::*;
    use farbank_pm::Kind;
    use farbank_pm::media::{
        AnyMedium, File, KernelIo, Mapped, OpenOptions, ReadMode, SyncPolicy, create_path,
    };

    #[test]
    fn mapped_memory_refuses_wrong_arguments() {
        quietly(|| {
            let memory = || Mapped::anonymous(BYTES).expect("a little memory");
            Tested::new(
                "through the cache",
                memory().with_non_temporal_from(usize::MAX),
            )
            .all();
            Tested::new("around the cache", memory().with_non_temporal_from(0)).all();
            Tested::new("not written back", memory().without_durability()).all();
        });
    }

    #[test]
    fn a_file_refuses_wrong_arguments_however_it_is_read() {
        quietly(|| {
            for read_by in [ReadMode::Mapping, ReadMode::Pread] {
                let folder = tempfile::tempdir().expect("a temporary folder");
                Tested::new("file", file(&folder, read_by)).all();
            }
        });
    }

    fn file(folder: &tempfile::TempDir, read_by: ReadMode) -> File {
        let options = OpenOptions {
            medium: Some(Kind::File),
            // The policy does not matter here, and thousands of syncs would take long.
            sync: SyncPolicy::Never,
            read_by,
            io: std::sync::Arc::new(KernelIo),
            ..OpenOptions::default()
        };
        let path = folder.path().join("pool");
        match create_path(&path, BYTES, &options, &mut |_, _| {}) {
            Ok(AnyMedium::File(file)) => file,
            other => panic!("expected a file medium, got {other:?}"),
        }
    }

    #[test]
    fn any_range_can_be_prefaulted() {
        let memory = Mapped::anonymous(BYTES).expect("a little memory");
        for from in offsets() {
            for to in offsets() {
                memory.prefault_part(from..to);
            }
        }
    }
}
