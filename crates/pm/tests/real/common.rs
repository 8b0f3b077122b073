//! Media for tests, and system calls with injected failures.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use farbank_pm::Kind;
use farbank_pm::media::{
    AnyMedium, File, FileIo, KernelIo, Mapped, OpenOptions, ReadMode, SyncPolicy, create_path,
    open_path,
};
use tempfile::TempDir;

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Options for the file medium, on any file system of the temporary directory.
pub(crate) fn as_file(io: Arc<dyn FileIo>) -> OpenOptions {
    OpenOptions {
        medium: Some(Kind::File),
        sync: SyncPolicy::Always,
        io,
        ..OpenOptions::default()
    }
}

/// Options for the file medium in every read mode that the temporary directory supports.
pub(crate) fn as_file_read_by_all() -> Vec<OpenOptions> {
    let folder = folder();
    let all = ReadMode::ALL.map(|read_by| OpenOptions {
        read_by,
        ..as_file(Arc::new(KernelIo))
    });
    let works = |options: &OpenOptions| {
        let probe = folder.path().join(options.read_by.name());
        let made = create_path(&probe, 4096, options, &mut |_, _| {});
        match made {
            Err(why) if options.read_by == ReadMode::Direct => {
                eprintln!("skipped: direct reads: {why}");
                false
            }
            made => made.is_ok(),
        }
    };
    all.into_iter().filter(works).collect()
}

pub(crate) fn new_file(path: &Path, bytes: u64, options: &OpenOptions) -> File {
    match create_path(path, bytes, options, &mut |_, _| {}) {
        Ok(AnyMedium::File(file)) => file,
        other => panic!("expected a file medium, got {other:?}"),
    }
}

pub(crate) fn old_file(path: &Path) -> File {
    match open_path(path, &as_file(Arc::new(KernelIo))) {
        Ok(AnyMedium::File(file)) => file,
        other => panic!("expected a file medium, got {other:?}"),
    }
}

/// Makes a directory in memory (tmpfs), if this machine has one.
pub(crate) fn folder_in_memory() -> Option<TempDir> {
    let options = OpenOptions {
        medium: Some(Kind::Dram),
        ..OpenOptions::default()
    };
    let folder = tempfile::tempdir_in("/dev/shm").ok()?;
    let probe = folder.path().join("probe");
    let made = create_path(&probe, 4096, &options, &mut |_, _| {}).is_ok();
    if !made {
        eprintln!("skipped: /dev/shm is not a tmpfs");
    }
    made.then_some(folder)
}

pub(crate) fn memory(bytes: u64) -> Mapped {
    Mapped::anonymous(bytes).expect("a little memory")
}

pub(crate) fn pool_path(folder: &TempDir) -> PathBuf {
    folder.path().join("pool")
}

/// Returns the bytes of a pool's file, with zeros for the lease record, which an open changes.
pub(crate) fn without_lease(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).expect("the file exists");
    bytes[1024..1536].fill(0);
    bytes
}

/// Small pseudorandom generator, so that a seed reproduces a failure.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Injected result of a write.
pub(crate) enum Write {
    Fails(io::Error),
    Short(usize),
}

/// System calls of the kernel, with failures injected by a test. Syncs can be blocked.
#[derive(Default)]
pub(crate) struct InjectedIo {
    writes: Mutex<VecDeque<Write>>,
    pub(crate) write_calls: AtomicU64,
    /// Number, from 1, of the sync that fails; 0 for none.
    fails_at_sync: AtomicU64,
    /// Number of syncs that have begun, and number of syncs that may end.
    syncs: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl InjectedIo {
    /// Makes system calls whose syncs never block.
    pub(crate) fn free() -> Arc<InjectedIo> {
        let io = InjectedIo::default();
        io.syncs.lock().unwrap().1 = u64::MAX;
        Arc::new(io)
    }

    /// Makes system calls whose syncs block until [`InjectedIo::let_syncs_end`].
    pub(crate) fn held() -> Arc<InjectedIo> {
        Arc::new(InjectedIo::default())
    }

    /// Calls `open` without blocking its syncs, and does not count them.
    pub(crate) fn unheld<R>(&self, open: impl FnOnce() -> R) -> R {
        let before = *self.syncs.lock().unwrap();
        self.let_syncs_end(u64::MAX);
        let opened = open();
        *self.syncs.lock().unwrap() = before;
        opened
    }

    pub(crate) fn next_writes(&self, writes: impl IntoIterator<Item = Write>) {
        self.writes.lock().unwrap().extend(writes);
    }

    pub(crate) fn fail_next_sync(&self) {
        self.fails_at_sync
            .store(self.syncs_begun() + 1, Ordering::SeqCst);
    }

    pub(crate) fn syncs_begun(&self) -> u64 {
        self.syncs.lock().unwrap().0
    }

    pub(crate) fn wait_until_begun(&self, n: u64) {
        let mut syncs = self.syncs.lock().unwrap();
        while syncs.0 < n {
            syncs = self.changed.wait(syncs).unwrap();
        }
    }

    /// Lets the first `n` syncs end.
    pub(crate) fn let_syncs_end(&self, n: u64) {
        self.syncs.lock().unwrap().1 = n;
        self.changed.notify_all();
    }
}

impl FileIo for InjectedIo {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        self.write_calls.fetch_add(1, Ordering::SeqCst);
        match self.writes.lock().unwrap().pop_front() {
            Some(Write::Fails(e)) => Err(e),
            Some(Write::Short(len)) => {
                let bytes: Vec<u8> = parts.iter().flat_map(|p| p.iter().copied()).collect();
                KernelIo.pwritev(file, &[IoSlice::new(&bytes[..len.min(bytes.len())])], at)
            }
            None => KernelIo.pwritev(file, parts, at),
        }
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let mut syncs = self.syncs.lock().unwrap();
        syncs.0 += 1;
        let number = syncs.0;
        self.changed.notify_all();
        while syncs.1 < number {
            syncs = self.changed.wait(syncs).unwrap();
        }
        drop(syncs);
        if self.fails_at_sync.load(Ordering::SeqCst) == number {
            return Err(io::Error::other("the disk is on fire"));
        }
        KernelIo.fdatasync(file)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        KernelIo.fallocate(file, at, len)
    }
}
