//! A failed sync at every position of a run: the cache acknowledges no write afterwards, and no close is clean.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use farbank_cache::{Cache, Config};
use farbank_pm::media::{
    AnyMedium, FileIo, KernelIo, OpenOptions, SyncPolicy, create_path, open_path,
};
use farbank_pm::{Kind, Medium};
use farbank_store::{Session, Value};

use crate::support::{MIB, clock, config, key};

/// I/O through the kernel, except that sync number `fails_at`, from 1, fails. Later syncs succeed, as on Linux.
#[derive(Default)]
struct FailingSync {
    syncs: AtomicU64,
    fails_at: u64,
}

impl FailingSync {
    fn has_failed(&self) -> bool {
        self.fails_at != 0 && self.syncs.load(SeqCst) >= self.fails_at
    }
}

impl FileIo for FailingSync {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        KernelIo.pwritev(file, parts, at)
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        match self.syncs.fetch_add(1, SeqCst) + 1 == self.fails_at {
            true => Err(io::Error::other("the disk is on fire")),
            false => KernelIo.fdatasync(file),
        }
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        KernelIo.fallocate(file, at, len)
    }
}

fn options(is_mapped: bool, io: &Arc<FailingSync>) -> OpenOptions {
    OpenOptions {
        medium: (!is_mapped).then_some(Kind::File),
        sync: SyncPolicy::Never,
        page_cache: is_mapped,
        io: Arc::clone(io) as Arc<dyn FileIo>,
        ..OpenOptions::default()
    }
}

/// Fills a cache that grows twice, and closes it.
fn run<M: Medium>(medium: M, io: &FailingSync, case: &str) {
    let config = Config {
        pool_bytes_max: MIB * 40,
        ..config(&clock())
    };
    let Ok(cache) = Cache::open(medium, config) else {
        assert!(
            io.has_failed(),
            "{case}: the open failed without a failed sync"
        );
        return;
    };
    let mut door = cache.new_session();
    for n in 0..30 * 90_u32 {
        let failed_before = io.has_failed();
        let bytes = &[n as u8; 10_000];
        let value = Value {
            bytes,
            ..Value::default()
        };
        let put = door.put_durable(key(&n.to_le_bytes()), value);
        assert!(
            put.is_err() || !failed_before,
            "{case}: write {n} was acknowledged after a failed sync"
        );
    }
    drop(door);
    let closed = cache.close();
    assert_eq!(closed.is_err(), io.has_failed(), "{case}: closed");
}

/// Runs one case. Returns the number of its syncs.
fn run_case(path: &Path, is_mapped: bool, fails_at: u64) -> u64 {
    let io = Arc::new(FailingSync {
        fails_at,
        ..FailingSync::default()
    });
    let case = format!("mapped: {is_mapped}, sync {fails_at} fails");
    let opened = open_path(path, &options(is_mapped, &io)).expect("it opens");
    // The syncs of the open do not count.
    io.syncs.store(0, SeqCst);
    match opened {
        AnyMedium::File(medium) => run(medium, &io, &case),
        AnyMedium::Mapped(medium) => run(medium, &io, &case),
    }
    io.syncs.load(SeqCst)
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn after_any_failed_sync_nothing_is_stored_and_no_close_is_clean() {
    for is_mapped in [false, true] {
        let mut fails_at = 0;
        loop {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("pool");
            let options = options(is_mapped, &Arc::default());
            match create_path(&path, MIB * 18, &options, &mut |_, _| {}).expect("room") {
                AnyMedium::File(medium) => close_new(medium),
                AnyMedium::Mapped(medium) => close_new(medium),
            }
            let syncs = run_case(&path, is_mapped, fails_at);
            if fails_at == 0 {
                assert!(syncs > 4, "a run of {syncs} syncs grows nothing");
            } else if syncs < fails_at {
                break;
            }
            fails_at += 1;
        }
    }
}

fn close_new(medium: impl Medium) {
    let cache = Cache::create(medium, MIB, config(&clock())).expect("a cache");
    cache.close().expect("nothing fails yet");
}
