//! Lazy memory against all images: a reader gets the same set of results from both.

use std::collections::BTreeSet;

use super::*;
use crate::rng::Rng;

/// The results of all reads of a reader.
type Transcript = Vec<u64>;

/// Runs `reader` under every script. Returns the number of scripts.
fn leaves(state: &CrashState, mut reader: impl FnMut(&Sim)) -> usize {
    let (mut script, mut count) = (Vec::new(), 0);
    loop {
        let sim = Sim::lazy(state, &script);
        reader(&sim);
        count += 1;
        match next_script(&sim.decisions()) {
            Some(next) => script = next,
            None => return count,
        }
    }
}

/// A random reader, whose next access depends on its earlier results. It uses a checksum only to
/// compare it with those of contents that were written whole (PM-LAZY-3).
struct Reader<'a> {
    state: &'a CrashState,
    seed: u64,
    range: u64,
}

impl Reader<'_> {
    fn read(&self, sim: &Sim) -> Transcript {
        let mut seen: Transcript = vec![self.seed];
        let mut ctx = PersistCtx::new(9);
        let mut own: Vec<(u64, u64)> = Vec::new();
        for _ in 0..6 {
            let rng = &mut Rng::new(seen.iter().fold(0, |a, &b| Rng::new(a ^ b).draw()));
            let word = rng.below(self.range / 8) * 8;
            let len = (1 + rng.below(150)).min(self.range - word) as usize;
            let at = Off(word + rng.below(8).min(len as u64 - 1));
            let len = len - (at.0 - word) as usize;
            match rng.below(10) {
                0..3 => seen.push(sim.load(Off(word))),
                3 => {
                    let mut bytes = vec![0; len.min(20)];
                    sim.copy_out(at, &mut bytes);
                    sim.append_out(at, len.min(20), &mut bytes);
                    seen.extend(bytes.iter().map(|&b| u64::from(b)));
                }
                4 => {
                    let versions = self.versions(&own);
                    let whole = &versions[rng.below(versions.len() as u64) as usize];
                    let bytes = &whole.to_bytes()[at.0 as usize..][..len];
                    seen.push(u64::from(sim.matches(at, bytes)));
                }
                5 => {
                    let crc = sim.crc(at, len, 7);
                    let whole = |image: &PoolImage| {
                        Sim::from_image(image.clone(), self.state.persistency).crc(at, len, 7)
                    };
                    let known = self.versions(&own).iter().any(|image| whole(image) == crc);
                    seen.push(if known { u64::from(crc) } else { u64::MAX });
                }
                6 => {
                    let versions = self.versions(&own);
                    let whole = &versions[rng.below(versions.len() as u64) as usize];
                    let wanted = crc32c::crc32c(&whole.to_bytes()[at.0 as usize..][..len]);
                    seen.push(u64::from(sim.crc_is(at, len, 0, wanted)));
                }
                7 => {
                    let versions = self.versions(&own);
                    let known =
                        |image: &PoolImage| image.to_bytes()[at.0 as usize..][..len].to_vec();
                    let known: Vec<Vec<u8>> = versions.iter().skip(1).map(known).collect();
                    // The first byte decides how many bytes the checksum covers, as a length in a header.
                    let vouched = |bytes: &[u8]| {
                        let own = if bytes[0] == 1 { len } else { len.div_ceil(2) };
                        let whole = known.iter().any(|k| k[..own] == bytes[..own]);
                        if whole { own } else { 0 }
                    };
                    let mut bytes = vec![0; len];
                    if sim.copy_out_if(at, &mut bytes, &vouched) {
                        let vouched = vouched(&bytes);
                        seen.extend(bytes[..vouched].iter().map(|&b| u64::from(b)));
                    }
                }
                8 => {
                    own.push((word, 77));
                    sim.store(&mut ctx, Off(word), 77);
                    sim.flush(&mut ctx, Off(word), 8);
                    let ticket = sim.drain(&mut ctx);
                    sim.wait(ticket).unwrap();
                }
                _ => {
                    let swapped = sim.cas(&mut ctx, Off(word), 1, 78);
                    own.extend(swapped.is_ok().then_some((word, 78)));
                    seen.push(swapped.map_or_else(|found| found, |_| 1));
                }
            }
        }
        seen
    }

    /// Returns the durable content, and that after each call, with the reader's own stores.
    fn versions(&self, own: &[(u64, u64)]) -> Vec<PoolImage> {
        let stores = || self.state.queues.values().flatten();
        let calls: BTreeSet<u64> = stores().map(|s| s.call).chain([0]).collect();
        let version = |&call: &u64| {
            let mut image = self.state.durable.clone();
            for store in stores().filter(|s| s.call <= call) {
                image.set_word(Off(store.word), store.value);
            }
            own.iter().for_each(|o| image.set_word(Off(o.0), o.1));
            image
        };
        calls.iter().map(version).collect()
    }
}

/// Returns a crash state of a small random program.
fn moment(persistency: Persistency, seed: u64, range: u64) -> CrashState {
    let rng = &mut Rng::new(seed);
    let sim = Sim::new(range, persistency);
    let mut contexts = [PersistCtx::new(0), PersistCtx::new(1)];
    for _ in 0..3 + rng.below(10) {
        let ctx = &mut contexts[rng.below(2) as usize];
        let grain = if rng.one_in(2) { 8 } else { 64 };
        let at = Off(rng.below(range / grain) * grain);
        let len = (8 + rng.below(130)).min(range - at.0) as usize;
        match rng.below(6) {
            0 | 1 => sim.store(ctx, at, rng.below(3)),
            2 => drop(sim.cas(ctx, at, sim.load(at), rng.below(3))),
            3 => {
                let words = (0..len).map(|i| (rng.below(3) * u64::from(i % 8 == 0)) as u8);
                sim.copy_in(ctx, at, &[&words.collect::<Vec<_>>()]);
            }
            4 => sim.flush(ctx, at, len),
            _ => {
                let ticket = sim.drain(ctx);
                if rng.one_in(2) {
                    sim.wait(ticket).unwrap();
                }
            }
        }
    }
    sim.crash_state()
}

#[test]
fn a_reader_gets_the_same_results_from_lazy_memory_as_from_all_images() {
    for persistency in Persistency::ALL {
        let (mut all_images, mut all_leaves, mut seeds, mut mixed) = (0, 0, 0, 0);
        for seed in 0..600 {
            let range = (1 + seed % 3) * persistency.unit_bytes() as u64;
            let state = moment(persistency, seed, range);
            let images = state.images(4096, 0);
            if !images.exhaustive() {
                continue;
            }
            let reader = Reader {
                state: &state,
                seed,
                range,
            };
            let mut eager = BTreeSet::new();
            for cut in images {
                let sim = Sim::from_image(state.image(&cut), persistency);
                eager.insert(reader.read(&sim));
                all_images += 1;
            }
            let mut lazy = BTreeSet::new();
            all_leaves += leaves(&state, |sim| {
                let seen = reader.read(sim);
                let cut = sim.cut().unwrap();
                let image = state.image(&cut);
                assert_eq!(image.hash(), cut.hash, "{persistency}, seed {seed}");
                let again = reader.read(&Sim::from_image(image, persistency));
                assert_eq!(seen, again, "{persistency}, seed {seed}: cut image");
                lazy.insert(seen);
            });
            assert_eq!(lazy, eager, "{persistency}, seed {seed}");
            seeds += 1;
            let shares = |queue: &Vec<_>| chains::is_mixed(queue, &chains::ChainIndex::of(queue));
            mixed += usize::from(state.queues.values().any(shares));
        }
        let figures = format!(
            "{persistency}: {seeds} seeds, {mixed} of them with words of several chains, \
             {all_images} images, {all_leaves} leaves"
        );
        println!("{figures}");
        assert!(seeds > 150 && all_leaves <= all_images, "{figures}");
        assert_eq!(mixed > 40, persistency == Persistency::Adr, "{figures}");
    }
}

/// Returns, for each script, the number of choices of each decision.
fn choices(state: &CrashState, reader: impl Fn(&Sim)) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    leaves(state, |sim| {
        reader(sim);
        all.push(sim.decisions().iter().map(|d| d.of).collect());
    });
    all
}

#[test]
fn only_words_that_are_read_are_decided() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    for line in 0..50 {
        sim.store(&mut ctx, Off(line * 64), 1);
        sim.store(&mut ctx, Off(line * 64 + 8), 2);
    }
    let state = sim.crash_state();
    assert_eq!(choices(&state, |sim| drop(sim.visible())), [[]]);
    assert_eq!(
        choices(&state, |sim| assert_eq!(sim.load(Off(64 * 60)), 0)),
        [[]]
    );
    let both = |sim: &Sim| {
        // The second word survives only after the first.
        let second = sim.load(A2);
        let first = sim.load(A);
        assert!(first >= second / 2);
    };
    assert_eq!(choices(&state, both), [vec![2, 2], vec![2, 2], vec![2]]);
}

#[test]
fn a_word_with_one_possible_value_needs_no_decision() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    persist(&sim, &mut ctx, A, 8).unwrap();
    sim.store(&mut ctx, A, 1);
    sim.copy_in(&mut ctx, A, &[&[1, 0, 0, 0, 0, 0, 0, 0], &[9; 56]]);
    let state = sim.crash_state();
    assert_eq!(choices(&state, |sim| assert_eq!(sim.load(A), 1)), [[]]);
}

#[test]
fn a_comparison_decides_only_equal_or_not_equal() {
    for (persistency, bytes) in [(Persistency::Word, 200), (Persistency::Page, 2048)] {
        let (sim, mut ctx) = sim(persistency);
        sim.copy_in(&mut ctx, A, &[&vec![1; bytes]]);
        sim.copy_in(&mut ctx, A, &[&vec![2; bytes]]);
        let state = sim.crash_state();
        for wanted in [0, 1, 2] {
            let wanted = vec![wanted; bytes];
            let count = leaves(&state, |sim| {
                sim.matches(A, &wanted);
            });
            assert_eq!(count, 2, "{persistency}");
        }
        assert_eq!(
            leaves(&state, |sim| assert!(!sim.matches(A, &vec![3; bytes]))),
            1
        );
        let all_same = |sim: &Sim| {
            let third = sim.matches(Off(3), &vec![2; bytes - 5]);
            assert_eq!(
                third,
                sim.matches(Off(3), &vec![2; bytes - 5]),
                "a decision does not change"
            );
        };
        assert_eq!(leaves(&state, all_same), 2);
    }
}

#[test]
fn a_checksum_is_that_of_whole_content_or_of_torn_content() {
    let (sim, mut ctx) = sim(Persistency::Word);
    sim.copy_in(&mut ctx, A, &[&[1; 200]]);
    sim.copy_in(&mut ctx, A, &[&[2; 200]]);
    let state = sim.crash_state();
    let whole = [0, 1, 2].map(|n| crc32c::crc32c(&[n; 200]));
    let mut seen = Vec::new();
    leaves(&state, |sim| {
        let crc = sim.crc(A, 200, 0);
        seen.push(whole.iter().position(|&w| w == crc));
        assert_eq!(sim.crc(A, 200, 0), crc, "a decision does not change");
        let bytes = state.image(&sim.cut().unwrap()).to_bytes();
        assert_eq!(crc32c::crc32c(&bytes[..200]), crc);
    });
    assert_eq!(seen, [Some(0), Some(1), Some(2), None]);
}

#[test]
fn a_check_that_can_never_pass_is_no_decision() {
    let (sim, mut ctx) = sim(Persistency::Word);
    sim.copy_in(&mut ctx, A, &[&[1; 200]]);
    sim.copy_in(&mut ctx, A, &[&[2; 200]]);
    let state = sim.crash_state();
    let never = |sim: &Sim| {
        assert!(!sim.crc_is(A, 200, 0, crc32c::crc32c(&[3; 200])));
        assert!(!sim.copy_out_if(A, &mut [0; 200], &|_| 0));
    };
    assert_eq!(choices(&state, never), [[]]);
    let second = |sim: &Sim| {
        let mut bytes = [9; 200];
        let whole = sim.copy_out_if(A, &mut bytes, &|b| usize::from(b[..100] == [2; 100]) * 100);
        assert_eq!(whole, bytes[..100] == [2; 100]);
        assert_eq!(sim.crc_is(A, 100, 0, crc32c::crc32c(&[2; 100])), whole);
    };
    assert_eq!(choices(&state, second), [[2], [2]]);
}

#[test]
fn each_torn_record_is_a_single_choice() {
    let (sim, mut ctx) = sim(Persistency::Word);
    let records: Vec<Off> = (0..6).map(|i| Off(i * 208)).collect();
    for at in &records {
        sim.copy_in(&mut ctx, *at, &[&[1; 208]]);
    }
    let state = sim.crash_state();
    let whole = crc32c::crc32c(&[1; 208]);
    let reader = |sim: &Sim| {
        let held = records.iter().filter(|at| sim.crc_is(**at, 208, 0, whole));
        held.for_each(|at| assert!(sim.matches(*at, &[1; 208])));
    };
    assert_eq!(leaves(&state, reader), 1 << 6);
}

#[test]
fn a_range_decided_to_differ_differs_in_some_word() {
    let (sim, mut ctx) = sim(Persistency::Word);
    sim.copy_in(&mut ctx, A, &[&[1; 16]]);
    let state = sim.crash_state();
    let mut seen = BTreeSet::new();
    let count = leaves(&state, |sim| {
        let whole = sim.matches(A, &[1; 16]);
        let unwritten = sim.matches(A, &[0; 16]);
        seen.insert((whole, unwritten, sim.load(A) != 0, sim.load(A2) != 0));
    });
    let (f, t) = (false, true);
    let all = [(t, f, t, t), (f, t, f, f), (f, f, t, f), (f, f, f, t)];
    assert_eq!((seen, count), (BTreeSet::from(all), 4));
}

#[test]
fn a_decided_word_excludes_versions() {
    let (sim, mut ctx) = sim(Persistency::Word);
    sim.copy_in(&mut ctx, A, &[&[1; 64]]);
    sim.copy_in(&mut ctx, A, &[&[2; 64]]);
    let state = sim.crash_state();
    let reader = |sim: &Sim| {
        if sim.load(A2) == 0 {
            let crc = sim.crc(A, 64, 0);
            assert!([1, 2].iter().all(|&n| crc != crc32c::crc32c(&[n; 64])));
        }
    };
    assert_eq!(leaves(&state, reader), 2 + 2);
}

#[test]
fn words_that_the_reader_stores_need_no_decision() {
    let (sim, mut ctx) = sim(Persistency::Page);
    sim.store(&mut ctx, A, 1);
    sim.copy_in(&mut ctx, A, &[&[2; 12]]);
    let state = sim.crash_state();
    let overwrite = |sim: &Sim| {
        sim.store(&mut PersistCtx::new(0), A, 7);
        assert_eq!(sim.load(A), 7);
        sim.copy_in(&mut PersistCtx::new(0), A2, &[&[8; 8]]);
        assert!(sim.matches(A2, &[8; 8]));
    };
    assert_eq!(choices(&state, overwrite), [[]]);
    let in_part = |sim: &Sim| sim.copy_in(&mut PersistCtx::new(0), A2, &[&[8; 2]]);
    assert_eq!(
        choices(&state, in_part),
        [[2], [2]],
        "the other bytes of the word are decided"
    );
    let swap = |sim: &Sim| {
        let found = sim
            .cas(&mut PersistCtx::new(0), A, 1, 7)
            .unwrap_or_else(|found| found);
        assert!(found != 1 || sim.load(A) == 7);
    };
    assert_eq!(choices(&state, swap), [[3], [3], [3]]);
}

#[test]
fn survivors_report_decided_units_only() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    for value in 1..5 {
        sim.store(&mut ctx, A, value);
        sim.store(&mut ctx, A2, value);
        sim.store(&mut ctx, B, value);
    }
    sim.copy_in(&mut ctx, S, &[&[1; 64]]);
    let lazy = Sim::lazy(&sim.crash_state(), &[2, 1]);
    assert!(lazy.survivors().is_empty());
    assert_eq!(lazy.load(A), 2);
    assert_ne!(lazy.load(S), 0);
    let told: Vec<String> = lazy.survivors().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "@0x0: 3 of 8 stores survived, 4 were lost, the others never read",
            "@0x200: 1 of 8 stores survived, 0 were lost, the others never read, words #???????",
        ]
    );
}

#[test]
#[should_panic(expected = "says 2 at decision 0, which has 2 choices")]
fn a_script_of_another_crash_panics() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    Sim::lazy(&sim.crash_state(), &[2]).load(A);
}

#[test]
#[should_panic(expected = "lazy memory cannot crash")]
fn lazy_memory_has_no_crash_points() {
    let (sim, _) = sim(Persistency::Adr);
    drop(Sim::lazy(&sim.crash_state(), &[]).crash_state());
}

#[test]
fn memory_that_is_not_lazy_decides_nothing() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    assert_eq!(sim.load(A), 1);
    assert!(sim.decisions().is_empty() && sim.survivors().is_empty() && sim.cut().is_none());
    assert_eq!(next_script(&[]), None);
}
