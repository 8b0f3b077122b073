//! Bytes and words: reads return the bytes written, at every alignment, and counters are exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farbank_pm::media::{KernelIo, Mapped};
use farbank_pm::{Kind, Medium, Off, PersistCounters, PersistCtx, Ticket, medium};

use crate::common::{
    Rng, as_file, as_file_read_by_all, folder, folder_in_memory, memory, new_file, pool_path,
};

const BYTES: usize = 16 << 10;

/// Runs `check` on a medium for each way to write: non-temporal stores, stores through the cache, system calls.
fn on_every_medium(check: impl Fn(&dyn Medium)) {
    check(&memory(BYTES as u64));
    check(&memory(BYTES as u64).with_non_temporal_from(0));
    check(&memory(BYTES as u64).with_non_temporal_from(usize::MAX));
    for options in as_file_read_by_all() {
        let folder = folder();
        check(&new_file(&pool_path(&folder), BYTES as u64, &options));
    }
}

fn fill(medium: &dyn Medium, seed: u64) -> Vec<u8> {
    let model = Rng(seed).bytes(BYTES);
    medium.copy_in(&mut PersistCtx::new(0), Off(0), &[&model]);
    model
}

#[test]
fn reads_return_the_bytes_written_at_every_alignment_and_length() {
    on_every_medium(|medium| {
        let model = fill(medium, 1);
        for from in 0..24 {
            for len in (0..96).chain([4095, 4096, 4097, BYTES - 24]) {
                let want = &model[from..from + len];
                let at = Off(from as u64);
                let mut out = vec![0xee; len];
                medium.copy_out(at, &mut out);
                assert_eq!(out, want, "copy_out of {len} at {from}");
                let mut appended = b"before".to_vec();
                medium.append_out(at, len, &mut appended);
                assert_eq!(
                    appended,
                    [b"before", want].concat(),
                    "append_out of {len} at {from}"
                );
                assert!(medium.matches(at, want), "matches {len} at {from}");
                assert_eq!(
                    medium.crc(at, len, 7),
                    crc32c::crc32c_append(7, want),
                    "crc of {len} at {from}"
                );
            }
        }
    });
}

#[test]
fn reading_the_last_bytes_touches_no_byte_behind_the_medium() {
    on_every_medium(|medium| {
        let model = fill(medium, 5);
        for from in BYTES - 80..=BYTES {
            let (at, want) = (Off(from as u64), &model[from..]);
            let mut out = vec![0; want.len()];
            medium.copy_out(at, &mut out);
            assert_eq!(out, want);
            assert!(medium.matches(at, want));
            assert_eq!(medium.crc(at, want.len(), 0), crc32c::crc32c(want));
        }
    });
}

#[test]
fn one_different_byte_at_any_position_is_no_match() {
    let medium = memory(BYTES as u64);
    let model = fill(&medium, 2);
    for from in 0..9 {
        for len in 1..40 {
            for wrong in 0..len {
                let mut other = model[from..from + len].to_vec();
                other[wrong] ^= 0x10;
                assert!(
                    !medium.matches(Off(from as u64), &other),
                    "{len} at {from}, byte {wrong}"
                );
            }
        }
    }
}

#[test]
fn copying_in_changes_no_other_bytes() {
    for seed in 0..40 {
        on_every_medium(|medium| {
            let mut rng = Rng(seed);
            let mut model = fill(medium, seed);
            for _ in 0..12 {
                let parts: Vec<Vec<u8>> = (0..rng.below(5))
                    .map(|_| {
                        let len_max = [9, 80, 700][rng.below(3)];
                        let len = rng.below(len_max);
                        rng.bytes(len)
                    })
                    .collect();
                let whole = parts.concat();
                let at = rng.below((BYTES - whole.len()) / 8) * 8;
                let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                medium.copy_in(&mut PersistCtx::new(0), Off(at as u64), &slices);
                model[at..at + whole.len()].copy_from_slice(&whole);
            }
            assert!(medium.matches(Off(0), &model), "seed {seed}");
        });
    }
}

#[test]
fn words_are_loaded_stored_and_swapped() {
    on_every_medium(|medium| {
        let mut ctx = PersistCtx::new(0);
        medium.store(&mut ctx, Off(64), 5);
        assert_eq!(medium.load(Off(64)), 5);
        assert_eq!(medium.cas(&mut ctx, Off(64), 5, 6), Ok(5));
        assert_eq!(medium.cas(&mut ctx, Off(64), 5, 7), Err(6));
        assert_eq!(medium.load(Off(64)), 6);
        assert_eq!((medium.load(Off(56)), medium.load(Off(72))), (0, 0));
    });
}

#[test]
fn concurrent_compare_and_swaps_lose_no_update() {
    const THREADS: u64 = 4;
    const SWAPS: u64 = 200;
    on_every_medium_shared(|medium| {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut ctx = PersistCtx::new(0);
                    for _ in 0..SWAPS {
                        let mut old = medium.load(Off(8));
                        while let Err(now) = medium.cas(&mut ctx, Off(8), old, old + 1) {
                            old = now;
                        }
                    }
                });
            }
        });
        assert_eq!(medium.load(Off(8)), THREADS * SWAPS);
    });
}

fn on_every_medium_shared(check: impl Fn(&dyn Medium)) {
    check(&memory(4096));
    let folder = folder();
    check(&new_file(
        &pool_path(&folder),
        4096,
        &as_file(Arc::new(KernelIo)),
    ));
}

#[test]
fn a_reader_racing_with_a_writer_sees_old_or_new_words() {
    let medium = memory(4096);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut ctx = PersistCtx::new(0);
            for round in 0..2000_u64 {
                let word = (round % 2).wrapping_neg().to_le_bytes();
                medium.copy_in(&mut ctx, Off(64), &[&word.repeat(64)]);
            }
            over.store(true, Ordering::Release);
        });
        let mut out = [0; 512];
        while !over.load(Ordering::Acquire) {
            medium.copy_out(Off(64), &mut out);
            assert!(out.iter().all(|byte| [0, 0xff].contains(byte)));
            assert!([0, u64::MAX].contains(&medium.load(Off(64))));
        }
    });
}

#[test]
fn lines_fences_and_bytes_are_counted_exactly() {
    on_every_medium(|medium| {
        let spent = |act: &mut dyn FnMut(&mut PersistCtx)| {
            let mut ctx = PersistCtx::new(0);
            act(&mut ctx);
            let PersistCounters {
                lines,
                fences,
                bytes,
                ..
            } = ctx.counters;
            (lines, fences, bytes)
        };
        let copy = |at, len| spent(&mut |ctx| medium.copy_in(ctx, Off(at), &[&vec![1; len]]));
        assert_eq!(copy(0, 0), (0, 0, 0));
        assert_eq!(copy(0, 1), (1, 0, 1));
        assert_eq!(copy(64, 64), (1, 0, 64));
        assert_eq!(copy(56, 16), (2, 0, 16));
        assert_eq!(copy(16, 4096), (65, 0, 4096));
        assert_eq!(spent(&mut |ctx| medium.flush(ctx, Off(100), 0)), (0, 0, 0));
        assert_eq!(spent(&mut |ctx| medium.flush(ctx, Off(63), 2)), (2, 0, 0));
        assert_eq!(spent(&mut |ctx| medium.store(ctx, Off(8), 1)), (0, 0, 8));
        let drained = spent(&mut |ctx| {
            let nothing = medium.drain(ctx);
            assert_eq!(nothing, Ticket::DURABLE, "no write precedes the drain");
            medium.copy_in(ctx, Off(0), &[b"12345678"]);
            medium.copy_in(ctx, Off(8), &[b"12345678"]);
            let ticket = medium.drain(ctx);
            medium.wait(ticket).expect("nothing failed");
            assert_eq!(
                medium.drain(ctx),
                Ticket::DURABLE,
                "no write precedes the second drain"
            );
        });
        assert_eq!(drained, (2, 1, 16));
    });
}

#[test]
fn a_persist_is_one_flush_and_one_fence() {
    let medium = memory(4096);
    let mut ctx = PersistCtx::new(0);
    medium.store(&mut ctx, Off(128), 9);
    medium::persist(&medium, &mut ctx, Off(128), 8).expect("memory is never poisoned");
    assert_eq!(
        ctx.counters,
        PersistCounters {
            lines: 1,
            fences: 1,
            bytes: 8,
            syncs: 0
        }
    );
}

#[test]
fn growth_keeps_offsets_and_content_while_another_thread_reads() {
    let files = [Some(folder()), folder_in_memory()];
    let [on_disk, in_memory] = &files;
    let mut media: Vec<Box<dyn Medium>> = vec![Box::new(memory(BYTES as u64))];
    if let Some(folder) = on_disk {
        let options = as_file(Arc::new(KernelIo));
        media.push(Box::new(new_file(
            &pool_path(folder),
            BYTES as u64,
            &options,
        )));
    }
    if let Some(folder) = in_memory {
        media.push(Box::new(in_memory_file(folder)));
    }
    for medium in &media {
        let model = fill(&**medium, 3);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    assert!(medium.matches(Off(0), &model));
                }
            });
            for step in 2..20 {
                let len = (step * BYTES) as u64;
                medium.grow(len).expect("there is room");
                assert_eq!(medium.len(), len);
                medium.copy_in(&mut PersistCtx::new(1), Off(len - 8), &[b"the last"]);
            }
            over.store(true, Ordering::Release);
        });
        for step in 2..20 {
            let end = (step * BYTES) as u64;
            assert!(medium.matches(Off(end - 8), b"the last"));
            assert!(medium.matches(Off(end - BYTES as u64), &vec![0; BYTES - 8]));
        }
        let len = medium.len();
        medium
            .grow(8)
            .expect("a length below the present one is not an error");
        assert_eq!(medium.len(), len);
    }
}

fn in_memory_file(folder: &tempfile::TempDir) -> Mapped {
    use farbank_pm::media::{AnyMedium, OpenOptions, create_path};
    let made = create_path(
        &pool_path(folder),
        BYTES as u64,
        &OpenOptions::default(),
        &mut |_, _| {},
    );
    let Ok(AnyMedium::Mapped(mapped)) = made else {
        panic!("tmpfs is mapped: {made:?}")
    };
    assert_eq!(mapped.caps().kind, Kind::Dram);
    mapped
}

#[test]
fn prefaulting_reports_its_progress_and_changes_nothing() {
    const PART: u64 = 4 << 10;
    let medium = memory(BYTES as u64);
    let model = fill(&medium, 4);
    let mut told = Vec::new();
    medium.prefault(&mut |done, total| told.push((done, total)));
    assert_eq!(told.last(), Some(&(BYTES as u64, BYTES as u64)));
    medium.prefault_part(PART..2 * BYTES as u64);
    medium.prefault_part(2 * BYTES as u64..4 * BYTES as u64);
    assert!(medium.matches(Off(0), &model));
}

#[test]
fn prefetches_outside_the_medium_are_ignored() {
    on_every_medium(|medium| {
        medium.prefetch(Off(0), BYTES);
        medium.prefetch(Off(BYTES as u64 - 1), 2);
        medium.prefetch(Off(u64::MAX), 1);
    });
}

#[test]
fn accesses_outside_the_medium_panic() {
    let medium = memory(4096);
    let outside: [(&str, &dyn Fn()); 10] = [
        ("load past the end", &|| _ = medium.load(Off(4096))),
        ("load of a wrapping offset", &|| {
            _ = medium.load(Off(u64::MAX - 7))
        }),
        ("misaligned load", &|| _ = medium.load(Off(4))),
        ("copy_out across the end", &|| {
            medium.copy_out(Off(4090), &mut [0; 8])
        }),
        ("append_out across the end", &|| {
            medium.append_out(Off(4096), 1, &mut Vec::new())
        }),
        ("copy_in across the end", &|| {
            medium.copy_in(&mut PersistCtx::new(0), Off(4088), &[&[0; 9]])
        }),
        ("matches across the end", &|| {
            _ = medium.matches(Off(4095), b"12")
        }),
        ("crc across the end", &|| _ = medium.crc(Off(4095), 2, 0)),
        ("misaligned copy_in", &|| {
            medium.copy_in(&mut PersistCtx::new(0), Off(4), &[&[0; 4]])
        }),
        ("flush across the end", &|| {
            medium.flush(&mut PersistCtx::new(0), Off(4096), 1)
        }),
    ];
    for (what, act) in outside {
        let act = std::panic::AssertUnwindSafe(act);
        assert!(std::panic::catch_unwind(act).is_err(), "{what} must panic");
    }
}
