//! Tests of disks that fail or are full, and of copies of the file taken while it is in use.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use farbank_check::Violation;
use farbank_kv::{Config, Kv, OpenError};
use farbank_pm::Kind;
use farbank_pm::media::{AnyMedium, File, FileIo, KernelIo, OpenOptions, create_path, open_path};
use farbank_pm::pool::{CopiedPoolPolicy, PoolError};
use farbank_pm::rng::Rng;
use farbank_store::{Error, Store, StoreHealth, Value};
use tempfile::TempDir;

use crate::world::{Claim, KeyHistories, POOL, SEGMENT, config, judge, key, read};

/// File operations that fail at the n-th call of a kind.
#[derive(Default)]
struct FailingCalls {
    /// Number of the write that fails, counted from the next; 0 or less: none fails.
    write_in: AtomicI64,
    /// Whether the failing write first writes half of its bytes, and fails at the next call.
    short: bool,
    /// Number of the sync that fails, counted from the next; 0 or less: none fails.
    sync_in: AtomicI64,
    /// Maximum length of an allocation, in bytes; negative: unlimited.
    room: AtomicI64,
}

impl FailingCalls {
    fn nothing() -> FailingCalls {
        FailingCalls {
            room: AtomicI64::new(-1),
            ..FailingCalls::default()
        }
    }

    fn counts_down(calls: &AtomicI64) -> bool {
        calls.load(Ordering::SeqCst) > 0 && calls.fetch_sub(1, Ordering::SeqCst) == 1
    }
}

impl FileIo for FailingCalls {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        if !FailingCalls::counts_down(&self.write_in) {
            return KernelIo.pwritev(file, parts, at);
        }
        if !self.short {
            return Err(io::Error::other("the disk is on fire"));
        }
        // The caller writes the other half with the next call, which fails.
        self.write_in.store(1, Ordering::SeqCst);
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        match bytes.len() {
            1 => Err(io::Error::other("the disk is on fire")),
            len => KernelIo.pwritev(file, &[IoSlice::new(&bytes[..len / 2])], at),
        }
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        if FailingCalls::counts_down(&self.sync_in) {
            return Err(io::Error::other("the disk is on fire"));
        }
        KernelIo.fdatasync(file)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        let room = self.room.load(Ordering::SeqCst);
        if room >= 0 && room < len as i64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        KernelIo.fallocate(file, at, len)
    }
}

/// Returns a temporary folder, in memory if possible, because these tests sync often.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder")
}

fn options(io: Arc<dyn FileIo>) -> OpenOptions {
    OpenOptions {
        medium: Some(Kind::File),
        io,
        ..OpenOptions::default()
    }
}

fn file(medium: AnyMedium) -> File {
    match medium {
        AnyMedium::File(file) => file,
        AnyMedium::Mapped(_) => panic!("a file was asked for"),
    }
}

fn created(path: &Path) -> Kv<File> {
    let medium = create_path(path, POOL, &options(Arc::new(KernelIo)), &mut |_, _| {});
    Kv::create(file(medium.expect("a file")), SEGMENT, config()).expect("a fresh store")
}

fn try_open(path: &Path, io: Arc<dyn FileIo>) -> Result<Kv<File>, OpenError> {
    Kv::open(
        file(open_path(path, &options(io)).expect("the file opens")),
        config(),
    )
}

fn opened(path: &Path) -> Kv<File> {
    let kv = try_open(path, Arc::new(KernelIo)).expect("it opens");
    assert_eq!(kv.opened().damage, Vec::<String>::new());
    kv
}

/// Writes until an operation fails or `count` writes are acknowledged. A failed write is in `past`, and may be in the
/// pool or not.
fn write(kv: &Kv<File>, past: &mut KeyHistories, rng: &mut Rng, count: u64) -> Result<(), Error> {
    let mut session = kv.session();
    for n in 0..count {
        let name = format!("key {}", rng.below(40)).into_bytes();
        let value = format!(
            "value {} of {count}, {}",
            n,
            "x".repeat(rng.below(300) as usize)
        );
        past.note(&name, Some(value.clone().into_bytes()));
        session.put(
            key(&name),
            Value {
                bytes: value.as_bytes(),
                ..Value::default()
            },
        )?;
        let ticket = session.commit()?;
        session.wait(ticket)?;
    }
    Ok(())
}

/// Checks that all acknowledged writes are in the pool, and that of a failed write either nothing or all is.
fn all_but_the_last_write_is_there(
    kv: &Kv<File>,
    past: &KeyHistories,
    failed: bool,
) -> Result<(), Violation> {
    let mut session = kv.session();
    if judge(&mut *session, past, Claim::Latest).is_ok() {
        return Ok(());
    }
    let mut wrong = Violation::new("several writes are lost");
    for name in past.0.keys().filter(|_| failed) {
        let mut before = past.clone();
        let values = before.0.get_mut(name).expect("a key of it");
        if values.len() > 1 {
            values.pop();
        }
        match judge(&mut *session, &before, Claim::Latest) {
            Ok(()) => return Ok(()),
            Err(what) => wrong = what,
        }
    }
    Err(wrong)
}

/// Lets one call fail on a pool in use. Checks that no later write is acknowledged, that reads still succeed, and that
/// all acknowledged writes are in the pool after the next open.
fn a_failure_is_survived(case: &str, seed: u64, io: FailingCalls) {
    let (folder, mut past, mut rng) = (folder(), KeyHistories::default(), Rng::new(seed));
    let path = folder.path().join("pool");
    let kv = created(&path);
    write(&kv, &mut past, &mut rng, 20).expect("nothing fails yet");
    drop(kv.into_medium());
    let check = |what: Result<(), Violation>| {
        if let Err(wrong) = what {
            panic!("{case}, seed {seed}: {wrong}");
        }
    };
    let mut failed = false;
    match try_open(&path, Arc::new(io)) {
        Err(error) => assert!(error.to_string().contains("the disk is on fire"), "{error}"),
        Ok(kv) => {
            if let Err(error) = write(&kv, &mut past, &mut rng, 150) {
                assert!(matches!(error, Error::Poisoned(_)), "{case}: {error}");
                failed = true;
                let mut session = kv.session();
                let refused = session.put(key(b"more"), Value::default());
                let refused = refused.and_then(|_| session.commit());
                let refused = refused.and_then(|ticket| Ok(session.wait(ticket)?));
                let Err(Error::Poisoned(poisoned)) = refused else {
                    panic!("{case}, seed {seed}: acknowledged after a failure: {refused:?}");
                };
                let reason = poisoned.reason();
                assert!(reason.contains("the disk is on fire"), "{reason}");
                drop(session);
                check(all_but_the_last_write_is_there(&kv, &past, failed));
                assert!(
                    kv.close().is_err(),
                    "{case}: closed as if nothing had happened"
                );
            }
        }
    }
    let kv = opened(&path);
    check(all_but_the_last_write_is_there(&kv, &past, failed));
    check(kv.verify().map_err(Violation::from));
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_and_nothing_acknowledged_is_lost() {
    for n in 1..160 {
        let io = FailingCalls {
            sync_in: AtomicI64::new(n),
            ..FailingCalls::nothing()
        };
        a_failure_is_survived(&format!("sync {n} fails"), n as u64, io);
    }
}

#[test]
fn after_a_failed_write_nothing_is_acknowledged_and_nothing_acknowledged_is_lost() {
    for n in 1..200 {
        for short in [false, true] {
            let io = FailingCalls {
                write_in: AtomicI64::new(n),
                short,
                ..FailingCalls::nothing()
            };
            a_failure_is_survived(&format!("write {n} fails, short: {short}"), n as u64, io);
        }
    }
}

#[test]
fn a_new_pool_that_does_not_fit_on_the_disk_is_an_error_and_leaves_no_file() {
    let folder = folder();
    let path = folder.path().join("pool");
    let io = FailingCalls {
        room: AtomicI64::new(POOL as i64 - 1),
        ..FailingCalls::nothing()
    };
    let made = create_path(&path, POOL, &options(Arc::new(io)), &mut |_, _| {});
    let error = made.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("not enough space"), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_pool_that_cannot_grow_is_full_and_keeps_every_byte() {
    let (folder, mut past, mut rng) = (folder(), KeyHistories::default(), Rng::new(1));
    let path = folder.path().join("pool");
    let kv = created(&path);
    write(&kv, &mut past, &mut rng, 20).expect("nothing fails");
    drop(kv.into_medium());
    let io = Arc::new(FailingCalls {
        room: AtomicI64::new(0),
        ..FailingCalls::nothing()
    });
    let medium = file(open_path(&path, &options(io.clone())).expect("the file opens"));
    let config = Config {
        pool_bytes_max: 8 * POOL,
        ..config()
    };
    let kv = Kv::open(medium, config.clone()).expect("it opens");
    let fill = |past: &mut KeyHistories, from: u32, to: u32| {
        let mut session = kv.session();
        (from..to).try_for_each(|n| {
            let value = Value {
                bytes: &[n as u8; 500],
                ..Value::default()
            };
            session.put(key(&n.to_le_bytes()), value)?;
            let ticket = session.commit()?;
            session.wait(ticket)?;
            past.note(&n.to_le_bytes(), Some(vec![n as u8; 500]));
            Ok::<(), Error>(())
        })
    };
    let refused = fill(&mut past, 0, 1_000).expect_err("there is no room");
    assert!(refused.is_full(), "{refused}");
    let named = refused.to_string().contains(path.to_str().expect("a name"));
    assert!(
        named && refused.to_string().contains("storage"),
        "{refused}"
    );
    assert!(kv.health().growth_error.is_some());
    judge(&mut *kv.session(), &past, Claim::Latest).unwrap();
    io.room.store(-1, Ordering::SeqCst);
    // The store retries a failed growth after a second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    fill(&mut past, 1_000, 1_400).expect("now it may grow");
    assert_eq!(kv.health(), StoreHealth::default());
    judge(&mut *kv.session(), &past, Claim::Latest).unwrap();
    kv.verify().unwrap();
    drop(kv.into_medium());
    let kv = opened(&path);
    judge(&mut *kv.session(), &past, Claim::Latest).unwrap();
}

#[test]
fn copies_of_the_file_taken_while_it_is_written_have_all_that_was_acknowledged_by_then() {
    let (folder, mut past, mut rng) = (folder(), KeyHistories::default(), Rng::new(2));
    let (path, copy) = (folder.path().join("pool"), folder.path().join("copy"));
    let mut kv = created(&path);
    for round in 0..40 {
        write(&kv, &mut past, &mut rng, 30).expect("nothing fails");
        std::fs::copy(&path, &copy).expect("a copy");
        let refused = try_open(&copy, Arc::new(KernelIo)).map(|_| ()).unwrap_err();
        assert!(
            matches!(refused, OpenError::Pool(PoolError::Copy { .. })),
            "{refused}"
        );
        let medium = open_path(&copy, &options(Arc::new(KernelIo))).expect("the file opens");
        let accepting = Config {
            copies: CopiedPoolPolicy::Accept,
            ..config()
        };
        let killed = Kv::open(file(medium), accepting).expect("it is accepted");
        judge(&mut *killed.session(), &past, Claim::Latest).unwrap();
        killed.verify().unwrap();
        drop(killed);
        if round % 4 == 0 {
            drop(kv);
            std::fs::rename(&copy, &path).expect("the copy takes its place");
            kv = opened(&path);
        }
    }
    assert_eq!(read(&mut *kv.session(), b"absent"), Ok(None));
}
