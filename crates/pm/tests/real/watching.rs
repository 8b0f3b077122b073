//! Changes of an open pool's file are detected, and a copy of a pool is distinguished from the original file.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farbank_pm::media::{AnyMedium, KernelIo, OpenOptions, create_path, file_id, open_path};
use farbank_pm::pool::{COPIES, CopiedPoolPolicy, Pool, PoolError, PoolLayout};
use farbank_pm::{FileId, FileTrouble, Kind, Medium, Off, PersistCtx, Ticket};

use crate::common::{
    as_file, folder, folder_in_memory, memory, new_file, old_file, pool_path, without_lease,
};

const BYTES: u64 = 1 << 20;
const LAYOUT: PoolLayout = PoolLayout {
    segment_bytes: 64 << 10,
};

/// Waits up to 10 seconds, for busy machines, until the medium reports trouble with its file.
fn trouble_of(medium: &impl Medium) -> Option<FileTrouble> {
    let since = Instant::now();
    while medium.file_trouble().is_none() && since.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    medium.file_trouble()
}

/// Checks that `medium` reports `what`, and that it is poisoned exactly if `refuses`.
fn is_noticed(medium: &impl Medium, what: &str, refuses: bool, path: &Path) {
    assert!(medium.poll(Ticket::DURABLE).is_ok());
    let trouble = trouble_of(medium).expect("the medium reports trouble");
    assert_eq!(trouble.what, what);
    let text = trouble.text.to_string();
    assert!(text.contains(path.to_str().expect("a name")), "{text}");
    let since = Instant::now();
    while refuses && medium.poll(Ticket::NEVER).is_ok() {
        assert!(since.elapsed() < Duration::from_secs(10));
    }
    let acknowledged = medium.poll(Ticket::NEVER);
    assert_eq!(acknowledged.is_err(), refuses, "{acknowledged:?}");
    if let Err(poisoned) = acknowledged {
        assert_eq!(poisoned.reason(), &*trouble.text);
    }
}

type DamageFn = fn(&Path);

fn cut(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(BYTES / 2)).expect("cut");
}

fn remove(path: &Path) {
    fs::remove_file(path).expect("removed");
}

fn replace(path: &Path) {
    remove(path);
    fs::write(path, b"another").expect("written");
}

fn move_away(path: &Path) {
    fs::rename(path, path.with_extension("moved")).expect("renamed");
}

const HARMS: [(DamageFn, &str); 4] = [
    (cut, "truncated"),
    (remove, "removed"),
    (replace, "replaced"),
    (move_away, "moved"),
];

#[test]
fn truncating_removing_replacing_or_moving_the_file_of_an_open_pool_is_detected() {
    for (harm, what) in HARMS {
        let folder = folder();
        let path = pool_path(&folder);
        let file = new_file(&path, BYTES, &as_file(Arc::new(KernelIo)));
        harm(&path);
        is_noticed(&file, what, what != "moved", &path);
    }
}

#[test]
fn a_mapped_file_is_watched_too_and_with_page_cache_writes_continue_after_its_removal() {
    let Some(folder) = folder_in_memory() else {
        return;
    };
    for page_cache in [false, true] {
        for (harm, what) in HARMS {
            let path = pool_path(&folder);
            let options = OpenOptions {
                medium: Some(Kind::Dram),
                page_cache,
                ..OpenOptions::default()
            };
            let made = create_path(&path, BYTES, &options, &mut |_, _| {});
            let Ok(AnyMedium::Mapped(mapped)) = made else {
                panic!("expected a mapping, got {made:?}");
            };
            harm(&path);
            let refuses = what == "truncated" || (what != "moved" && !page_cache);
            is_noticed(&mapped, what, refuses, &path);
            let _ = fs::remove_file(&path);
        }
    }
}

#[test]
fn a_file_that_is_moved_back_or_grows_is_not_reported() {
    let folder = folder();
    let path = pool_path(&folder);
    let file = new_file(&path, BYTES, &as_file(Arc::new(KernelIo)));
    let away = path.with_extension("moved");
    fs::rename(&path, &away).expect("renamed");
    assert!(trouble_of(&file).is_some());
    fs::rename(&away, &path).expect("renamed");
    file.grow(3 * BYTES).expect("there is room");
    let since = Instant::now();
    while file.file_trouble().is_some() {
        assert!(since.elapsed() < Duration::from_secs(10));
    }
    assert!(file.poll(Ticket::NEVER).is_ok());
}

fn copy_of_an_open_pool(path: &Path) {
    let original = path.with_extension("original");
    let file = new_file(&original, BYTES, &as_file(Arc::new(KernelIo)));
    let pool = Pool::create(file, &mut PersistCtx::new(0), &LAYOUT).expect("sound");
    fs::copy(&original, path).expect("copied");
    drop(pool);
}

#[test]
fn a_copy_of_an_open_pool_is_refused_or_accepted_permanently() {
    let folder = folder();
    let path = pool_path(&folder);
    copy_of_an_open_pool(&path);
    let mut ctx = PersistCtx::new(0);
    let before = without_lease(&path);
    let refused = Pool::open(old_file(&path), &mut ctx).expect_err("a copy");
    assert!(matches!(refused, PoolError::Copy { .. }), "{refused}");
    assert!(refused.to_string().contains("copy"), "{refused}");
    assert!(without_lease(&path) == before);
    let pool =
        Pool::open_with(old_file(&path), &mut ctx, CopiedPoolPolicy::Accept).expect("accepted");
    assert!(!pool.is_copy());
    drop(pool); // as after a kill
    Pool::open(old_file(&path), &mut ctx).expect("an accepted copy is an ordinary pool");
    let original = path.with_extension("original");
    Pool::open(old_file(&original), &mut ctx).expect("the original is unchanged");
}

#[test]
fn an_inspected_copy_is_still_a_copy_after_a_clean_close() {
    let folder = folder();
    let path = pool_path(&folder);
    copy_of_an_open_pool(&path);
    let mut ctx = PersistCtx::new(0);
    let pool =
        Pool::open_with(old_file(&path), &mut ctx, CopiedPoolPolicy::Inspect).expect("inspected");
    assert!(pool.is_copy());
    pool.record_clean_close(&mut ctx)
        .expect("no disk fails here");
    drop(pool);
    Pool::open(old_file(&path), &mut ctx).expect_err("it is still a copy");
}

#[test]
fn a_renamed_pool_and_a_copy_of_a_cleanly_closed_pool_are_opened() {
    let folder = folder();
    let path = pool_path(&folder);
    let mut ctx = PersistCtx::new(0);
    let file = new_file(&path, BYTES, &as_file(Arc::new(KernelIo)));
    let pool = Pool::create(file, &mut ctx, &LAYOUT).expect("sound");
    drop(pool); // as after a kill
    let renamed = path.with_extension("renamed");
    fs::rename(&path, &renamed).expect("renamed");
    let pool = Pool::open(old_file(&renamed), &mut ctx).expect("the same file");
    pool.record_clean_close(&mut ctx)
        .expect("no disk fails here");
    drop(pool);
    fs::copy(&renamed, &path).expect("copied");
    Pool::open(old_file(&path), &mut ctx).expect("a copy of a closed pool is complete");
}

#[test]
fn the_superblock_records_the_file_id_while_the_pool_is_open_as_in_the_format() {
    let folder = folder();
    let path = pool_path(&folder);
    let mut ctx = PersistCtx::new(0);
    let file = new_file(&path, BYTES, &as_file(Arc::new(KernelIo)));
    let id = file.file_id().expect("this file system has inodes");
    assert_eq!(Some(id), file_id(&fs::File::open(&path).expect("there")));
    let pool = Pool::create(file, &mut ctx, &LAYOUT).expect("sound");
    let named = |pool: &Pool<_>| {
        COPIES.map(|at| {
            let medium: &farbank_pm::media::File = pool.medium();
            [448, 456, 464, 488].map(|word| medium.load(Off(at.0 + word)))
        })
    };
    assert_eq!(named(&pool), [[id.inode, id.created_ns, 0, 0]; 2]);
    pool.record_clean_close(&mut ctx)
        .expect("no disk fails here");
    assert_eq!(named(&pool), [[0; 4]; 2]);
}

#[test]
fn a_pool_without_a_recorded_file_id_opens_from_any_file() {
    let mut ctx = PersistCtx::new(0);
    let pool = Pool::create(memory(BYTES), &mut ctx, &LAYOUT).expect("sound");
    assert_eq!(pool.medium().load(Off(448)), 0);
    // An earlier program recorded no file id either. Such a pool opens from any file.
    let mut bytes = vec![0; BYTES as usize];
    pool.medium().copy_out(Off(0), &mut bytes);
    let folder = folder();
    let path = pool_path(&folder);
    fs::write(&path, bytes).expect("written");
    let medium = open_path(&path, &as_file(Arc::new(KernelIo))).expect("the file exists");
    let AnyMedium::File(file) = medium else {
        panic!("expected a file medium");
    };
    Pool::open(file, &mut ctx).expect("it is a pool");
}

#[test]
fn an_unknown_creation_time_matches_any_creation_time() {
    let id = |inode, born_ns| FileId {
        inode,
        created_ns: born_ns,
    };
    assert!(id(7, 9).may_be(id(7, 9)));
    assert!(id(7, 0).may_be(id(7, 9)) && id(7, 9).may_be(id(7, 0)));
    assert!(!id(7, 9).may_be(id(7, 8)) && !id(7, 9).may_be(id(8, 9)));
}
