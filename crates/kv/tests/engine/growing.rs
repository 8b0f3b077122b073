//! Tests of pools that may grow: the background thread grows them in steps, and sessions never do.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::Kind;
use farbank_pm::media::{AnyMedium, FileIo, KernelIo, OpenOptions, SyncPolicy, create_path};
use farbank_pm::pool::GROWTH_STEP_BYTES;
use farbank_store::RoomReply;

use crate::support::{Time, User};

/// Maximum time that a held allocation waits. It is limited because a write may wait for the allocation.
const HELD_MAX: Duration = Duration::from_secs(1);

/// File operations that record the thread and the length of each allocation.
#[derive(Default)]
struct Allocations {
    made: Mutex<Vec<(ThreadId, u64)>>,
    /// Allocations wait while this is set.
    held: AtomicBool,
    /// Whether an allocation waits.
    begun: AtomicBool,
}

impl FileIo for Allocations {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        KernelIo.pwritev(file, parts, at)
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        KernelIo.fdatasync(file)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        self.begun.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        while self.held.load(Ordering::Relaxed) && begun.elapsed() < HELD_MAX {
            thread::yield_now();
        }
        self.begun.store(false, Ordering::Relaxed);
        let mut all = self.made.lock().unwrap();
        all.push((thread::current().id(), len));
        KernelIo.fallocate(file, at, len)
    }
}

/// Returns a store of 16 MiB that may grow to 128 MiB, with a cleaner in the background.
fn growing(path: &std::path::Path, io: &Arc<Allocations>) -> Kv<farbank_pm::media::File> {
    let options = OpenOptions {
        medium: Some(Kind::File),
        sync: SyncPolicy::Never,
        io: Arc::clone(io) as Arc<dyn FileIo>,
        ..OpenOptions::default()
    };
    let bytes = 16 << 20;
    let medium = match create_path(path, bytes, &options, &mut |_, _| {}).expect("room") {
        AnyMedium::File(medium) => medium,
        AnyMedium::Mapped(_) => panic!("a file was asked for"),
    };
    io.made.lock().unwrap().clear();
    let config = Config {
        cleaning: CleaningMode::Background,
        pool_bytes_max: 128 << 20,
        ..Time::new().config()
    };
    Kv::create(medium, farbank_kv::segment_bytes_for(bytes), config).expect("a store")
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn the_background_thread_grows_the_pool_in_steps_and_no_write_is_refused() {
    for prepares in [false, true] {
        for bytes in [100, 10_000, 150_000, 1 << 20] {
            let folder = tempfile::tempdir().expect("a folder");
            let io = Arc::new(Allocations::default());
            let kv = growing(&folder.path().join("pool"), &io);
            let mut user = User::of(&kv);
            let value = vec![7; bytes];
            let count = (64 << 20) / (bytes + 100);
            // Writing only small records takes long, so their number is limited.
            for n in 0..count.min(400_000) as u32 {
                // A server calls `prepare`, a program that embeds the store does not.
                while prepares && user.0.prepare(bytes + 4, false) == Ok(RoomReply::Wait) {
                    thread::yield_now();
                }
                let taken = user.try_set(&n.to_le_bytes(), &value);
                assert_eq!(taken, Ok(()), "{bytes} bytes, value {n} of {count}");
            }
            let all = io.made.lock().unwrap();
            assert!(all.len() > 1, "{bytes} bytes: the pool did not grow");
            for (by, len) in all.iter() {
                assert_ne!(*by, thread::current().id(), "{bytes} bytes: by a session");
                assert!(*len <= GROWTH_STEP_BYTES, "{len} bytes at once");
            }
        }
    }
}

#[test]
fn the_pool_grows_before_writers_need_it() {
    const AHEAD: usize = 1 << 20;
    for bytes in [1000, 10_000] {
        let folder = tempfile::tempdir().expect("a folder");
        let io = Arc::new(Allocations::default());
        let kv = growing(&folder.path().join("pool"), &io);
        let mut user = User::of(&kv);
        let value = vec![7; bytes];
        // Bytes written during the current growth, and during each earlier one.
        let (mut now, mut written) = (0, Vec::new());
        for n in 0..((64 << 20) / bytes) as u32 {
            io.held.store(now < AHEAD, Ordering::Relaxed);
            while user.0.prepare(bytes + 4, false) == Ok(RoomReply::Wait) {
                io.held.store(false, Ordering::Relaxed);
                thread::yield_now();
            }
            assert_eq!(user.try_set(&n.to_le_bytes(), &value), Ok(()));
            if io.begun.load(Ordering::Relaxed) {
                now += bytes;
            } else if now > 0 {
                written.push(std::mem::take(&mut now));
            }
        }
        io.held.store(false, Ordering::Relaxed);
        // On a busy machine the background thread may get a CPU too late sometimes, but not every time.
        let most = written.iter().max().copied().unwrap_or(0);
        assert!(most >= AHEAD, "{bytes} bytes: {written:?}");
    }
}
