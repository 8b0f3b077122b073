//! Opening and creating media: the file is locked and its space written, or the error says what to do.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use farbank_pm::media::{
    AnyMedium, KernelIo, OpenError, OpenOptions, SyncPolicy, create_path, open_path,
};
use farbank_pm::pool::{Pool, PoolLayout};
use farbank_pm::{Drain, Kind, Medium, Off, PersistCtx};

use crate::common::{
    InjectedIo, Write, as_file, folder, folder_in_memory, new_file, old_file, pool_path,
    without_lease,
};

const BYTES: u64 = 1 << 20;
const LAYOUT: PoolLayout = PoolLayout {
    segment_bytes: 64 << 10,
};

fn refused(path: &Path, options: &OpenOptions) -> OpenError {
    open_path(path, options).expect_err("the open must be refused")
}

fn new_pool(path: &Path) {
    let file = new_file(path, BYTES, &as_file(Arc::new(KernelIo)));
    Pool::create(file, &mut PersistCtx::new(0), &LAYOUT).expect("a sound layout");
}

#[test]
fn a_new_file_is_fully_allocated_and_private_and_its_progress_is_reported() {
    let folder = folder();
    let path = pool_path(&folder);
    let mut told = Vec::new();
    let options = as_file(Arc::new(KernelIo));
    let made = create_path(&path, BYTES + 1, &options, &mut |done, total| {
        told.push((done, total));
    });
    let whole = BYTES + 4096;
    assert_eq!(
        made.expect("there is room").bytes(),
        whole,
        "rounded up to whole pages"
    );
    assert_eq!(told.last(), Some(&(whole, whole)));
    let metadata = fs::metadata(&path).expect("the file exists");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(metadata.blocks() * 512 >= whole, "every block is allocated");
}

#[test]
fn a_creation_without_enough_space_leaves_no_file() {
    let folder = folder();
    let path = pool_path(&folder);
    for so_far in [0, 4096] {
        let io = InjectedIo::free();
        io.next_writes([
            Write::Short(so_far.max(1)),
            Write::Fails(io::ErrorKind::StorageFull.into()),
        ]);
        let refused = create_path(&path, BYTES, &as_file(io), &mut |_, _| {});
        let refused = refused.expect_err("there is no room");
        assert!(
            matches!(refused, OpenError::NoSpace { bytes: BYTES, .. }),
            "{refused}"
        );
        assert!(!path.exists());
    }
    let io = InjectedIo::free();
    io.fail_next_sync();
    create_path(&path, BYTES, &as_file(io), &mut |_, _| {}).expect_err("the sync failed");
    assert!(!path.exists());
}

#[test]
fn a_length_beyond_any_device_is_refused() {
    let folder = folder();
    let path = pool_path(&folder);
    let options = as_file(Arc::new(KernelIo));
    for bytes in [1 << 61, 1 << 63, u64::MAX - 4096, u64::MAX] {
        let refused = create_path(&path, bytes, &options, &mut |_, _| {});
        let refused = refused
            .expect_err("no machine has so much space")
            .to_string();
        assert!(
            refused.contains(path.to_str().expect("a name")),
            "{refused}"
        );
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let folder = folder();
    let path = pool_path(&folder);
    fs::write(&path, b"precious").expect("written");
    let refused = create_path(&path, BYTES, &OpenOptions::default(), &mut |_, _| {});
    assert!(
        matches!(refused, Err(OpenError::Exists { .. })),
        "{refused:?}"
    );
    assert_eq!(fs::read(&path).expect("the file exists"), b"precious");
}

#[test]
fn the_error_of_a_second_open_names_the_path_and_the_process() {
    let folder = folder();
    let path = pool_path(&folder);
    let file = new_file(&path, BYTES, &as_file(Arc::new(KernelIo)));
    let refused = refused(&path, &as_file(Arc::new(KernelIo)));
    let OpenError::InUse { by, .. } = &refused else {
        panic!("{refused}")
    };
    if let Some((pid, _)) = by {
        assert_eq!(*pid, std::process::id());
        assert!(refused.to_string().contains(&pid.to_string()), "{refused}");
    }
    assert!(
        refused.to_string().contains(&path.display().to_string()),
        "{refused}"
    );
    drop(file);
    old_file(&path);
}

#[test]
fn a_hole_in_the_pool_is_refused_with_advice() {
    let folder = folder();
    let path = pool_path(&folder);
    new_pool(&path);
    for hole in [0, 4096, 128 << 10, BYTES - 4096] {
        let whole = fs::read(&path).expect("the file exists");
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("the file exists");
        use rustix::fs::{FallocateFlags, fallocate};
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&file, punch, hole, 4096).is_err() {
            eprintln!("skipped: this file system cannot punch holes");
            return;
        }
        let refused = refused(&path, &as_file(Arc::new(KernelIo)));
        let OpenError::Sparse { hole: at, .. } = refused else {
            panic!("{refused}")
        };
        assert_eq!(at, hole);
        assert!(refused.to_string().contains("--sparse=never"), "{refused}");
        file.write_all_at(&whole, 0).expect("the hole is filled");
        old_file(&path);
    }
}

#[test]
fn a_file_without_written_space_is_refused() {
    let folder = folder();
    let path = pool_path(&folder);
    fs::File::create(&path)
        .expect("made")
        .set_len(BYTES)
        .expect("lengthened");
    let refused = refused(&path, &as_file(Arc::new(KernelIo)));
    assert!(
        matches!(
            refused,
            OpenError::Sparse {
                hole: 0,
                bytes: BYTES,
                ..
            }
        ),
        "{refused}"
    );
}

#[test]
fn the_tail_of_an_interrupted_growth_is_not_part_of_the_pool() {
    let folder = folder();
    let path = pool_path(&folder);
    new_pool(&path);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the file exists");
    file.set_len(4 * BYTES).expect("lengthened");
    file.write_all_at(&[0xdb; 4096], 3 * BYTES)
        .expect("written");
    let mut ctx = PersistCtx::new(0);
    let pool = Pool::open(old_file(&path), &mut ctx).expect("the pool itself is intact");
    assert_eq!(pool.medium().len(), BYTES);
    pool.grow(&mut ctx, 64).expect("there is room");
    let end = pool.medium().len();
    assert!(
        end > 3 * BYTES && pool.medium().matches(Off(3 * BYTES), &[0; 4096]),
        "growth overwrites the tail with zeros"
    );
    drop(pool);
    let pool = Pool::open(old_file(&path), &mut ctx).expect("it is a pool");
    assert_eq!((pool.segments(), pool.medium().len()), (64, end));
}

#[test]
fn opening_a_pool_truncated_to_any_length_is_an_error() {
    let folder = folder();
    let path = pool_path(&folder);
    new_pool(&path);
    let whole = fs::read(&path).expect("the file exists");
    let pages = (0..whole.len()).step_by(12 << 10);
    for len in pages.chain([1, 511, 512, 4095, 8191, 8192, whole.len() - 1]) {
        fs::write(&path, &whole[..len]).expect("written");
        if len < 8192 {
            let refused = refused(&path, &as_file(Arc::new(KernelIo)));
            let said = format!("has {len} bytes");
            assert!(refused.to_string().contains(&said), "{refused}");
            continue;
        }
        let file = old_file(&path);
        let refused = Pool::open(file, &mut PersistCtx::new(0)).expect_err("a truncated pool");
        let said = refused.to_string();
        let bytes = LAYOUT.pool_bytes(15);
        assert!(said.contains(&bytes.to_string()), "{said}");
        assert!(said.contains(&(len / 4096 * 4096).to_string()), "{said}");
    }
}

#[test]
fn a_directory_or_other_device_is_an_error() {
    let folder = folder();
    let options = OpenOptions::default();
    for path in [
        folder.path(),
        Path::new("/dev/null"),
        Path::new("/dev/zero"),
    ] {
        refused(path, &options);
        create_path(path, BYTES, &options, &mut |_, _| {}).expect_err("the path exists");
    }
    refused(&folder.path().join("missing"), &options);
    let nowhere = folder.path().join("missing/pool");
    create_path(&nowhere, BYTES, &options, &mut |_, _| {}).expect_err("no such directory");
}

#[test]
fn an_open_returns_the_requested_medium_or_an_error() {
    let folder = folder();
    let path = pool_path(&folder);
    new_pool(&path);
    let best = open_path(&path, &OpenOptions::default())
        .expect("the file exists")
        .caps()
        .kind;
    for medium in [Kind::Dax, Kind::Dram, Kind::File, Kind::Sim] {
        let options = OpenOptions {
            medium: Some(medium),
            ..OpenOptions::default()
        };
        match open_path(&path, &options) {
            Ok(opened) => assert!(medium == best || medium == Kind::File, "{opened:?}"),
            Err(refused) => {
                assert!(medium != best && medium != Kind::File);
                let OpenError::Unavailable { .. } = refused else {
                    panic!("{refused}")
                };
                assert!(refused.to_string().contains(medium.name()), "{refused}");
            }
        }
    }
}

#[test]
fn opening_a_file_that_is_not_a_pool_does_not_write_to_it() {
    let folder = folder();
    let path = pool_path(&folder);
    std::fs::write(&path, [7; 64 << 10]).expect("a little space");
    let changed = || {
        std::fs::metadata(&path)
            .expect("the file exists")
            .modified()
    };
    let before = changed().expect("files have times");
    open_path(&path, &OpenOptions::default()).expect("any file can be a medium");
    assert_eq!(changed().expect("files have times"), before);
    assert_eq!(
        std::fs::read(&path).expect("the file exists"),
        [7; 64 << 10]
    );
}

#[test]
fn the_self_test_of_an_open_leaves_the_pool_unchanged() {
    let folder = folder();
    let path = pool_path(&folder);
    new_pool(&path);
    let before = without_lease(&path);
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    let file = std::fs::File::options().write(true).open(&path);
    let file = file.expect("the file exists");
    file.set_modified(long_ago).expect("files have times");
    let opened = open_path(&path, &OpenOptions::default()).expect("it is a pool");
    assert!(without_lease(&path) == before);
    if opened.caps().kind == Kind::File {
        let changed = file.metadata().and_then(|found| found.modified());
        assert_ne!(
            changed.expect("files have times"),
            long_ago,
            "the self-test wrote nothing"
        );
    }
}

#[test]
fn a_refused_medium_leaves_no_file() {
    let folder = folder();
    let path = pool_path(&folder);
    let options = OpenOptions {
        medium: Some(Kind::Sim),
        ..OpenOptions::default()
    };
    create_path(&path, BYTES, &options, &mut |_, _| {}).expect_err("no file is the sim medium");
    assert!(!path.exists());
}

#[test]
fn a_pool_on_tmpfs_is_mapped_and_outlives_its_process() {
    let Some(folder) = folder_in_memory() else {
        return;
    };
    let path = pool_path(&folder);
    let options = OpenOptions::default();
    let made = create_path(&path, BYTES, &options, &mut |_, _| {}).expect("there is room");
    let AnyMedium::Mapped(mapped) = made else {
        panic!("tmpfs is mapped")
    };
    assert_eq!(
        (mapped.caps().kind, mapped.caps().drain),
        (Kind::Dram, Drain::Fence)
    );
    let mut ctx = PersistCtx::new(0);
    let pool = Pool::create(mapped, &mut ctx, &LAYOUT).expect("a sound layout");
    let (id, at) = (pool.id(), pool.segment(3));
    pool.medium().copy_in(&mut ctx, at, &[b"still here"]);
    assert!(matches!(refused(&path, &options), OpenError::InUse { .. }));
    drop(pool);
    let Ok(AnyMedium::Mapped(mapped)) = open_path(&path, &options) else {
        panic!("it is there")
    };
    let pool = Pool::open(mapped, &mut ctx).expect("it is a pool");
    assert_eq!(pool.id(), id);
    assert!(pool.medium().matches(at, b"still here"));
    pool.grow(&mut ctx, 40).expect("there is room");
    assert_eq!(
        fs::metadata(&path).expect("the file exists").len(),
        pool.medium().len()
    );
}

#[test]
fn an_ordinary_file_is_mapped_with_the_page_cache_option() {
    let folder = folder();
    let path = pool_path(&folder);
    let options = OpenOptions {
        page_cache: true,
        ..OpenOptions::default()
    };
    let made = create_path(&path, BYTES, &options, &mut |_, _| {}).expect("there is room");
    let AnyMedium::Mapped(mapped) = made else {
        panic!("a mapping was requested")
    };
    assert_eq!(mapped.caps().kind, Kind::Dram);
    let mut ctx = PersistCtx::new(0);
    let pool = Pool::create(mapped, &mut ctx, &LAYOUT).expect("a sound layout");
    let at = pool.segment(3);
    pool.medium().copy_in(&mut ctx, at, &[b"still here"]);
    let ticket = pool.medium().drain(&mut ctx);
    pool.medium()
        .wait_until_durable(ticket)
        .expect("the sync succeeds");
    drop(pool);
    let Ok(AnyMedium::File(file)) = open_path(&path, &as_file(Arc::new(KernelIo))) else {
        panic!("it is an ordinary file")
    };
    assert!(file.matches(at, b"still here"));
}

#[test]
fn each_sync_policy_reports_its_kind_of_drain_and_what_survives() {
    let folder = folder();
    let path = pool_path(&folder);
    new_pool(&path);
    let mut lines = Vec::new();
    for sync in [SyncPolicy::Always, SyncPolicy::EverySec, SyncPolicy::Never] {
        let options = OpenOptions {
            sync,
            ..as_file(Arc::new(KernelIo))
        };
        let opened = open_path(&path, &options).expect("the file exists");
        let caps = opened.caps();
        assert_eq!(caps.drain == Drain::Sync, sync == SyncPolicy::Always);
        assert!(caps.survives.contains("kill") && !caps.survives.contains('\n'));
        lines.push(caps.survives.clone());
    }
    lines.dedup();
    assert!(lines.len() == 3 || lines[0].contains("in memory"));
}
