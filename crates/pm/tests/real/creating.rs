//! A new file gets its name when it holds a complete pool. A kill during creation never prevents the next creation.

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use farbank_pm::media::{
    AnyMedium, FileIo, KernelIo, OpenError, OpenOptions, open_path, prepare_path,
};
use farbank_pm::pool::{Pool, PoolLayout};
use farbank_pm::{Kind, PersistCtx};

use crate::common::{as_file, folder, folder_in_memory, pool_path};

const BYTES: u64 = 3 << 20;
const LAYOUT: PoolLayout = PoolLayout {
    segment_bytes: 64 << 10,
};

fn quiet(_: u64, _: u64) {}

/// Creates a pool at `path`, publishes it and opens it again.
fn make_and_open(path: &Path, options: &OpenOptions) {
    let (medium, name) = prepare_path(path, BYTES, options, &mut quiet).expect("there is room");
    pool_on(medium);
    assert!(
        !path.exists(),
        "the file has its name before it is published"
    );
    name.publish().expect("the name is free");
    let found: Vec<_> = names_in(path.parent().expect("a folder"));
    assert_eq!(found, [path.file_name().expect("a name")]);
    match open_path(path, options).expect("the pool exists") {
        AnyMedium::File(file) => drop(Pool::open(file, &mut PersistCtx::new(0)).expect("a pool")),
        AnyMedium::Mapped(mapped) => {
            drop(Pool::open(mapped, &mut PersistCtx::new(0)).expect("a pool"))
        }
    }
}

fn pool_on(medium: AnyMedium) {
    let mut ctx = PersistCtx::new(0);
    match medium {
        AnyMedium::File(file) => drop(Pool::create(file, &mut ctx, &LAYOUT).expect("sound")),
        AnyMedium::Mapped(mapped) => {
            drop(Pool::create(mapped, &mut ctx, &LAYOUT).expect("sound"));
        }
    }
}

fn names_in(folder: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|e| e.expect("an entry").file_name()).collect()
}

/// The files of a directory: name, bytes.
type Files = Vec<(std::ffi::OsString, Vec<u8>)>;

/// Saves a copy of the directory before each system call of a creation: the state that a kill would leave.
struct DirectorySnapshots {
    folder: PathBuf,
    left: Mutex<Vec<Files>>,
}

impl DirectorySnapshots {
    fn keep(&self) {
        let files = names_in(&self.folder).into_iter().map(|name| {
            let bytes = fs::read(self.folder.join(&name)).expect("a file");
            (name, bytes)
        });
        self.left.lock().unwrap().push(files.collect());
    }
}

impl FileIo for DirectorySnapshots {
    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        self.keep();
        KernelIo.pwritev(file, parts, at)
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.keep();
        KernelIo.fdatasync(file)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        self.keep();
        KernelIo.fallocate(file, at, len)
    }
}

#[test]
fn a_creation_succeeds_after_a_kill_at_any_step_of_an_earlier_one() {
    let made_in = folder();
    let path = pool_path(&made_in);
    let io = Arc::new(DirectorySnapshots {
        folder: made_in.path().into(),
        left: Mutex::default(),
    });
    let options = as_file(io.clone());
    let (medium, name) = prepare_path(&path, BYTES, &options, &mut quiet).expect("room");
    pool_on(medium);
    io.keep();
    name.publish().expect("the name is free");
    let left = io.left.lock().unwrap();
    assert!(left.len() >= 8, "fallocate, zeros, syncs, two superblocks");
    for (step, files) in left.iter().enumerate() {
        let folder = folder();
        for (name, bytes) in files {
            assert_ne!(name, "pool", "named at step {step}");
            fs::write(folder.path().join(name), bytes).expect("written");
        }
        make_and_open(&pool_path(&folder), &as_file(Arc::new(KernelIo)));
    }
}

#[test]
fn a_new_pool_gets_its_name_when_it_is_complete_on_every_medium() {
    let on_disk = folder();
    make_and_open(&pool_path(&on_disk), &OpenOptions::default());
    let cached = OpenOptions {
        page_cache: true,
        ..OpenOptions::default()
    };
    let other = folder();
    make_and_open(&pool_path(&other), &cached);
    if let Some(in_memory) = folder_in_memory() {
        fs::remove_file(in_memory.path().join("probe")).expect("the probe exists");
        let dram = OpenOptions {
            medium: Some(Kind::Dram),
            ..OpenOptions::default()
        };
        make_and_open(&pool_path(&in_memory), &dram);
    }
}

#[test]
fn a_file_created_at_the_path_during_creation_is_not_replaced() {
    let folder = folder();
    let path = pool_path(&folder);
    let options = as_file(Arc::new(KernelIo));
    let (medium, name) = prepare_path(&path, BYTES, &options, &mut quiet).expect("room");
    pool_on(medium);
    fs::write(&path, b"precious").expect("written");
    let refused = name.publish().expect_err("the name is taken");
    assert!(matches!(refused, OpenError::Exists { .. }), "{refused}");
    assert_eq!(fs::read(&path).expect("the file exists"), b"precious");
    assert_eq!(
        names_in(folder.path()),
        ["pool"],
        "the temporary file is removed"
    );
}

#[test]
fn a_second_concurrent_creation_is_refused_and_does_not_disturb_the_first() {
    let folder = folder();
    let path = pool_path(&folder);
    let options = as_file(Arc::new(KernelIo));
    let (medium, name) = prepare_path(&path, BYTES, &options, &mut quiet).expect("room");
    let second = prepare_path(&path, BYTES, &options, &mut quiet).expect_err("one is under way");
    assert!(matches!(second, OpenError::InUse { .. }), "{second}");
    pool_on(medium);
    name.publish().expect("the name is free");
    assert!(path.exists());
}

#[test]
fn a_foreign_file_with_the_temporary_name_is_not_changed() {
    let folder = folder();
    let path = pool_path(&folder);
    let temporary = folder.path().join("pool.farbank-new");
    fs::write(&temporary, b"precious things").expect("written");
    let options = as_file(Arc::new(KernelIo));
    let refused = prepare_path(&path, BYTES, &options, &mut quiet).expect_err("the name is taken");
    assert!(refused.to_string().contains("farbank-new"), "{refused}");
    assert_eq!(
        fs::read(&temporary).expect("the file exists"),
        b"precious things"
    );
}

#[test]
fn a_pool_name_of_any_length_works() {
    let folder = folder();
    for len in [1, 200, 243, 244, 255] {
        let path = folder.path().join("n".repeat(len));
        make_and_open(&path, &as_file(Arc::new(KernelIo)));
        fs::remove_file(&path).expect("the pool exists");
    }
}
