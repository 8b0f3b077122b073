//! A pool that may grow: in steps, by the background thread, and never by a thread that serves others.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use farbank_kv::store::Room;
use farbank_kv::{Cleaning, Config, Kv};
use farbank_pm::Kind;
use farbank_pm::media::{AnyMedium, Io, Kernel, OpenOptions, SyncPolicy, create_path};
use farbank_pm::pool::GROWTH_STEP_BYTES;

use crate::support::{Time, User};

/// The kernel, which notes the threads that allocate space, and how much.
#[derive(Default)]
struct Allocations(Mutex<Vec<(ThreadId, u64)>>);

impl Io for Allocations {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        Kernel.pwritev(file, parts, at)
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        Kernel.fdatasync(file)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        let mut all = self.0.lock().unwrap();
        all.push((thread::current().id(), len));
        Kernel.fallocate(file, at, len)
    }
}

/// A pool of 16 MiB that may grow to 128, with a cleaner in the background.
fn growing(path: &std::path::Path, io: &Arc<Allocations>) -> Kv<farbank_pm::media::File> {
    let options = OpenOptions {
        medium: Some(Kind::File),
        sync: SyncPolicy::Never,
        io: Arc::clone(io) as Arc<dyn Io>,
        ..OpenOptions::default()
    };
    let bytes = 16 << 20;
    let medium = match create_path(path, bytes, &options, &mut |_, _| {}).expect("room") {
        AnyMedium::File(medium) => medium,
        AnyMedium::Mapped(_) => panic!("a file was asked for"),
    };
    io.0.lock().unwrap().clear();
    let config = Config {
        cleaning: Cleaning::Background,
        pool_bytes_max: 128 << 20,
        ..Time::new().config()
    };
    Kv::create(medium, farbank_kv::segment_bytes_for(bytes), config).expect("a store")
}

#[test]
fn the_background_thread_has_the_pool_grow_in_steps_and_no_write_is_refused() {
    for prepares in [false, true] {
        for bytes in [100, 10_000, 150_000, 1 << 20] {
            let folder = tempfile::tempdir().expect("a folder");
            let io = Arc::new(Allocations::default());
            let kv = growing(&folder.path().join("pool"), &io);
            let mut user = User::of(&kv);
            let value = vec![7; bytes];
            let count = (64 << 20) / (bytes + 100);
            // Small records take a while: a part of the pool's growth is enough.
            for n in 0..count.min(400_000) as u32 {
                // As a server does, or as a program that embeds the store.
                while prepares && user.0.prepare(bytes + 4, false) == Ok(Room::Wait) {
                    thread::yield_now();
                }
                let taken = user.try_set(&n.to_le_bytes(), &value);
                assert_eq!(taken, Ok(()), "{bytes} bytes, value {n} of {count}");
            }
            let all = io.0.lock().unwrap();
            assert!(all.len() > 1, "{bytes} bytes: the pool did not grow");
            for (by, len) in all.iter() {
                assert_ne!(*by, thread::current().id(), "{bytes} bytes: by a session");
                assert!(*len <= GROWTH_STEP_BYTES, "{len} bytes at once");
            }
        }
    }
}
