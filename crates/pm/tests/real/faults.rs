//! Pages that the device or the file system cannot read: reads return zeros and mark them, and the process survives.

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farbank_pm::media::{
    AnyMedium, FileIo, KernelIo, Mapped, OpenOptions, ReadMode, create_path, open_path,
};
use farbank_pm::{Medium, Off, PersistCtx};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::common::{as_file, as_file_read_by_all, folder, new_file, pool_path};

const PAGE: usize = 4096;
const PAGES: usize = 8;
/// Pages that remain after a file is truncated.
const LEFT: usize = 3;

fn bytes() -> Vec<u8> {
    (0..PAGES * PAGE).map(|n| (n % 251) as u8 + 1).collect()
}

/// Makes a file medium that is written through its mapping of the page cache.
fn new_mapped(path: &Path) -> Mapped {
    let options = OpenOptions {
        page_cache: true,
        ..OpenOptions::default()
    };
    match create_path(path, (PAGES * PAGE) as u64, &options, &mut |_, _| {}) {
        Ok(AnyMedium::Mapped(mapped)) => mapped,
        other => panic!("expected a mapped file, got {other:?}"),
    }
}

fn fill(medium: &impl Medium) {
    let mut ctx = PersistCtx::new(0);
    medium.copy_in(&mut ctx, Off(0), &[&bytes()]);
    let ticket = medium.drain(&mut ctx);
    medium.wait(ticket).expect("nothing failed");
}

fn shorten(path: &Path, bytes: usize) {
    let file = fs::OpenOptions::new().write(true).open(path);
    let cut = file.and_then(|file| file.set_len(bytes as u64));
    cut.expect("the file is cut");
}

/// Reads a truncated file in every way, before and behind its end.
fn look(medium: &impl Medium) {
    let (all, end) = (bytes(), LEFT * PAGE);
    assert_eq!(
        medium.unreadable(Off(0), all.len()),
        None,
        "no page was accessed yet"
    );
    let mut out = vec![7; all.len()];
    medium.copy_out(Off(0), &mut out);
    assert!(out[..end] == all[..end], "bytes before the end are read");
    assert!(
        out[end..].iter().all(|byte| *byte == 0),
        "bytes behind the end are zeros"
    );
    assert_eq!(medium.unreadable(Off(0), all.len()), Some(Off(end as u64)));
    assert_eq!(medium.unreadable(Off(0), end), None);
    let within = Off(end as u64 + 100);
    assert_eq!(medium.unreadable(within, 1), Some(within));
    assert!(!medium.matches(within, &all[end + 100..][..300]));
    let crc = farbank_pm::crc::crc32c_append(0, &all);
    assert!(!medium.crc_is(Off(0), all.len(), 0, crc));
    let mut appended = Vec::new();
    medium.append_out(Off(0), all.len(), &mut appended);
    assert_eq!(appended, out);
    for at in [end, all.len() - 8] {
        let word = catch_unwind(AssertUnwindSafe(|| medium.load(Off(at as u64))));
        let words = catch_unwind(AssertUnwindSafe(|| {
            medium.load_words::<2>(Off((end - 8) as u64), 1)
        }));
        assert!(
            word.is_err() && words.is_err(),
            "loading an unreadable word must panic"
        );
    }
    let last = u64::from_le_bytes(all[end - 8..end].try_into().expect("eight bytes"));
    assert_eq!(medium.load(Off((end - 8) as u64)), last);
}

#[test]
fn a_truncated_file_reads_as_zeros_that_are_marked_unreadable() {
    for options in as_file_read_by_all() {
        let folder = folder();
        let path = pool_path(&folder);
        let file = new_file(&path, (PAGES * PAGE) as u64, &options);
        fill(&file);
        shorten(&path, LEFT * PAGE);
        look(&file);
        let trouble = file.file_trouble().expect("the truncation is reported");
        assert!(
            ["unreadable", "truncated"].contains(&trouble.what),
            "{trouble:?}"
        );
    }
}

/// A device of which one page cannot be read. Counts all reads, and the direct ones.
#[derive(Default)]
struct BadPage {
    fails: AtomicBool,
    reads: AtomicU64,
    direct: AtomicU64,
}

impl BadPage {
    const PAGE: u64 = 2;
}

impl FileIo for BadPage {
    fn pread(&self, file: BorrowedFd<'_>, to: &mut [u8], at: u64) -> io::Result<usize> {
        let flags = rustix::fs::fcntl_getfl(file)?;
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.direct.fetch_add(
            u64::from(flags.contains(rustix::fs::OFlags::DIRECT)),
            Ordering::SeqCst,
        );
        let (from, end) = (
            BadPage::PAGE * PAGE as u64,
            (BadPage::PAGE + 1) * PAGE as u64,
        );
        let is_there = at < end && from < at + to.len() as u64;
        match is_there && self.fails.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => KernelIo.pread(file, to, at),
        }
    }

    fn pwritev(&self, file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        KernelIo.pwritev(file, parts, at)
    }

    fn fdatasync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        KernelIo.fdatasync(file)
    }

    fn fallocate(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        KernelIo.fallocate(file, at, len)
    }
}

#[test]
fn a_page_that_pread_cannot_read_is_zeros_until_it_is_written() {
    for options in as_file_read_by_all() {
        if options.read_by == ReadMode::Mapping {
            continue; // A mapping reads without `pread`, so no error can be injected.
        }
        let folder = folder();
        let io = Arc::new(BadPage::default());
        let options = OpenOptions {
            io: io.clone(),
            ..options
        };
        let file = new_file(&pool_path(&folder), (PAGES * PAGE) as u64, &options);
        fill(&file);
        io.fails.store(true, Ordering::SeqCst);
        let bad = Off(BadPage::PAGE * PAGE as u64);
        let mut out = vec![7; PAGES * PAGE];
        file.copy_out(Off(0), &mut out);
        let end = bad.0 as usize + PAGE;
        assert!(out[..bad.0 as usize] == bytes()[..bad.0 as usize]);
        assert!(out[bad.0 as usize..end].iter().all(|byte| *byte == 0));
        assert!(out[end..] == bytes()[end..], "only one page is unreadable");
        assert_eq!(file.unreadable(Off(0), out.len()), Some(bad));
        assert_eq!(file.file_trouble().expect("a report").what, "unreadable");
        assert_eq!(file.unreadable(Off(end as u64), PAGE), None);
        io.reads.store(0, Ordering::SeqCst);
        file.copy_out(Off(end as u64), &mut out[..2 * PAGE]);
        assert_eq!(
            io.reads.load(Ordering::SeqCst),
            1,
            "readable pages need one read"
        );
        file.copy_out(Off(0), &mut out);
        io.fails.store(false, Ordering::SeqCst);
        file.copy_out(Off(0), &mut out);
        assert_eq!(
            file.unreadable(Off(0), out.len()),
            Some(bad),
            "the page stays marked until it is written"
        );
        let mut ctx = PersistCtx::new(0);
        file.copy_in(&mut ctx, bad, &[&[9; PAGE]]);
        file.copy_out(Off(0), &mut out);
        assert!(out[bad.0 as usize..end].iter().all(|byte| *byte == 9));
        assert_eq!(file.unreadable(Off(0), out.len()), None);
    }
}

#[test]
fn direct_reads_bypass_the_page_cache_only_for_pages_not_in_it() {
    for options in as_file_read_by_all() {
        if options.read_by != ReadMode::Direct {
            continue;
        }
        let folder = folder();
        let path = pool_path(&folder);
        let io = Arc::new(BadPage::default());
        let options = OpenOptions {
            io: io.clone(),
            ..options
        };
        let file = new_file(&path, (PAGES * PAGE) as u64, &options);
        fill(&file);
        io.direct.store(0, Ordering::SeqCst); // The open made direct reads of its own.
        let read = || {
            let mut out = vec![0; PAGES * PAGE - 10];
            file.copy_out(Off(5), &mut out);
            assert!(out[..] == bytes()[5..PAGES * PAGE - 5]);
            io.direct.swap(0, Ordering::SeqCst)
        };
        assert_eq!(read(), 0, "all pages were just written, so they are cached");
        let cached = fs::File::open(&path).expect("the pool");
        KernelIo
            .drop_cached(cached.as_fd(), 0, (PAGES * PAGE) as u64)
            .expect("the kernel drops pages");
        let direct = read();
        if direct == 0 {
            eprintln!("skipped: the temporary directory is in memory");
            return;
        }
        assert_eq!(
            read(),
            direct,
            "the first direct read left no page in the cache"
        );
    }
}

#[test]
fn a_store_behind_the_end_of_a_truncated_mapped_file_is_never_acknowledged() {
    let folder = folder();
    let path = pool_path(&folder);
    let mapped = new_mapped(&path);
    fill(&mapped);
    shorten(&path, LEFT * PAGE);
    let mut ctx = PersistCtx::new(0);
    mapped.copy_in(&mut ctx, Off(0), &[&[7; 64]]);
    let ticket = mapped.drain(&mut ctx);
    // The watch thread may have poisoned the medium already. Otherwise the store itself does.
    let before = mapped.wait(ticket);
    let lost = Off((LEFT * PAGE + 64) as u64);
    mapped.copy_in(&mut ctx, lost, &[&[7; 64]]);
    let ticket = mapped.drain(&mut ctx);
    let poisoned = mapped.wait(ticket).expect_err("the store is lost");
    if before.is_ok() {
        let at = format!("writing at byte {} of {}", lost.0, path.display());
        let cut = poisoned.reason().contains(&at) || poisoned.reason().contains("was cut");
        assert!(cut, "{poisoned}");
    }
    assert!(mapped.poll(ticket).is_err());
    let mut out = [0; 64];
    mapped.copy_out(Off(0), &mut out);
    assert_eq!(out, [7; 64], "reads still work");
}

#[test]
fn a_truncated_mapped_file_reads_as_zeros_that_are_marked_unreadable() {
    let folder = folder();
    let path = pool_path(&folder);
    let mapped = new_mapped(&path);
    fill(&mapped);
    shorten(&path, LEFT * PAGE);
    look(&mapped);
    assert!(mapped.file_trouble().is_some());
}

#[test]
fn bytes_written_over_unreadable_pages_are_readable() {
    let folder = folder();
    let path = pool_path(&folder);
    let file = new_file(&path, (PAGES * PAGE) as u64, &as_file(Arc::new(KernelIo)));
    fill(&file);
    shorten(&path, LEFT * PAGE);
    look(&file);
    shorten(&path, PAGES * PAGE); // Lengthens the file again, so that its pages are readable.
    let mut ctx = PersistCtx::new(0);
    let at = (LEFT + 1) * PAGE;
    file.copy_in(&mut ctx, Off(at as u64), &[&[9; 2 * PAGE]]);
    let mut out = vec![0; 2 * PAGE];
    file.copy_out(Off(at as u64), &mut out);
    assert!(out.iter().all(|byte| *byte == 9), "the new bytes are read");
    assert_eq!(file.unreadable(Off(at as u64), 2 * PAGE), None);
    let before = Off((LEFT * PAGE) as u64);
    assert_eq!(
        file.unreadable(before, PAGES * PAGE),
        Some(before),
        "pages that were not written stay marked"
    );
}

/// Runs the case `does` of `in_a_child` in a child process.
fn child(does: &str) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.args(["--exact", "faults::in_a_child", "--test-threads=1"]);
    let child = child.env("FARBANK_CHILD", does).output();
    child.expect("a process").status
}

#[test]
fn a_fault_outside_of_every_pool_still_ends_the_process() {
    assert_eq!(child("fault").signal(), Some(libc::SIGBUS));
}

#[test]
fn a_sigbus_sent_by_a_process_still_ends_the_process() {
    assert_eq!(child("sent").signal(), Some(libc::SIGBUS));
}

#[test]
fn a_fault_in_a_pool_does_not_end_the_process() {
    assert_eq!(child("pool").code(), Some(0));
}

#[test]
fn in_a_child() {
    let Ok(does) = std::env::var("FARBANK_CHILD") else {
        return;
    };
    let folder = folder();
    let path = pool_path(&folder);
    let file = new_file(&path, (PAGES * PAGE) as u64, &as_file(Arc::new(KernelIo)));
    match does.as_str() {
        "pool" => {
            shorten(&path, PAGE);
            let mut out = [1; 8];
            file.copy_out(Off(PAGE as u64), &mut out);
            assert_eq!(out, [0; 8]);
        }
        "sent" => {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::BUS)
                .expect("the signal is sent");
            std::thread::sleep(std::time::Duration::from_secs(5));
        }
        _ => {
            let other = folder.path().join("other");
            fs::write(&other, [1; 2 * PAGE]).expect("a file");
            let opened = fs::File::open(&other).expect("the file exists");
            let (prot, flags) = (ProtFlags::READ, MapFlags::SHARED);
            // SAFETY: a new mapping at an address that the kernel chooses.
            let at = unsafe { mmap(ptr::null_mut(), 2 * PAGE, prot, flags, &opened, 0) };
            let at = at.expect("a mapping").cast::<u8>();
            shorten(&other, PAGE);
            // SAFETY: inside the mapping. The kernel raises SIGBUS, which is what the test checks.
            let read = unsafe { at.add(PAGE).read_volatile() };
            println!("read {read}");
        }
    }
    drop(open_path(&path, &as_file(Arc::new(KernelIo))));
}
