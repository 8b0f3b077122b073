//! Tests of pages that the device cannot read. They are reported as damage with their offset, and never treated as an
//! empty segment or a torn write.

use std::fs;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use farbank_check::Violation;
use farbank_kv::Kv;
use farbank_pm::Kind;
use farbank_pm::media::{AnyMedium, File, FileIo, KernelIo, OpenOptions, ReadMode, open_path};
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, Sim};
use farbank_store::{Error, GroupDecision, Ops, Value};

use crate::world::{Claim, FIRST, KeyHistories, Pool, World, config, judge, key, read};

const PAGE: u64 = 4096;

/// File operations on a device that cannot read a range of bytes.
struct UnreadableRange(Range<u64>);

impl FileIo for UnreadableRange {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        let end = at + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let whole = self.0.start >= at && self.0.end <= end;
        match !whole && at < self.0.end && self.0.start < end {
            // The kernel reads a page before it writes a part of it.
            true => Err(io::Error::from_raw_os_error(5)),
            false => KernelIo.pwritev(file, parts, at),
        }
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        KernelIo.fdatasync(file)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        KernelIo.fallocate(file, at, len)
    }

    fn unreadable(&self, _: BorrowedFd<'_>) -> io::Result<Vec<Range<u64>>> {
        Ok(vec![self.0.clone()])
    }
}

fn open(path: &Path, bad: &Range<u64>) -> Result<Kv<File>, Violation> {
    let options = OpenOptions {
        medium: Some(Kind::File),
        // Tests both modes: even pages with one, odd pages with the other.
        read_by: match bad.start / PAGE % 2 {
            0 => ReadMode::Mapping,
            _ => ReadMode::Pread,
        },
        io: Arc::new(UnreadableRange(bad.clone())),
        ..OpenOptions::default()
    };
    let medium = match open_path(path, &options).map_err(Violation::from)? {
        AnyMedium::File(file) => file,
        AnyMedium::Mapped(_) => panic!("a file was asked for"),
    };
    Kv::open(medium, config()).map_err(Violation::from)
}

/// Returns a pool with segments of several pages after a kill. All writes are acknowledged, and the last ones are in
/// segments that were open.
fn killed(seed: u64) -> Pool {
    const SEGMENT: u64 = 8 * PAGE;
    let sim = Sim::new(16 * SEGMENT, Persistency::Eadr);
    let kv = Kv::create(sim.clone(), SEGMENT, config()).expect("a fresh store");
    let (mut past, mut rng) = (KeyHistories::default(), Rng::new(seed));
    let mut session = kv.session();
    for n in 0..60_u64 {
        let name = |k: u64| format!("key {k}").into_bytes();
        let names: Vec<_> = match rng.below(4) {
            0 => (0..5).map(|_| name(rng.below(20))).collect(),
            _ => vec![name(rng.below(20))],
        };
        let len = if names.len() == 1 && rng.one_in(9) {
            40_000
        } else {
            rng.below(900)
        };
        let bytes = format!("write {n} ")
            .into_bytes()
            .repeat(1 + len as usize / 9);
        let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
        let value = Value {
            bytes: &bytes,
            ..Value::default()
        };
        let mut put = |ops: &mut dyn Ops| {
            keys.iter()
                .try_for_each(|key| ops.put(*key, value).map(|_| ()))?;
            Ok(GroupDecision::Apply)
        };
        let done = match names.len() {
            1 => session.put(keys[0], value).map(|_| ()),
            _ => session.group(&keys, &mut put).map(|_| ()),
        };
        match done.and_then(|()| session.commit()) {
            Ok(_) => names
                .iter()
                .for_each(|name| past.note(name, Some(bytes.clone()))),
            Err(Error::Full) => break,
            Err(error) => panic!("write {n} of seed {seed}: {error}"),
        }
    }
    Pool {
        name: format!("in use({seed})"),
        image: sim.visible(),
        past,
    }
}

/// Opens `pool` twice, with the page at `page` unreadable. Checks that every key has its value, or an error, if the
/// open reports no damage. Returns whether damage was reported.
fn stands(pool: &Pool, page: u64) -> Result<bool, Violation> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    fs::write(&path, pool.image.to_bytes()).expect("the pool");
    let bad = page..page + PAGE;
    let mut reported = false;
    for start in ["first", "second"] {
        let failed = |wrong: Violation| wrong.context(format_args!("{start} start"));
        let kv = open(&path, &bad).map_err(failed)?;
        let damage = kv.opened().damage.clone();
        reported |= !damage.is_empty();
        let claim = match damage.is_empty() {
            true => Claim::LatestOrError,
            false => Claim::EverOrError,
        };
        judge(&mut *kv.session(), &pool.past, claim)
            .map_err(|e| failed(e.context(format_args!("{damage:?}"))))?;
        kv.into_medium(); // A kill.
    }
    Ok(reported)
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn an_unreadable_page_is_reported_or_its_keys_are_errors_never_silently_older() {
    let mut reports = 0;
    for seed in 0..3 {
        for pool in [killed(seed), Pool::killed(seed), Pool::closed(seed)] {
            for page in (FIRST..pool.image.len()).step_by(PAGE as usize) {
                match stands(&pool, page) {
                    Ok(reported) => reports += u32::from(reported),
                    Err(wrong) => panic!("{}, page at {page:#x} unreadable: {wrong}", pool.name),
                }
            }
        }
    }
    assert!(reports > 20, "{reports} opens reported damage");
}

#[test]
fn keys_in_an_unreadable_page_are_errors_with_their_offset_and_others_are_served() {
    let (page, name) = (FIRST + PAGE, |n: u64| format!("key {n}").into_bytes());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let world = World::new(1);
    let mut past = KeyHistories::default();
    let mut session = world.kv.session();
    for n in 0..100 {
        let bytes = vec![n as u8; 300];
        let value = Value {
            bytes: &bytes,
            ..Value::default()
        };
        session
            .put(key(&name(n)), value)
            .expect("the pool has room");
        session.commit().expect("memory does not fail");
        past.note(&name(n), Some(bytes));
    }
    drop(session);
    let World { sim, kv, .. } = world;
    kv.close().expect("it closes");
    fs::write(&path, sim.visible().to_bytes()).expect("the pool");
    let kv = open(&path, &(page..page + PAGE)).expect("it opens");
    let mut session = kv.session();
    let mut damaged = 0;
    for n in 0..100 {
        match read(&mut *session, &name(n)) {
            Ok(value) => assert_eq!(value.as_ref(), past.latest(&name(n)), "key {n}"),
            Err(Error::Damaged(at)) => {
                assert!((page..page + PAGE).contains(&at), "{at:#x}");
                damaged += 1;
            }
            Err(other) => panic!("key {n}: {other}"),
        }
    }
    assert!(
        (5..15).contains(&damaged),
        "{damaged} of 100 keys were in the page"
    );
}
