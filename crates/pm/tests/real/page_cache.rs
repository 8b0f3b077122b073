//! Opening a file drops or rewrites its cached pages, except after a clean close.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use farbank_pm::media::{FileIo, KernelIo, OpenOptions, SyncPolicy, open_path};
use farbank_pm::pool::{Pool, PoolLayout};
use farbank_pm::{Medium, Off, PersistCtx, Ticket};

use crate::common::{InjectedIo, as_file, folder, new_file, pool_path};

const BYTES: u64 = 4 << 20;
/// Range dropped to read the superblock from the device: offset, length (the largest folio).
const HEAD: (u64, u64) = (0, 2 << 20);

/// Counts system calls. Drops pages only if `drops` is set.
#[derive(Default)]
struct Counts {
    drops: bool,
    dropped: Mutex<Vec<(u64, u64)>>,
    written: AtomicU64,
    syncs: AtomicU64,
}

impl FileIo for Counts {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        let written = KernelIo.pwritev(file, parts, at)?;
        self.written.fetch_add(written as u64, SeqCst);
        Ok(written)
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.syncs.fetch_add(1, SeqCst);
        KernelIo.fdatasync(file)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        KernelIo.fallocate(file, at, len)
    }

    fn drop_cached(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        self.dropped.lock().unwrap().push((at, len));
        match self.drops {
            true => KernelIo.drop_cached(file, at, len),
            false => Ok(()),
        }
    }
}

/// Creates a pool with data, and closes it cleanly if `is_closed`.
fn pool(path: &Path, is_closed: bool) {
    let medium = new_file(path, BYTES, &as_file(InjectedIo::free()));
    let mut ctx = PersistCtx::new(0);
    let segment_bytes = 64 << 10;
    let pool = Pool::create(medium, &mut ctx, &PoolLayout { segment_bytes }).expect("a pool");
    let ticket = {
        let medium = pool.medium();
        medium.copy_in(&mut ctx, Off(128 << 10), &[&[7; 64 << 10]]);
        medium.drain(&mut ctx)
    };
    pool.medium().wait(ticket).expect("the sync succeeds");
    if is_closed {
        pool.record_clean_close(&mut ctx)
            .expect("the sync succeeds");
    }
}

/// Opens the file and checks its data. Returns the counted system calls.
fn open(path: &Path, drops: bool) -> Arc<Counts> {
    let io = Arc::new(Counts {
        drops,
        ..Counts::default()
    });
    let medium = open_path(path, &as_file(io.clone())).expect("the open succeeds");
    let farbank_pm::media::AnyMedium::File(file) = medium else {
        panic!("expected a file medium");
    };
    assert!(file.matches(Off(128 << 10), &[7; 64 << 10]));
    io
}

#[test]
fn a_cleanly_closed_pool_keeps_its_cached_pages() {
    let folder = folder();
    let path = pool_path(&folder);
    pool(&path, true);
    let io = open(&path, true);
    assert_eq!(*io.dropped.lock().unwrap(), [HEAD]);
    assert_eq!((io.written.load(SeqCst), io.syncs.load(SeqCst)), (0, 1));
}

#[test]
fn cached_pages_of_a_pool_that_was_not_closed_are_dropped() {
    let folder = folder();
    let path = pool_path(&folder);
    pool(&path, false);
    let io = open(&path, true);
    assert_eq!(*io.dropped.lock().unwrap(), [HEAD, (0, BYTES)]);
}

#[test]
fn pages_that_the_kernel_does_not_drop_are_rewritten_and_synced() {
    for is_closed in [false, true] {
        let folder = folder();
        let path = pool_path(&folder);
        pool(&path, is_closed);
        std::fs::read(&path).expect("reading caches the whole file");
        let io = open(&path, false);
        // The superblock is not read from the device either, so its record of a clean close is ignored.
        assert_eq!(io.written.load(SeqCst), BYTES);
        assert_eq!(io.syncs.load(SeqCst), 2);
    }
}

#[test]
fn an_open_succeeds_after_one_failed_sync_and_fails_after_two() {
    let folder = folder();
    let path = pool_path(&folder);
    pool(&path, false);
    let io = InjectedIo::free();
    io.fail_next_sync();
    open_path(&path, &as_file(io)).expect("the next sync succeeds");
    let refused = open_path(&path, &as_file(Arc::new(NeverSyncs))).expect_err("none succeeds");
    let text = refused.to_string();
    assert!(
        text.contains("the disk is gone") && text.contains("pool"),
        "{text}"
    );
}

struct NeverSyncs;

impl FileIo for NeverSyncs {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        KernelIo.pwritev(file, parts, at)
    }

    fn fdatasync(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        Err(io::Error::other("the disk is gone"))
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        KernelIo.fallocate(file, at, len)
    }
}

#[test]
fn a_mapped_file_whose_sync_failed_acknowledges_no_more_writes() {
    let folder = folder();
    let path = pool_path(&folder);
    let io = InjectedIo::free();
    drop(new_file(&path, BYTES, &as_file(io.clone())));
    let options = OpenOptions {
        page_cache: true,
        medium: None,
        sync: SyncPolicy::Always,
        io: io.clone(),
        ..OpenOptions::default()
    };
    for fails_in_growth in [false, true] {
        let opened = open_path(&path, &options).expect("the open succeeds");
        let farbank_pm::media::AnyMedium::Mapped(mapped) = opened else {
            panic!("expected a mapping");
        };
        mapped
            .wait_until_durable(Ticket::DURABLE)
            .expect("nothing fails yet");
        io.fail_next_sync();
        match fails_in_growth {
            true => mapped
                .grow(2 * BYTES)
                .expect_err("the sync of the growth fails")
                .to_string(),
            false => mapped
                .wait_until_durable(Ticket::DURABLE)
                .expect_err("the sync fails")
                .to_string(),
        };
        let syncs = io.syncs_begun();
        for result in [
            mapped
                .wait_until_durable(Ticket::DURABLE)
                .map_err(|e| e.to_string()),
            mapped.wait(Ticket::DURABLE).map_err(|e| e.to_string()),
            mapped.grow(4 * BYTES).map_err(|e| e.to_string()),
        ] {
            let refused = result.expect_err("the medium is poisoned");
            assert!(refused.contains("the disk is on fire"), "{refused}");
        }
        assert_eq!(io.syncs_begun(), syncs, "a sync was retried");
    }
}
