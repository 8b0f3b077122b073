//! What a set and a get of `v1` and `v2` ask of far memory: counted. How long that takes: modelled, without
//! anything the processor does besides.

use farbank_contest::{ContestLimits, Engine, v1, v1::V1, v2, v2::V2, v2::WritesPerRecord};
use farbank_pm::media::Mapped;
use farbank_pm::model::{AccessCounts, Machine, MachineConfig, Modelled, Trace};

use crate::support;

const KEYS: u64 = 40_000;
/// So that a record of `v2` has 160 bytes.
const VALUE_BYTES: usize = 138;

/// What one phase took, an operation.
struct Cost {
    counts: AccessCounts,
    ns: f64,
}

impl Cost {
    fn each(&self, count: impl Fn(&AccessCounts) -> u64) -> f64 {
        count(&self.counts) as f64 / KEYS as f64
    }
}

/// Has one worker do something to each key in turn.
fn phase(trace: &Trace, mut operation: impl FnMut(u64)) -> Cost {
    let mut machine = Machine::new(MachineConfig::study(6));
    let mut next = 0..KEYS;
    machine.run(1, |_, steps| {
        let Some(number) = next.next() else {
            return false;
        };
        operation(number);
        trace.take(steps);
        true
    });
    let outcome = machine.outcome();
    Cost {
        counts: outcome.total(),
        ns: outcome.elapsed_ps as f64 / 1_000.0 / KEYS as f64,
    }
}

/// Inserts, updates and reads of an engine.
fn costs(engine: &dyn Engine, trace: &Trace) -> [Cost; 3] {
    let (mut worker, mut out) = (engine.worker(), Vec::new());
    trace.record(true);
    let mut sets = |turn| {
        phase(trace, |number| {
            let key = support::key_of(0, number);
            let value = support::value(&key, turn, VALUE_BYTES);
            worker.set(&key, &value).unwrap();
        })
    };
    let (inserts, updates) = (sets(1), sets(2));
    let gets = phase(trace, |number| {
        assert!(worker.get(&support::key_of(0, number), &mut out));
    });
    [inserts, updates, gets]
}

fn terms() -> ContestLimits {
    ContestLimits::finals(4096).with_threads(1)
}

fn medium() -> (Modelled<Mapped>, Trace) {
    let medium = Modelled::new(Mapped::anonymous(terms().far_bytes).unwrap());
    let trace = medium.trace();
    trace.record(false);
    (medium, trace)
}

fn of_v1() -> [Cost; 3] {
    let (medium, trace) = medium();
    let tuning = v1::V1Tuning {
        cache_slots: Some(0),
        ..v1::V1Tuning::PUBLISHED
    };
    costs(&V1::create(medium, &terms(), tuning).unwrap(), &trace)
}

fn of_v2(writes: WritesPerRecord) -> [Cost; 3] {
    let (medium, trace) = medium();
    let tuning = v2::V2Tuning {
        writes,
        cache_slots: Some(0),
        ..v2::V2Tuning::PUBLISHED
    };
    costs(&V2::create(medium, &terms(), tuning).unwrap(), &trace)
}

/// Segments and spares are a few writes more.
fn about(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 0.02
}

#[test]
fn a_set_is_two_writes_in_v1_and_one_in_v2() {
    let fences = |cost: &Cost| cost.each(|c| c.fences);
    let [inserts, updates, _] = of_v1();
    assert!(about(fences(&inserts), 2.0) && about(fences(&updates), 2.0));
    for (writes, each) in [(WritesPerRecord::One, 1.0), (WritesPerRecord::Two, 2.0)] {
        let [inserts, updates, _] = of_v2(writes);
        assert!(about(fences(&inserts), each), "{writes:?}");
        assert!(about(fences(&updates), each), "{writes:?}");
    }
}

#[test]
fn v2_reads_far_memory_for_values_only_and_v1_for_keys_too() {
    let loads = |cost: &Cost| cost.each(|c| c.loads);
    let [inserts, updates, gets] = of_v2(WritesPerRecord::One);
    assert_eq!((inserts.counts.loads, updates.counts.loads), (0, 0));
    // 138 bytes lie in three lines, or, where they begin late in one, in four.
    assert!((2.9..3.6).contains(&loads(&gets)), "{}", loads(&gets));
    let [inserts, updates, more] = of_v1();
    assert!(inserts.counts.loads > 0);
    // A key is found after 1.3 records or so of a chain that is not full yet.
    assert!((1.3..2.0).contains(&loads(&updates)), "{}", loads(&updates));
    assert!(loads(&more) > loads(&gets) + 1.0, "{}", loads(&more));
}

#[test]
fn in_the_model_one_write_is_faster_than_two_by_more_than_half() {
    let [v1, ..] = of_v1();
    let [one, ..] = of_v2(WritesPerRecord::One);
    let [two, ..] = of_v2(WritesPerRecord::Two);
    println!(
        "v1 {:.0}, v2 {:.0}, in two writes {:.0} ns",
        v1.ns, one.ns, two.ns
    );
    assert!(v1.ns / one.ns > 1.5, "v1 {} ns, v2 {} ns", v1.ns, one.ns);
    assert!(two.ns / one.ns > 1.5, "{} ns, {} ns", two.ns, one.ns);
}
