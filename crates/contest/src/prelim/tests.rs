//! Tests of the engine's behaviour and of its known defects.

use farbank_pm::media::Mapped;
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, Sim};

use super::*;
use crate::harness::{StoredModel, threads_with_a_reader, value_of};
use crate::target::key_of;

fn open(terms: &ContestLimits, options: PrelimOptions) -> Prelim<Mapped> {
    let medium = Mapped::anonymous(terms.far_bytes).unwrap();
    Prelim::create(medium, terms, options).unwrap()
}

/// Returns limits and options for two threads, with 30 segments of two records in DRAM and 30 in far memory.
fn small() -> (ContestLimits, PrelimOptions) {
    let terms = ContestLimits {
        threads: 2,
        far_bytes: 30 * 200,
        hash_bits: 3,
        ..ContestLimits::preliminary(1 << 18)
    };
    let options = PrelimOptions {
        head_segments: 30,
        buffers: 3,
        flushers: 1,
        init_threads: 2,
        ..PrelimOptions::default()
    };
    (terms, options)
}

#[test]
fn in_the_contests_first_round_chains_have_about_three_records() {
    let terms = ContestLimits::preliminary(4096);
    let engine = open(&terms, PrelimOptions::default());
    let (mut model, mut rng) = (StoredModel::default(), Rng::new(1));
    let mut workers: Vec<_> = (0..terms.threads).map(|_| engine.worker()).collect();
    for write in 0..terms.operations {
        let number = if rng.below(500) == 0 {
            rng.below(write + 1)
        } else {
            write
        };
        model.set(&mut *workers[write as usize % 16], number, write, 80);
    }
    drop(workers);
    assert_eq!(engine.stats().inserts, terms.operations);
    assert!(engine.far_bytes() > terms.far_bytes * 9 / 10);
    let mut workers: Vec<_> = (0..terms.threads).map(|_| engine.worker()).collect();
    model.check(
        &mut *workers[0],
        terms.operations..terms.operations + 20_000,
    );
    let hot = |rng: &mut Rng| (0..8).map(|_| rng.below(50)).sum::<u64>();
    for write in 0..terms.operations / 4 {
        let worker = &mut *workers[write as usize % 16];
        let number = hot(&mut rng);
        if rng.below(20) == 0 && model.has(number) {
            model.set(worker, number, terms.operations + write, 80);
        } else {
            worker.get(&key_of(number), &mut Vec::new());
        }
    }
    model.check(&mut *workers[1], terms.operations..terms.operations + 10);
    drop(workers);
    let tally = engine.stats();
    assert!(tally.updates > terms.operations / 100);
    let hits: u64 = tally.depth.iter().sum();
    let hit = tally.probes_of_hits as f64 / hits as f64;
    let miss = tally.probes_of_misses as f64 / tally.misses as f64;
    assert!((2.35..2.65).contains(&hit), "{hit} records a hit");
    assert!((2.85..3.15).contains(&miss), "{miss} records a miss");
}

#[test]
fn contents_match_a_model_in_dram_buffers_and_far_memory() {
    let (terms, options) = small();
    let tunings = [
        options,
        PrelimOptions {
            read_cache: false,
            init_threads: 1,
            head_update: HeadUpdate::Locked(StripeLock::Spin),
            ..options
        },
        PrelimOptions {
            cache_absorbs: false,
            value_reuse: false,
            head_update: HeadUpdate::Locked(StripeLock::Mutex),
            ..options
        },
        PrelimOptions {
            append_updates: false,
            ..options
        },
    ];
    for options in tunings {
        let engine = open(&terms, options);
        let (mut model, mut rng) = (StoredModel::default(), Rng::new(9));
        for write in 0..400 {
            // Each worker does only a few sets, so that buffers with few records are flushed.
            let mut worker = engine.worker();
            for _ in 0..rng.below(6) {
                model.set(&mut *worker, rng.below(18), write * 10 + rng.below(10), 80);
                model.check(&mut *worker, 0..20);
            }
        }
    }
}

#[test]
fn a_reader_sees_whole_and_newest_values_while_threads_write() {
    let options = PrelimOptions {
        prev_first: true,
        ..PrelimOptions::default()
    };
    let writes_through = PrelimOptions {
        cache_absorbs: false,
        head_update: HeadUpdate::Locked(StripeLock::Mutex),
        ..options
    };
    let in_place = PrelimOptions {
        append_updates: false,
        ..options
    };
    let uncached = PrelimOptions {
        read_cache: false,
        ..options
    };
    let (set_phase, get_phase) = (u64::MAX, 0);
    for (operations, options) in [
        (set_phase, options),
        (set_phase, writes_through),
        (set_phase, in_place),
        (get_phase, options),
        (get_phase, writes_through),
        (get_phase, uncached),
    ] {
        let terms = ContestLimits {
            operations,
            ..ContestLimits::preliminary(1 << 14)
        };
        let engine = open(&terms, options);
        threads_with_a_reader(&engine, 3, (80, 80));
    }
}

#[test]
fn a_flush_is_one_sequential_write_and_one_drain() {
    let sizes = RecordCounts {
        far_bytes: 1 << 20,
        segment_records: 1000,
        head_segments: 0,
        buffers: 1,
    };
    let records = RecordStore::new(Mapped::anonymous(sizes.far_bytes).unwrap(), &sizes);
    records.begin(3, 0);
    let (slab, at) = records.slab_of(3000 + 999);
    slab.put(at, [1, 2, 3, 4], &[5; 80]);
    let mut ctx = PersistCtx::new(0);
    let filled = FullBuffer {
        buffer: 0,
        segment: 3,
        records: 1000,
    };
    records.flush(&mut ctx, filled, &mut Vec::new()).unwrap();
    let mut out = Vec::new();
    assert!(matches!(
        records.look(3999, [1, 2, 3, 4], &mut out),
        RecordLookup::Same
    ));
    assert_eq!(out, [5; 80]);
    let (from, to) = (300_000_u64, 400_000_u64);
    let lines = to.div_ceil(64) - from / 64;
    let counters = ctx.counters;
    assert_eq!(
        (counters.fences, counters.bytes, counters.lines),
        (1, 100_000, lines)
    );
}

#[test]
fn scaled_down_it_uses_nearly_all_dram_the_limits_allow() {
    let terms = ContestLimits::preliminary(64);
    let engine = open(&terms, PrelimOptions::default());
    let dram: u64 = engine.dram().iter().map(|(_, bytes)| bytes).sum();
    assert!(
        dram <= terms.dram_bytes,
        "{dram} bytes of DRAM, {} allowed",
        terms.dram_bytes
    );
    assert!(dram > terms.dram_bytes * 19 / 20);
}

/// Defect 1.
#[test]
fn no_key_survives_a_restart() {
    let (terms, options) = small();
    let sim = Sim::new(terms.far_bytes, Persistency::Eadr);
    let engine = Prelim::create(sim.clone(), &terms, options).unwrap();
    let mut model = StoredModel::default();
    let mut worker = engine.worker();
    for number in 0..60 {
        model.set(&mut *worker, number, 0, 80);
    }
    model.check(&mut *worker, 0..200);
    drop((worker, engine));
    let again = Prelim::create(sim, &terms, options).unwrap();
    StoredModel::default().check(&mut *again.worker(), 0..200);
}

/// Defect 2.
#[test]
fn between_the_writes_of_head_and_prev_a_bucket_shows_only_its_newest_key() {
    for prev_first in [false, true] {
        let (terms, options) = small();
        let terms = ContestLimits {
            hash_bits: 0,
            ..terms
        };
        let engine = open(
            &terms,
            PrelimOptions {
                prev_first,
                ..options
            },
        );
        let (mut worker, mut model) = (engine.worker(), StoredModel::default());
        for number in 0..3 {
            model.set(&mut *worker, number, 0, 80);
        }
        // The steps of `append`, stopped after the update of the head.
        let (core, n) = (&*engine.core, 3);
        let (slab, at) = core.records.slab_of(n);
        slab.put(at, words(&key_of(9)), &value_of(9, 0, 80));
        let old = core.replace_head(0, n, |old| {
            if prev_first {
                slab.set_prev(at, old);
            }
        });
        let cut = if prev_first { vec![] } else { vec![0, 1, 2] };
        assert_eq!(model.wrong(&mut *worker), cut);
        slab.set_prev(at, old);
        assert_eq!(model.wrong(&mut *worker), []);
    }
}

/// Defect 3.
#[test]
fn when_record_numbers_are_used_up_updates_are_in_place_and_new_keys_refused() {
    let (terms, options) = small();
    let engine = open(&terms, options);
    let (mut worker, mut model) = (engine.worker(), StoredModel::default());
    // Half of the 60 segments belong to this thread.
    for write in 0..60 {
        model.set(&mut *worker, write % 20, write, 80);
    }
    for write in 60..200 {
        model.set(&mut *worker, write % 20, write, 80);
        model.check(&mut *worker, 0..20);
    }
    assert_eq!(
        worker.set(&key_of(20), &value_of(20, 0, 80)),
        Err(Error::Full)
    );
    model.check(&mut *worker, 0..30);
    drop(worker);
    assert_eq!((engine.stats().inserts, engine.stats().updates), (60, 140));
}

#[test]
fn value_lengths_other_than_80_are_refused() {
    let terms = ContestLimits::finals(1 << 14);
    let medium = Mapped::anonymous(terms.far_bytes).unwrap();
    let why = Prelim::create(medium, &terms, PrelimOptions::default())
        .err()
        .unwrap();
    assert_eq!(
        why.to_string(),
        "values of 80 to 1024 bytes, expected 80 bytes only: use ContestLimits::preliminary"
    );
}
