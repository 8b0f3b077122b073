//! Tests of a page cache with pages that are not on the device. Linux leaves such pages after a failed sync.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use farbank_check::Violation;
use farbank_kv::Kv;
use farbank_pm::Kind;
use farbank_pm::media::{AnyMedium, File, FileIo, KernelIo, OpenOptions, create_path, open_path};
use farbank_store::{Error, Value};

use crate::world::{Claim, KeyHistories, POOL, SEGMENT, config, judge, key, read};

const PAGE: usize = 4096;

/// A simulated disk: a real file represents its page cache, and memory represents its device.
struct Disk {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    device: Vec<u8>,
    /// Numbers of the pages that the next sync writes.
    dirty: BTreeSet<usize>,
    /// Number of the sync that fails, counted from the next; 0: none fails.
    fails_in: u64,
}

impl Disk {
    /// Returns a disk whose page cache is `path`, and whose device has the same bytes.
    fn of(path: &Path) -> Arc<Disk> {
        let device = fs::read(path).expect("the pool");
        let state = State {
            device,
            ..State::default()
        };
        Arc::new(Disk {
            path: path.into(),
            state: Mutex::new(state),
        })
    }

    fn fail_in(&self, syncs: u64) {
        self.state.lock().unwrap().fails_in = syncs;
    }

    /// Simulates a power cut: the page cache is lost, and the file shows the bytes of the device.
    fn power_cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.dirty.clear();
        fs::write(&self.path, &state.device).expect("the pool");
    }
}

impl FileIo for Disk {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        let written = KernelIo.pwritev(file, parts, at)?;
        let pages = at as usize / PAGE..(at as usize + written).div_ceil(PAGE);
        self.state.lock().unwrap().dirty.extend(pages);
        Ok(written)
    }

    fn fdatasync(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        let state = &mut *self.state.lock().unwrap();
        let dirty = std::mem::take(&mut state.dirty);
        let fails = state.fails_in == 1;
        state.fails_in = state.fails_in.saturating_sub(1);
        let shown = fs::read(&self.path)?;
        state.device.resize(shown.len(), 0);
        // A failed sync writes a third of the pages, and marks all of them clean, like Linux.
        for page in dirty.into_iter().filter(|page| !fails || page % 3 == 0) {
            let bytes = page * PAGE..((page + 1) * PAGE).min(shown.len());
            state.device[bytes.clone()].copy_from_slice(&shown[bytes]);
        }
        match fails {
            true => Err(io::Error::other("the device has no room")),
            false => Ok(()),
        }
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        KernelIo.fallocate(file, at, len)
    }

    fn drop_cached(&self, _: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        let state = self.state.lock().unwrap();
        let file = fs::OpenOptions::new().write(true).open(&self.path)?;
        let pages = at as usize / PAGE..(at + len) as usize / PAGE;
        for page in pages.filter(|page| !state.dirty.contains(page)) {
            let bytes = &state.device[page * PAGE..][..PAGE];
            file.write_all_at(bytes, (page * PAGE) as u64)?;
        }
        Ok(())
    }
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

fn open(path: &Path, io: Arc<dyn FileIo>) -> Kv<File> {
    let medium = file(open_path(path, &options(io)).expect("the file opens"));
    let kv = Kv::open(medium, config()).expect("it opens");
    assert_eq!(kv.opened().damage, Vec::<String>::new());
    kv
}

/// Returns key and value of the `n`-th write of the process numbered `life`.
fn pair(life: u64, n: u64) -> (Vec<u8>, Vec<u8>) {
    let name = format!("key {} of {life}", n % 23);
    let value = format!("life {life}, write {n}, {}", "x".repeat(n as usize * 40));
    (name.into_bytes(), value.into_bytes())
}

fn write(kv: &Kv<File>, (name, bytes): &(Vec<u8>, Vec<u8>)) -> Result<(), Error> {
    let mut session = kv.session();
    let value = Value {
        bytes,
        ..Value::default()
    };
    session.put(key(name), value)?;
    let ticket = session.commit()?;
    Ok(session.wait(ticket)?)
}

/// Writes the pairs of the process numbered `life`, and records each in `past`, until the medium fails. Returns the
/// write that was refused.
fn write_until_refused(kv: &Kv<File>, past: &mut KeyHistories, life: u64) -> (Vec<u8>, Vec<u8>) {
    for n in 0.. {
        let pair = pair(life, n);
        match write(kv, &pair) {
            Ok(()) => past.note(&pair.0, Some(pair.1)),
            Err(Error::Poisoned(_)) => return pair,
            Err(other) => panic!("write {n}: {other}"),
        }
    }
    unreachable!("a sync fails")
}

#[test]
fn a_restart_after_a_failed_sync_relies_only_on_data_that_the_device_has() {
    for fails_in in (1..40).step_by(3) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pool");
        let medium = create_path(&path, POOL, &options(Arc::new(KernelIo)), &mut |_, _| {});
        let kv = Kv::create(file(medium.expect("a file")), SEGMENT, config()).expect("a store");
        kv.close().expect("nothing fails");
        let (disk, mut past) = (Disk::of(&path), KeyHistories::default());
        let kv = open(&path, disk.clone());
        disk.fail_in(fails_in);
        let refused = write_until_refused(&kv, &mut past, 1);
        drop(kv.into_medium()); // A kill: the page cache stays.

        let kv = open(&path, disk.clone());
        let wrong = |what: Violation| panic!("sync {fails_in} failed, then a restart: {what}");
        // The refused write may be in the pool. If it is, it must stay.
        if read(&mut *kv.session(), &refused.0) == Ok(Some(refused.1.clone())) {
            past.note(&refused.0, Some(refused.1));
        }
        judge(&mut *kv.session(), &past, Claim::Latest).unwrap_or_else(wrong);
        for n in 0..20 {
            let pair = pair(2, n);
            write(&kv, &pair).expect("no sync fails any more");
            past.note(&pair.0, Some(pair.1));
        }
        drop(kv.into_medium());
        disk.power_cut();

        let kv = open(&path, disk);
        let wrong = |what: Violation| panic!("sync {fails_in} failed, restart, power cut: {what}");
        judge(&mut *kv.session(), &past, Claim::Latest).unwrap_or_else(wrong);
        kv.verify().map_err(Violation::from).unwrap_or_else(wrong);
    }
}
