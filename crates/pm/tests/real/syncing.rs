//! The file medium's syncs: one for all contexts, tickets durable in order, no acknowledgement after an I/O error.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use farbank_pm::media::{File, OpenOptions, SyncPolicy};
use farbank_pm::{Medium, Off, PersistCtx, Ticket};

use crate::common::{InjectedIo, Write, as_file, folder, new_file, old_file, pool_path};

const BYTES: u64 = 64 << 10;

/// Creates and opens a file. The syncs of the creation and the open do not count.
fn file(path: &Path, io: &Arc<InjectedIo>, sync: SyncPolicy) -> File {
    new_file(path, BYTES, &as_file(InjectedIo::free()))
        .close()
        .expect("an empty file is synced");
    let options = OpenOptions {
        sync,
        ..as_file(io.clone())
    };
    match io.unheld(|| farbank_pm::media::open_path(path, &options)) {
        Ok(farbank_pm::media::AnyMedium::File(file)) => file,
        other => panic!("expected a file medium, got {other:?}"),
    }
}

fn write(file: &File, ctx: &mut PersistCtx, at: u64) -> Ticket {
    file.copy_in(ctx, Off(at), &[b"12345678"]);
    file.drain(ctx)
}

#[test]
fn contexts_that_wrote_while_a_sync_ran_share_the_next() {
    const CONTEXTS: u64 = 16;
    let (folder, io) = (folder(), InjectedIo::held());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Always);
    let mut contexts: Vec<PersistCtx> = (0..CONTEXTS as u32).map(PersistCtx::new).collect();
    let first = write(&file, &mut contexts[0], 0);
    io.wait_until_begun(1);
    let tickets: Vec<Ticket> = (0..CONTEXTS)
        .map(|i| write(&file, &mut contexts[i as usize], 8 * i))
        .collect();
    assert!(tickets.iter().all(|t| *t == tickets[0] && *t > first));
    io.let_syncs_end(u64::MAX);
    for ticket in tickets {
        file.wait(ticket).expect("nothing failed");
    }
    assert_eq!((io.syncs_begun(), file.syncs()), (2, 2));
    let caused: u64 = contexts.iter().map(|ctx| ctx.counters.syncs).sum();
    assert_eq!(caused, 2, "each sync is counted by one context");
}

#[test]
fn a_running_sync_does_not_cover_a_later_write() {
    let (folder, io) = (folder(), InjectedIo::held());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Always);
    let mut ctx = PersistCtx::new(0);
    let early = write(&file, &mut ctx, 0);
    io.wait_until_begun(1);
    let late = write(&file, &mut ctx, 8);
    io.let_syncs_end(1);
    file.wait(early).expect("the first sync ended");
    io.wait_until_begun(2);
    assert_eq!(file.poll(early), Ok(true));
    assert_eq!(file.poll(late), Ok(false));
    io.let_syncs_end(2);
    file.wait(late).expect("the second sync ended");
}

#[test]
fn many_threads_cause_at_most_one_sync_for_each_write() {
    const THREADS: u64 = 8;
    const WRITES: u64 = 25;
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Always);
    std::thread::scope(|scope| {
        for i in 0..THREADS {
            let file = &file;
            scope.spawn(move || {
                let mut ctx = PersistCtx::new(i as u32);
                for _ in 0..WRITES {
                    let ticket = write(file, &mut ctx, 8 * i);
                    file.wait(ticket).expect("nothing failed");
                    assert_eq!(file.poll(ticket), Ok(true));
                }
            });
        }
    });
    assert!(io.syncs_begun() <= THREADS * WRITES);
    assert_eq!(io.syncs_begun(), file.syncs());
}

#[test]
fn wakers_are_called_when_tickets_become_durable() {
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Always);
    let (tell, told) = mpsc::channel();
    file.on_durable(Arc::new(move || _ = tell.send(())));
    let ticket = write(&file, &mut PersistCtx::new(0), 0);
    told.recv().expect("the waker is called");
    assert_eq!(file.poll(ticket), Ok(true));
}

/// Checks that `file` acknowledges no write or drain any more, and retries no system call.
fn is_dead(file: &File, io: &InjectedIo, reason: &str) {
    let (syncs, writes) = (io.syncs_begun(), io.write_calls.load(Ordering::SeqCst));
    let mut ctx = PersistCtx::new(9);
    let ticket = write(file, &mut ctx, 0);
    for answer in [file.poll(ticket).map(|_| ()), file.wait(ticket)] {
        let Err(poisoned) = answer else {
            panic!("acknowledged: {answer:?}")
        };
        assert!(poisoned.reason().contains(reason), "{poisoned}");
    }
    file.store(&mut ctx, Off(0), 1);
    assert!(file.grow(2 * BYTES).is_err());
    assert_eq!(io.syncs_begun(), syncs, "a sync was retried");
    assert_eq!(
        io.write_calls.load(Ordering::SeqCst),
        writes,
        "a write was retried"
    );
}

#[test]
fn a_failed_sync_poisons_the_medium_forever() {
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Always);
    let mut ctx = PersistCtx::new(0);
    let good = write(&file, &mut ctx, 0);
    file.wait(good).expect("nothing failed yet");
    let (tell, told) = mpsc::channel();
    io.fail_next_sync();
    file.on_durable(Arc::new(move || _ = tell.send(())));
    let bad = write(&file, &mut ctx, 8);
    let poisoned = file.wait(bad).expect_err("the sync failed");
    assert!(poisoned.reason().contains("fdatasync"), "{poisoned}");
    assert!(poisoned.reason().contains("pool"), "{poisoned}");
    assert!(
        poisoned.reason().contains("the disk is on fire"),
        "{poisoned}"
    );
    let source = poisoned.source().and_then(|e| e.downcast_ref());
    let error: &io::Error = source.expect("the error of the sync is the source");
    assert_eq!(error.to_string(), "the disk is on fire");
    told.recv().expect("the waker is called");
    assert_eq!(file.poll(good), Ok(true), "a durable ticket stays durable");
    is_dead(&file, &io, "the disk is on fire");
    assert_eq!(file.close(), Err(poisoned));
}

#[test]
fn a_failed_write_poisons_every_context_under_every_policy() {
    for sync in [SyncPolicy::Always, SyncPolicy::EverySec, SyncPolicy::Never] {
        let (folder, io) = (folder(), InjectedIo::free());
        let file = file(&pool_path(&folder), &io, sync);
        let (tell, told) = mpsc::channel();
        file.on_durable(Arc::new(move || _ = tell.send(())));
        io.next_writes([Write::Fails(io::ErrorKind::StorageFull.into())]);
        let ticket = write(&file, &mut PersistCtx::new(0), 8);
        assert!(file.wait(ticket).is_err());
        told.recv().expect("the waker is called");
        is_dead(&file, &io, "writing at byte 8");
        assert!(file.close().is_err());
    }
}

#[test]
fn a_sync_that_ends_after_a_failed_write_of_another_context_acknowledges_nothing() {
    let (folder, io) = (folder(), InjectedIo::held());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Always);
    let ticket = write(&file, &mut PersistCtx::new(0), 0);
    io.wait_until_begun(1);
    io.next_writes([Write::Fails(io::Error::other("torn cable"))]);
    write(&file, &mut PersistCtx::new(1), 8);
    let (tell, told) = mpsc::channel();
    file.on_durable(Arc::new(move || _ = tell.send(())));
    io.let_syncs_end(u64::MAX);
    told.recv().expect("the waker is called after the sync");
    assert!(file.poll(ticket).is_err());
    is_dead(&file, &io, "torn cable");
}

#[test]
fn short_and_interrupted_writes_are_continued() {
    let folder = folder();
    let path = pool_path(&folder);
    let io = InjectedIo::free();
    let file = file(&path, &io, SyncPolicy::Always);
    let parts: [&[u8]; 4] = [b"one", b"", b"and another", b"the end."];
    let interrupted = || Write::Fails(io::ErrorKind::Interrupted.into());
    let writes = [
        Write::Short(2),
        interrupted(),
        Write::Short(5),
        Write::Short(1),
        interrupted(),
    ];
    io.next_writes(writes);
    let mut ctx = PersistCtx::new(0);
    file.copy_in(&mut ctx, Off(16), &parts);
    assert_eq!(io.write_calls.load(Ordering::SeqCst), 6);
    let ticket = file.drain(&mut ctx);
    file.wait(ticket).expect("nothing failed");
    drop(file);
    assert!(old_file(&path).matches(Off(16), &parts.concat()));
}

#[test]
fn many_parts_are_written_by_one_call() {
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Always);
    let parts = [b"0123456789abcdef".as_slice(); 100];
    file.copy_in(&mut PersistCtx::new(0), Off(0), &parts);
    assert_eq!(io.write_calls.load(Ordering::SeqCst), 1);
    assert!(file.matches(Off(0), &parts.concat()));
    let parts = [b"01234567".as_slice(); 3000];
    file.copy_in(&mut PersistCtx::new(0), Off(0), &parts);
    assert_eq!(
        io.write_calls.load(Ordering::SeqCst),
        1 + 3,
        "1024 parts a call"
    );
    assert!(file.matches(Off(0), &parts.concat()));
}

#[test]
fn closing_syncs_a_file_with_the_policy_never() {
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Never);
    assert_eq!(write(&file, &mut PersistCtx::new(0), 0), Ticket::DURABLE);
    assert_eq!(io.syncs_begun(), 0);
    file.close().expect("nothing failed");
    assert_eq!(io.syncs_begun(), 1);
}

#[test]
fn closing_reports_a_failed_sync() {
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Never);
    write(&file, &mut PersistCtx::new(0), 0);
    io.fail_next_sync();
    assert!(file.close().is_err());
}

#[test]
fn dropping_syncs_outstanding_writes_and_a_clean_file_needs_no_sync() {
    let (folder, io) = (folder(), InjectedIo::free());
    let path = pool_path(&folder);
    let medium = file(&path, &io, SyncPolicy::Always);
    medium.copy_in(&mut PersistCtx::new(0), Off(0), &[b"12345678"]);
    drop(medium);
    assert_eq!(io.syncs_begun(), 1);
    old_file(&path).close().expect("nothing to sync");
    assert_eq!(io.syncs_begun(), 1);
}

#[test]
fn the_policy_everysec_syncs_without_a_request() {
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::EverySec);
    let mut ctx = PersistCtx::new(0);
    assert_eq!(write(&file, &mut ctx, 0), Ticket::DURABLE);
    io.wait_until_begun(1);
    assert_eq!(ctx.counters.syncs, 0, "no context requested the sync");
}

#[test]
fn a_failed_sync_under_everysec_poisons_the_medium() {
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::EverySec);
    let (tell, told) = mpsc::channel();
    io.fail_next_sync();
    file.on_durable(Arc::new(move || _ = tell.send(())));
    assert_eq!(write(&file, &mut PersistCtx::new(0), 0), Ticket::DURABLE);
    told.recv().expect("the waker is called");
    is_dead(&file, &io, "fdatasync");
}

#[test]
fn a_failed_growth_without_space_changes_nothing() {
    let (folder, io) = (folder(), InjectedIo::free());
    let path = pool_path(&folder);
    let file = file(&path, &io, SyncPolicy::Always);
    io.next_writes([
        Write::Short(4096),
        Write::Fails(io::ErrorKind::StorageFull.into()),
    ]);
    let refused = file.grow(8 << 20).expect_err("there is no room");
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.len(), BYTES);
    assert_eq!(
        std::fs::metadata(&path).expect("the file exists").len(),
        BYTES
    );
    let ticket = write(&file, &mut PersistCtx::new(0), 0);
    file.wait(ticket).expect("the medium is not poisoned");
    file.grow(8 << 20).expect("now there is room");
}

#[test]
fn a_failed_sync_of_growth_poisons_the_medium() {
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Always);
    io.fail_next_sync();
    file.grow(8 << 20).expect_err("the sync failed");
    assert_eq!(file.len(), BYTES);
    is_dead(&file, &io, "fdatasync");
}

#[test]
fn a_panicking_waker_poisons_the_medium_so_that_no_caller_waits_forever() {
    let (folder, io) = (folder(), InjectedIo::free());
    let file = file(&pool_path(&folder), &io, SyncPolicy::Always);
    file.on_durable(Arc::new(|| panic!("a waker's own fault")));
    let mut ctx = PersistCtx::new(0);
    // The first ticket may become durable before its waker panics. No later one does.
    while file.wait(write(&file, &mut ctx, 0)).is_ok() {}
    is_dead(&file, &io, "waker panicked");
}
