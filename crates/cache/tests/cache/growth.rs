//! Size of a cache: the pages it may use, and the growth of its pool before it evicts.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_cache::{Cache, CacheSession, Config};
use farbank_pm::media::{
    AnyMedium, FileIo, KernelIo, Mapped, OpenOptions, SyncPolicy, create_path,
};
use farbank_pm::{Kind, Medium};
use farbank_store::{Ops, ReadView, Session, Store, StoreHealth, Value};

use crate::support::{MIB, clock, config, key};

#[test]
fn a_limit_on_pages_holds_after_a_restart() {
    let medium = Mapped::anonymous(MIB * 22).expect("memory");
    let cache = Cache::create(medium, MIB, config(&clock())).expect("a cache");
    assert_eq!(cache.resize(8).unwrap(), 8);
    let medium = cache.into_medium().expect("no session is left");
    let cache = Cache::open(medium, config(&clock())).expect("it opens");
    assert_eq!((cache.pages(), cache.pages_free()), (20, 8));
    cache.verify().unwrap();
}

/// Stores as many items of about a hundredth of a MiB as fit in `pages` pages.
fn fill(door: &mut CacheSession<impl Medium>, pages: u32) {
    for n in 0..pages * 90 {
        let (name, value) = (n.to_le_bytes(), vec![n as u8; 10_000]);
        let bytes = &value[..];
        let value = Value {
            bytes,
            ..Value::default()
        };
        door.put_durable(key(&name), value).expect("room");
    }
}

/// Returns how many of these items are present.
fn holds(door: &mut CacheSession<impl Medium>, pages: u32) -> u32 {
    let mut out = Vec::new();
    let mut is_there = |n: &u32| {
        let name = n.to_le_bytes();
        out.clear();
        let found = door.get(key(&name), ReadView::Durable, &mut out, &mut |_, _| true);
        found.expect("a read") && out == vec![*n as u8; 10_000]
    };
    (0..pages * 90).filter(|n| is_there(n)).count() as u32
}

fn evictions(cache: &Cache<impl Medium>) -> u64 {
    let figures = cache.stats().cache;
    figures.expect("figures of a cache").evictions
}

fn growing(pages: u64) -> Config {
    Config {
        pool_bytes_max: MIB * (pages + 2),
        ..config(&clock())
    }
}

#[test]
fn a_cache_grows_from_16_to_32_pages_without_evictions_and_keeps_all_after_a_kill() {
    let medium = Mapped::anonymous(MIB * 18).expect("memory");
    let cache = Cache::create(medium, MIB, growing(32)).expect("a cache");
    assert_eq!(cache.pages(), 16);
    let mut door = cache.new_session();
    fill(&mut door, 32);
    assert_eq!((cache.pages(), evictions(&cache)), (32, 0));
    drop(door);
    cache.verify().unwrap();
    let medium = cache.into_medium().expect("no session is left");
    let cache = Cache::open(medium, config(&clock())).expect("it opens");
    assert_eq!(cache.pages(), 32);
    let mut door = cache.new_session();
    assert_eq!(holds(&mut door, 32), 32 * 90);
    fill(&mut door, 40);
    assert!(evictions(&cache) > 0);
    drop(door);
    cache.verify().unwrap();
}

#[test]
fn a_cache_limited_to_fewer_pages_does_not_grow() {
    let medium = Mapped::anonymous(MIB * 18).expect("memory");
    let cache = Cache::create(medium, MIB, growing(32)).expect("a cache");
    assert_eq!(cache.resize(8).unwrap(), 8);
    fill(&mut cache.new_session(), 16);
    assert_eq!(cache.pages(), 16);
    assert!(evictions(&cache) > 0);
    assert_eq!(cache.resize(16).unwrap(), 16);
    fill(&mut cache.new_session(), 32);
    assert_eq!(cache.pages(), 32);
}

/// I/O through the kernel, with this many free bytes on the disk.
struct LimitedSpace(AtomicU64);

impl FileIo for LimitedSpace {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        KernelIo.pwritev(file, parts, at)
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        KernelIo.fdatasync(file)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        match self.0.load(Relaxed) < len {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => KernelIo.fallocate(file, at, len),
        }
    }
}

#[test]
fn a_cache_on_a_full_disk_reports_it_and_evicts_until_there_is_space() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let disk = Arc::new(LimitedSpace(AtomicU64::new(u64::MAX)));
    let options = OpenOptions {
        medium: Some(Kind::File),
        sync: SyncPolicy::Never,
        io: Arc::clone(&disk) as Arc<dyn FileIo>,
        ..OpenOptions::default()
    };
    let made = create_path(&path, MIB * 18, &options, &mut |_, _| {});
    let Ok(AnyMedium::File(medium)) = made else {
        panic!("the medium is not a file");
    };
    let time = clock();
    let config = Config {
        pool_bytes_max: MIB * 34,
        ..config(&time)
    };
    let cache = Cache::create(medium, MIB, config).expect("a cache");
    disk.0.store(0, Relaxed);
    let mut door = cache.new_session();
    fill(&mut door, 15);
    assert_eq!(holds(&mut door, 15), 15 * 90);
    fill(&mut door, 32);
    assert_eq!(cache.pages(), 16);
    let error = cache.health().growth_error.expect("the error is reported");
    let named = error.contains(path.to_str().expect("a name"));
    assert!(named && error.contains("storage"), "{error}");
    assert!(holds(&mut door, 32) >= 13 * 90);
    disk.0.store(u64::MAX, Relaxed);
    time.fetch_add(60_000, Relaxed);
    fill(&mut door, 32);
    assert_eq!(cache.pages(), 32);
    assert_eq!(cache.health(), StoreHealth::default());
    drop(door);
    cache.verify().unwrap();
}
