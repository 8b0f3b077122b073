//! The lease: a pool that another host has open.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farbank_pm::media::{AnyMedium, File, KernelIo, OpenError, OpenOptions, open_path};
use farbank_pm::pool::{Pool, PoolLayout};
use farbank_pm::{Medium, Off, PersistCtx};
use tempfile::TempDir;

use crate::common::{as_file, folder, new_file, old_file, pool_path};

/// Offset of the lease record, as in docs/format.md.
const AT: u64 = 1024;
const SEGMENT_BYTES: u64 = 4096;

/// Returns the lease record of a host called `name`.
fn record(name: &str, count: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    bytes[..8].copy_from_slice(b"FBLEASE\n");
    bytes[8] = 1;
    bytes[16..24].copy_from_slice(&count.to_le_bytes());
    bytes[24..40].copy_from_slice(&[7; 16]);
    bytes[40..76].copy_from_slice(b"00000000-0000-0000-0000-000000000000");
    bytes[80..80 + name.len()].copy_from_slice(name.as_bytes());
    let checksum = farbank_pm::crc::crc32c_append(0, &bytes[..508]);
    bytes[508..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn write(path: &Path, count: u64) {
    let file = fs::OpenOptions::new().write(true).open(path);
    let written = file.and_then(|file| file.write_all_at(&record("elsewhere", count), AT));
    written.expect("the record is written");
}

/// Creates and closes a pool.
fn closed() -> TempDir {
    let folder = folder();
    let file = new_file(
        &pool_path(&folder),
        16 * SEGMENT_BYTES,
        &as_file(Arc::new(KernelIo)),
    );
    let layout = PoolLayout {
        segment_bytes: SEGMENT_BYTES,
    };
    let pool = Pool::create(file, &mut PersistCtx::new(0), &layout).expect("a pool");
    drop(pool);
    folder
}

fn held_byte(path: &Path) -> u8 {
    fs::read(path).expect("the pool")[AT as usize + 8]
}

#[test]
fn the_lease_is_held_while_the_pool_is_open_and_returned_on_close() {
    let folder = closed();
    let path = pool_path(&folder);
    assert_eq!(held_byte(&path), 0);
    let file = old_file(&path);
    assert_eq!(held_byte(&path), 1);
    drop(file);
    assert_eq!(held_byte(&path), 0);
}

#[test]
fn a_pool_that_another_host_has_open_is_refused() {
    let folder = closed();
    let path = pool_path(&folder);
    let ends = AtomicBool::new(false);
    let told = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&told);
    let options = OpenOptions {
        notice: Some(Arc::new(move |line| {
            line.clone_into(&mut heard.lock().unwrap())
        })),
        ..as_file(Arc::new(KernelIo))
    };
    let opened = std::thread::scope(|scope| {
        write(&path, 0);
        scope.spawn(|| {
            for count in 1.. {
                std::thread::sleep(Duration::from_secs(1));
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                write(&path, count);
            }
        });
        let opened = open_path(&path, &options);
        ends.store(true, Ordering::Relaxed);
        opened
    });
    match opened {
        Err(error @ OpenError::OtherHost { .. }) => {
            assert!(error.to_string().contains("\"elsewhere\""), "{error}");
        }
        other => panic!("the open was not refused: {other:?}"),
    }
    assert!(told.lock().unwrap().contains("elsewhere"));
}

#[test]
fn a_pool_last_open_on_a_dead_host_is_opened_after_a_wait() {
    let folder = closed();
    let path = pool_path(&folder);
    write(&path, 5);
    let began = Instant::now();
    let file = old_file(&path);
    assert!(began.elapsed() >= Duration::from_secs(2));
    drop(file);
    assert_eq!(held_byte(&path), 0);
    let began = Instant::now();
    drop(old_file(&path));
    assert!(began.elapsed() < Duration::from_secs(2), "no second wait");
}

#[test]
fn no_write_is_acknowledged_once_another_host_has_taken_the_lease() {
    let folder = closed();
    let path = pool_path(&folder);
    let file: File = match open_path(&path, &as_file(Arc::new(KernelIo))) {
        Ok(AnyMedium::File(file)) => file,
        other => panic!("expected a file medium, got {other:?}"),
    };
    let mut ctx = PersistCtx::new(0);
    let mut write_word = || {
        file.store(&mut ctx, Off(3 * SEGMENT_BYTES), 1);
        file.flush(&mut ctx, Off(3 * SEGMENT_BYTES), 8);
        let ticket = file.drain(&mut ctx);
        file.wait(ticket)
    };
    write_word().expect("this process holds the lease");
    write(&path, 9);
    let end = Instant::now() + Duration::from_secs(20);
    while write_word().is_ok() {
        assert!(Instant::now() < end, "the lost lease was not detected");
        std::thread::sleep(Duration::from_millis(50));
    }
    let poisoned = write_word().expect_err("the medium stays poisoned");
    assert!(poisoned.reason().contains("elsewhere"), "{poisoned}");
    while file.file_trouble().is_none() {
        assert!(Instant::now() < end, "the lost lease was not reported");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(file.file_trouble().expect("a report").what, "lease-lost");
    drop(file);
    let bytes = fs::read(&path).expect("the pool");
    let theirs = record("elsewhere", 9);
    assert_eq!(
        bytes[AT as usize..][..512],
        theirs,
        "the other host's record changed"
    );
}
