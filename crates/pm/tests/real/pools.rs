//! The superblock: one damaged copy loses nothing, two are a clear error, a crash leaves the old or the new one.

use std::sync::Arc;

use farbank_pm::media::{KernelIo, Mapped};
use farbank_pm::pool::{Pool, PoolError, PoolLayout, PoolRoot, ROOT_WORDS};
use farbank_pm::sim::{CrashState, Persistency, PoolImage, Sim};
use farbank_pm::{Medium, Off, PersistCtx};

use crate::common::{Rng, as_file, folder, memory, new_file, old_file, pool_path};

const BYTES: u64 = 64 << 10;
const LAYOUT: PoolLayout = PoolLayout {
    segment_bytes: 8 << 10,
};
const COPIES: [usize; 2] = [0, 4096];
const COPY_BYTES: usize = 512;
const CHECKSUM: usize = 496;

fn root(seed: u64) -> PoolRoot {
    let mut rng = Rng(seed);
    std::array::from_fn(|_| rng.next())
}

/// Returns the bytes of a pool whose root is `root(1)`.
fn pool_bytes() -> Vec<u8> {
    let mut ctx = PersistCtx::new(0);
    let pool = Pool::create(memory(BYTES), &mut ctx, &LAYOUT).expect("a sound layout");
    pool.set_root(&mut ctx, &root(1))
        .expect("memory is never poisoned");
    let mut bytes = vec![0; BYTES as usize];
    pool.medium().copy_out(Off(0), &mut bytes);
    bytes
}

fn with(bytes: &[u8]) -> Mapped {
    let medium = memory(bytes.len() as u64);
    medium.copy_in(&mut PersistCtx::new(0), Off(0), &[bytes]);
    medium
}

fn open(bytes: &[u8]) -> Result<Pool<Mapped>, PoolError> {
    Pool::open(with(bytes), &mut PersistCtx::new(0))
}

fn refused(bytes: &[u8]) -> String {
    open(bytes)
        .expect_err("the open must be refused")
        .to_string()
}

/// Changes one copy of the superblock in `bytes` and corrects its checksum.
fn forge(bytes: &mut [u8], copy: usize, change: impl FnOnce(&mut [u8])) {
    let block = &mut bytes[COPIES[copy]..COPIES[copy] + COPY_BYTES];
    change(block);
    let sum = xxhash_rust::xxh3::xxh3_128(&block[..CHECKSUM]).to_le_bytes();
    block[CHECKSUM..].copy_from_slice(&sum);
}

#[test]
fn an_opened_pool_has_the_properties_it_was_created_with() {
    let mut ctx = PersistCtx::new(0);
    let pool = Pool::create(memory(BYTES), &mut ctx, &LAYOUT).expect("a sound layout");
    assert_eq!((pool.segments(), pool.segment_bytes()), (7, 8 << 10));
    assert_eq!(pool.segment(0), Off(8 << 10));
    assert_eq!(pool.segment(6), Off(BYTES - (8 << 10)));
    assert_eq!(pool.root(), [0; ROOT_WORDS]);
    pool.set_root(&mut ctx, &root(2))
        .expect("memory is never poisoned");
    let (id, seed) = (pool.id(), pool.seed("index"));
    let pool = Pool::open(pool.into_medium(), &mut ctx).expect("it is a pool");
    assert_eq!((pool.id(), pool.seed("index")), (id, seed));
    assert_eq!((pool.segments(), pool.root()), (7, root(2)));
    assert!(pool.created_unix_s() > 0);
    assert_ne!(pool.seed("index"), pool.seed("records"));
}

#[test]
fn each_pool_has_its_own_secret_and_debug_output_hides_it() {
    let make = || Pool::create(memory(BYTES), &mut PersistCtx::new(0), &LAYOUT).expect("sound");
    let (one, other) = (make(), make());
    assert_ne!(one.id(), other.id());
    let printed = format!("{one:?}");
    assert!(!printed.contains(&format!("{:?}", one.id())), "{printed}");
}

#[test]
fn the_first_segment_is_aligned_so_that_huge_pages_fit() {
    for (segment_bytes, first) in [
        (4 << 10, 8 << 10),
        (8 << 10, 8 << 10),
        (64 << 10, 64 << 10),
        (2 << 20, 2 << 20),
    ] {
        assert_eq!(PoolLayout { segment_bytes }.first_segment(), first);
    }
    assert_eq!(
        PoolLayout {
            segment_bytes: 64 << 20
        }
        .first_segment(),
        2 << 20
    );
}

#[test]
fn an_impossible_layout_is_refused() {
    for segment_bytes in [0, 1, 4095, 2048, 6 << 10, 2 << 30, u64::MAX] {
        let made = Pool::create(
            memory(BYTES),
            &mut PersistCtx::new(0),
            &PoolLayout { segment_bytes },
        );
        let refused = made.expect_err("the layout is impossible").to_string();
        assert!(refused.contains(&segment_bytes.to_string()), "{refused}");
    }
    for bytes in [0, 4096, 8192, 12 << 10] {
        let made = Pool::create(memory(bytes), &mut PersistCtx::new(0), &LAYOUT);
        assert!(
            matches!(made, Err(PoolError::Layout(_))),
            "{bytes} bytes hold no segment"
        );
    }
}

#[test]
fn any_damaged_byte_of_one_copy_is_repaired_from_the_other() {
    let whole = pool_bytes();
    for copy in COPIES {
        for at in copy..copy + COPY_BYTES {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            let pool = open(&bytes).expect("the other copy is whole");
            assert_eq!(pool.root(), root(1));
            assert!(
                pool.medium().matches(Off(0), &whole),
                "byte {at} was repaired"
            );
        }
    }
}

#[test]
fn any_damaged_byte_of_both_copies_is_a_clear_error() {
    let whole = pool_bytes();
    for at in 0..COPY_BYTES {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x01;
        bytes[COPIES[1] + at] ^= 0x01;
        let said = refused(&bytes);
        let what = if at < 8 { "not a pool" } else { "both copies" };
        assert!(said.contains(what), "byte {at}: {said}");
    }
}

#[test]
fn a_copy_that_is_completely_lost_is_repaired() {
    let whole = pool_bytes();
    for copy in COPIES {
        for junk in [0, 0xff] {
            let mut bytes = whole.clone();
            bytes[copy..copy + 4096].fill(junk);
            let pool = open(&bytes).expect("the other copy is whole");
            let mut mended = [0; COPY_BYTES];
            pool.medium().copy_out(Off(copy as u64), &mut mended);
            assert_eq!(mended, whole[copy..copy + COPY_BYTES]);
        }
    }
}

#[test]
fn the_newer_of_two_copies_is_used_and_written_to_both() {
    let old = pool_bytes();
    let mut ctx = PersistCtx::new(0);
    let pool = open(&old).expect("it is a pool");
    pool.set_root(&mut ctx, &root(5))
        .expect("memory is never poisoned");
    let mut new = vec![0; old.len()];
    pool.medium().copy_out(Off(0), &mut new);
    for newer in COPIES {
        let mut bytes = old.clone();
        bytes[newer..newer + COPY_BYTES].copy_from_slice(&new[newer..newer + COPY_BYTES]);
        let pool = open(&bytes).expect("both copies are whole");
        assert_eq!(pool.root(), root(5));
        assert!(pool.medium().matches(Off(0), &new));
    }
}

#[test]
fn opening_a_healthy_pool_changes_nothing() {
    let bytes = pool_bytes();
    let pool = open(&bytes).expect("it is a pool");
    assert!(pool.medium().matches(Off(0), &bytes));
}

#[test]
fn the_error_for_a_file_that_is_not_a_pool_describes_its_content() {
    assert!(refused(&[0; 0]).contains("0 bytes"));
    assert!(refused(&[0; 4096]).contains("4096 bytes"));
    assert!(refused(&[0; 8192]).contains("zeros"));
    let mut text = vec![b' '; 8192];
    text[..9].copy_from_slice(b"SQLite fo");
    assert!(refused(&text).contains("SQLite f"));
    for seed in 0..200 {
        let mut bytes = Rng(seed).bytes(16 << 10);
        refused(&bytes);
        for copy in COPIES {
            bytes[copy..copy + 8].copy_from_slice(b"FARBANK\n");
        }
        assert!(refused(&bytes).contains("both copies"));
    }
}

#[test]
fn unknown_versions_and_features_are_refused_by_number() {
    let forged = |at: usize, value: u64| {
        let mut bytes = pool_bytes();
        for copy in 0..2 {
            forge(&mut bytes, copy, |block| {
                block[at..at + 8].copy_from_slice(&value.to_le_bytes());
            });
        }
        bytes
    };
    let said = refused(&forged(8, 512 << 32 | 77));
    assert!(said.contains("version 77"), "{said}");
    let said = refused(&forged(32, 1 << 5 | 1 << 63));
    assert!(said.contains("incompatible bit 5, bit 63"), "{said}");
    let said = refused(&forged(24, 1 << 2));
    assert!(
        said.contains("must not write") && said.contains("bit 2"),
        "{said}"
    );
    open(&forged(16, 1 << 9)).expect("unknown compatible features are allowed");
}

#[test]
fn unknown_compatible_features_are_preserved() {
    let mut bytes = pool_bytes();
    for copy in 0..2 {
        forge(&mut bytes, copy, |block| block[16] = 0x20);
    }
    let mut ctx = PersistCtx::new(0);
    let pool = open(&bytes).expect("unknown compatible features are allowed");
    pool.set_root(&mut ctx, &root(3))
        .expect("memory is never poisoned");
    let mut bits = [0; 8];
    pool.medium().copy_out(Off(16), &mut bits);
    assert_eq!(bits[0], 0x20);
}

#[test]
fn a_superblock_with_impossible_values_is_refused() {
    for (at, value) in [
        (56, 0),
        (56, 12_345),
        (56, 1 << 40),
        (64, 0),
        (64, 1 << 32),
        (64, !0),
    ] {
        let mut bytes = pool_bytes();
        for copy in 0..2 {
            forge(&mut bytes, copy, |block| {
                block[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
            });
        }
        let said = refused(&bytes);
        assert!(
            said.contains("the superblock at 0x0") && said.contains(&value.to_string()),
            "{said}"
        );
    }
}

#[test]
fn a_medium_shorter_than_its_pool_is_refused_with_both_lengths() {
    let bytes = pool_bytes();
    for len in (8192..BYTES as usize).step_by(4096) {
        let said = refused(&bytes[..len]);
        assert!(
            said.contains(&BYTES.to_string()) && said.contains(&len.to_string()),
            "{said}"
        );
    }
}

#[test]
fn a_pool_forged_to_have_the_last_update_number_can_still_be_updated() {
    let mut bytes = pool_bytes();
    for copy in [0, 1] {
        forge(&mut bytes, copy, |block| {
            block[80..88].copy_from_slice(&(1_u64 << 62).to_le_bytes());
        });
    }
    let (mut ctx, mut pool) = (PersistCtx::new(0), open(&bytes).expect("it is a pool"));
    for seed in [2, 3] {
        pool.set_root(&mut ctx, &root(seed))
            .expect("memory is never poisoned");
        pool = Pool::open(pool.into_medium(), &mut ctx).expect("it is still a pool");
        assert_eq!(pool.root(), root(seed));
    }
}

#[test]
fn concurrent_root_updates_are_serialised() {
    const THREADS: u64 = 4;
    const UPDATES: u64 = 50;
    let pool = Pool::create(memory(BYTES), &mut PersistCtx::new(0), &LAYOUT).expect("sound");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let pool = &pool;
            scope.spawn(move || {
                let mut ctx = PersistCtx::new(thread as u32);
                for update in 0..UPDATES {
                    let words = [thread << 32 | update; ROOT_WORDS];
                    pool.set_root(&mut ctx, &words)
                        .expect("memory is never poisoned");
                }
            });
        }
    });
    let last = pool.root();
    assert!(
        last.iter().all(|word| *word == last[0]),
        "an update is atomic"
    );
    let medium = pool.into_medium();
    let copies = COPIES.map(|at| {
        let mut copy = [0; COPY_BYTES];
        medium.copy_out(Off(at as u64), &mut copy);
        copy
    });
    assert!(copies[0] == copies[1], "both copies are the last update");
    let pool = Pool::open(medium, &mut PersistCtx::new(0)).expect("it is a pool");
    assert_eq!(pool.root(), last);
}

#[test]
fn growth_keeps_the_content_and_never_shrinks_the_pool() {
    let folder = folder();
    let path = pool_path(&folder);
    let mut ctx = PersistCtx::new(0);
    let file = new_file(&path, BYTES, &as_file(Arc::new(KernelIo)));
    let pool = Pool::create(file, &mut ctx, &LAYOUT).expect("a sound layout");
    let at = pool.segment(6);
    pool.medium().copy_in(&mut ctx, at, &[b"the last segment"]);
    pool.grow(&mut ctx, 20).expect("there is room");
    pool.grow(&mut ctx, 20)
        .expect("the present length is not an error");
    pool.grow(&mut ctx, 19).expect_err("a pool cannot shrink");
    assert_eq!((pool.segments(), pool.segment(6)), (20, at));
    pool.medium()
        .copy_in(&mut ctx, pool.segment(19), &[&[7; 8 << 10]]);
    drop(pool);
    let pool = Pool::open(old_file(&path), &mut ctx).expect("it is a pool");
    assert_eq!(pool.segments(), 20);
    assert!(pool.medium().matches(at, b"the last segment"));
    assert!(pool.medium().matches(pool.segment(19), &[7; 8 << 10]));
}

/// Runs `act` on a simulated pool, and `check` on each image that a crash during `act` can leave.
fn crash_everywhere(
    act: impl Fn(&Pool<Sim>, &mut PersistCtx),
    check: impl Fn(Pool<Sim>) + Send + Sync + 'static,
) {
    let check = Arc::new(check);
    for persistency in Persistency::ALL {
        let mut ctx = PersistCtx::new(0);
        let sim = Sim::new(BYTES, persistency);
        let pool = Pool::create(sim.clone(), &mut ctx, &LAYOUT).expect("a sound layout");
        pool.set_root(&mut ctx, &root(1)).expect("nothing failed");
        let crashes = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let (counted, checked) = (Arc::clone(&crashes), Arc::clone(&check));
        sim.observe(Some(Arc::new(move |state: CrashState| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let powers = state.images(400, 1).map(|cut| state.image(&cut));
            let mut sims: Vec<Sim> = powers
                .map(|image: PoolImage| Sim::from_image(image, persistency))
                .collect();
            sims.push(state.killed());
            for sim in sims {
                let pool = Pool::open(sim.clone(), &mut PersistCtx::new(1));
                checked(pool.expect("a crash during an update leaves a pool"));
                // A power cut right after this recovery loses nothing.
                let recovered =
                    Pool::open(sim, &mut PersistCtx::new(1)).expect("the first open succeeded");
                let after = recovered.medium().crash_state();
                for cut in after.images(50, 1) {
                    let cut = Sim::from_image(after.image(&cut), persistency);
                    let again = Pool::open(cut, &mut PersistCtx::new(2)).expect("a recovered pool");
                    assert_eq!(again.root(), recovered.root());
                    assert_eq!(again.segments(), recovered.segments());
                }
            }
        })));
        act(&pool, &mut ctx);
        sim.observe(None);
        assert!(
            crashes.load(std::sync::atomic::Ordering::Relaxed) >= 2,
            "{persistency}"
        );
    }
}

#[test]
fn a_crash_during_set_root_leaves_the_old_or_the_new_words() {
    crash_everywhere(
        |pool, ctx| pool.set_root(ctx, &root(2)).expect("nothing failed"),
        |pool| assert!([root(1), root(2)].contains(&pool.root())),
    );
}

#[test]
fn a_crash_during_growth_leaves_the_old_or_the_new_length() {
    crash_everywhere(
        |pool, ctx| pool.grow(ctx, 11).expect("nothing failed"),
        |pool| {
            assert!([7, 11].contains(&pool.segments()));
            assert_eq!(pool.root(), root(1));
        },
    );
}

#[test]
fn an_acknowledged_set_root_survives_a_power_cut() {
    for persistency in Persistency::ALL {
        let mut ctx = PersistCtx::new(0);
        let sim = Sim::new(BYTES, persistency);
        let pool = Pool::create(sim.clone(), &mut ctx, &LAYOUT).expect("a sound layout");
        for seed in 1..5 {
            pool.set_root(&mut ctx, &root(seed))
                .expect("nothing failed");
            let state = sim.crash_state();
            for cut in state.images(100, 1) {
                let image = Sim::from_image(state.image(&cut), persistency);
                let pool = Pool::open(image, &mut PersistCtx::new(1)).expect("it is a pool");
                assert_eq!(pool.root(), root(seed));
            }
        }
    }
}

#[test]
fn equal_but_volatile_copies_of_a_killed_process_are_durable_after_an_open() {
    let old = pool_bytes();
    let mut ctx = PersistCtx::new(0);
    let pool = open(&old).expect("it is a pool");
    pool.set_root(&mut ctx, &root(7))
        .expect("memory is never poisoned");
    let mut new = vec![0; BYTES as usize];
    pool.medium().copy_out(Off(0), &mut new);
    for persistency in Persistency::ALL {
        let sim = Sim::from_image(PoolImage::from_bytes(&old), persistency);
        for copy in COPIES {
            sim.copy_in(&mut ctx, Off(copy as u64), &[&new[copy..copy + COPY_BYTES]]);
        }
        let sim = sim.crash_state().killed();
        let pool = Pool::open(sim.clone(), &mut PersistCtx::new(1)).expect("it is a pool");
        assert_eq!(pool.root(), root(7));
        let state = sim.crash_state();
        for cut in state.images(100, 1) {
            let cut = Sim::from_image(state.image(&cut), persistency);
            let pool = Pool::open(cut, &mut PersistCtx::new(2)).expect("the first open succeeded");
            assert_eq!(pool.root(), root(7), "{persistency}");
        }
    }
}

#[test]
fn an_update_on_a_poisoned_medium_fails_and_keeps_the_old_words() {
    let mut ctx = PersistCtx::new(0);
    let sim = Sim::new(BYTES, Persistency::Page);
    let pool = Pool::create(sim.clone(), &mut ctx, &LAYOUT).expect("a sound layout");
    pool.set_root(&mut ctx, &root(1))
        .expect("nothing failed yet");
    sim.fail_drain(1);
    pool.set_root(&mut ctx, &root(2))
        .expect_err("the drain failed");
    assert_eq!(pool.root(), root(1));
    pool.grow(&mut ctx, 9).expect_err("the medium is poisoned");
    assert_eq!(pool.segments(), 7);
}
