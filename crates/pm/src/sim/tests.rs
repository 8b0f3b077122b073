//! Litmus tests: the stores that a power cut can and cannot lose in each persistency mode.

use std::collections::BTreeSet;

mod acts;
mod lazy;
mod words;

use super::*;
use crate::medium::{Medium, Ticket, persist};

const A: Off = Off(0);
const A2: Off = Off(8);
const B: Off = Off(64);
/// The second sector.
const S: Off = Off(512);

fn sim(persistency: Persistency) -> (Sim, PersistCtx) {
    (Sim::new(64 << 10, persistency), PersistCtx::new(1))
}

/// Returns the values of `words` in all images of this moment.
fn images<const N: usize>(sim: &Sim, words: [Off; N]) -> BTreeSet<[u64; N]> {
    let state = sim.crash_state();
    let images = state.images(1 << 16, 0);
    assert!(images.exhaustive());
    images
        .map(|cut| {
            let image = state.image(&cut);
            assert_eq!(
                image.hash(),
                cut.hash,
                "the hash is known before the image is made"
            );
            words.map(|at| image.word(at))
        })
        .collect()
}

#[test]
fn a_line_keeps_a_prefix_of_its_stores() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    sim.store(&mut ctx, A2, 2);
    assert_eq!(
        images(&sim, [A, A2]),
        BTreeSet::from([[0, 0], [1, 0], [1, 2]])
    );
}

#[test]
fn lines_are_not_ordered_without_a_flush_and_a_drain() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    sim.store(&mut ctx, B, 2);
    assert_eq!(
        images(&sim, [A, B]),
        BTreeSet::from([[0, 0], [0, 2], [1, 0], [1, 2]])
    );

    let (sim, mut ctx) = self::sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    sim.flush(&mut ctx, A, 8);
    sim.store(&mut ctx, B, 2);
    assert_eq!(
        images(&sim, [A, B]).len(),
        4,
        "a flush alone orders nothing"
    );
    assert_eq!(sim.drain(&mut ctx), Ticket::DURABLE);
    assert_eq!(images(&sim, [A, B]), BTreeSet::from([[1, 0], [1, 2]]));
}

#[test]
fn a_drain_without_a_flush_does_nothing() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    sim.drain(&mut ctx);
    assert_eq!(images(&sim, [A]), BTreeSet::from([[0], [1]]));
}

#[test]
fn a_flush_covers_only_the_stores_before_it() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    sim.flush(&mut ctx, A, 8);
    sim.store(&mut ctx, A2, 2);
    sim.drain(&mut ctx);
    assert_eq!(images(&sim, [A, A2]), BTreeSet::from([[1, 0], [1, 2]]));
}

#[test]
fn a_drain_covers_only_the_flushes_of_its_own_context() {
    for persistency in [Persistency::Adr, Persistency::Page] {
        let (sim, mut ctx) = sim(persistency);
        let mut other = PersistCtx::new(2);
        sim.store(&mut ctx, A, 1);
        sim.flush(&mut ctx, A, 8);
        sim.store(&mut other, S, 2);
        sim.flush(&mut other, S, 8);
        sim.drain(&mut other);
        sim.sync().unwrap();
        assert_eq!(
            images(&sim, [A, S]),
            BTreeSet::from([[0, 2], [1, 2]]),
            "{persistency}"
        );
    }
}

#[test]
fn a_drain_by_another_context_leaves_later_stores_to_the_line_volatile() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    let mut other = PersistCtx::new(2);
    sim.store(&mut ctx, A, 1);
    sim.flush(&mut other, A, 8);
    sim.drain(&mut other);
    sim.store(&mut ctx, A, 2);
    sim.flush(&mut other, A, 8);
    sim.store(&mut ctx, A, 3);
    sim.drain(&mut other);
    assert_eq!(images(&sim, [A]), BTreeSet::from([[2], [3]]));
}

#[test]
fn compare_and_swap_stores_and_does_not_drain() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    sim.flush(&mut ctx, A, 8);
    assert_eq!(sim.cas(&mut ctx, B, 0, 7), Ok(0));
    assert_eq!(sim.cas(&mut ctx, B, 0, 8), Err(7));
    assert_eq!(images(&sim, [A, B]).len(), 4);
}

#[test]
fn words_copied_in_survive_separately_and_need_only_a_drain() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.copy_in(&mut ctx, A, &[&[0xff; 8]]);
    sim.drain(&mut ctx);
    sim.copy_in(&mut ctx, A, &[&[0x11; 2], &[], &[0x11; 10]]);
    let (full, ones, tail) = (u64::MAX, 0x1111_1111_1111_1111, 0x1111_1111);
    let words = images(&sim, [A, A2]);
    assert_eq!(words, BTreeSet::from([[full, 0], [ones, 0], [ones, tail]]));
    sim.drain(&mut ctx);
    assert_eq!(images(&sim, [A, A2]), BTreeSet::from([[ones, tail]]));
    let mut back = [0; 15];
    sim.copy_out(Off(4), &mut back);
    assert_eq!(back[6..10], [0x11, 0x11, 0, 0]);
    assert!(sim.matches(Off(4), &back) && !sim.matches(Off(5), &back));
    assert_eq!(sim.crc(Off(4), 15, 9), crc32c::crc32c_append(9, &back));
    assert_eq!(
        (ctx.counters.bytes, ctx.counters.lines, ctx.counters.fences),
        (20, 2, 2)
    );
}

#[test]
fn under_eadr_a_store_is_durable_and_there_is_a_crash_point_between_any_two_words() {
    let (sim, mut ctx) = sim(Persistency::Eadr);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&seen);
    sim.observe(Some(Arc::new(move |state: CrashState| {
        let cuts: Vec<_> = state.images(10, 0).collect();
        assert_eq!(cuts.len(), 1);
        let image = state.image(&cuts[0]);
        tell.lock()
            .unwrap()
            .push([A, A2, B].map(|at| image.word(at)));
    })));
    sim.copy_in(&mut ctx, A, &[&[1; 16]]);
    sim.store(&mut ctx, B, 3);
    sim.drain(&mut ctx);
    let one = 0x0101_0101_0101_0101;
    assert_eq!(
        *seen.lock().unwrap(),
        [[0, 0, 0], [one, 0, 0], [one, one, 0]]
    );
    assert_eq!(images(&sim, [A, A2, B]), BTreeSet::from([[one, one, 3]]));
}

#[test]
fn any_subset_of_unsynced_sectors_survives_and_none_is_torn() {
    let (sim, mut ctx) = sim(Persistency::Page);
    sim.copy_in(&mut ctx, A, &[&[1; 16]]);
    sim.copy_in(&mut ctx, S, &[&[2; 8]]);
    let (one, two) = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202);
    assert_eq!(
        images(&sim, [A, A2, S]),
        BTreeSet::from([[0, 0, 0], [one, one, 0], [0, 0, two], [one, one, two]])
    );
}

#[test]
fn a_sector_may_keep_its_content_between_two_calls() {
    let (sim, mut ctx) = sim(Persistency::Page);
    sim.copy_in(&mut ctx, A, &[&[1; 16]]);
    sim.copy_in(&mut ctx, A, &[&[0; 16]]);
    sim.copy_in(&mut ctx, A, &[&[2; 16]]);
    let [one, two] = [1, 2].map(|n| 0x0101_0101_0101_0101 * n);
    assert_eq!(
        images(&sim, [A, A2]),
        BTreeSet::from([[0, 0], [one, one], [two, two]])
    );
}

#[test]
fn tickets_of_a_file_become_durable_in_order_and_only_by_a_sync() {
    let (sim, mut ctx) = sim(Persistency::Page);
    let turned = Arc::new(Mutex::new(0));
    let count = Arc::clone(&turned);
    sim.on_durable(Arc::new(move || *count.lock().unwrap() += 1));
    assert_eq!(sim.drain(&mut ctx), Ticket::DURABLE, "nothing to drain");
    sim.copy_in(&mut ctx, A, &[&[1; 8]]);
    let first = sim.drain(&mut ctx);
    sim.copy_in(&mut ctx, S, &[&[2; 8]]);
    let second = sim.drain(&mut ctx);
    assert!(first < second);
    assert_eq!(
        sim.drain(&mut ctx),
        Ticket::DURABLE,
        "there is nothing to drain"
    );
    assert_eq!((sim.poll(first), sim.poll(second)), (Ok(false), Ok(false)));
    assert_eq!(images(&sim, [A, S]).len(), 4);
    sim.wait(first).unwrap();
    assert_eq!((sim.poll(first), sim.poll(second)), (Ok(true), Ok(true)));
    assert_eq!(images(&sim, [A, S]).len(), 1);
    assert_eq!(*turned.lock().unwrap(), 1);
}

#[test]
fn a_kill_keeps_every_visible_byte_as_volatile_as_it_was() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    sim.flush(&mut ctx, A, 8);
    let killed = sim.crash_state().killed();
    assert_eq!(killed.load(A), 1);
    killed.drain(&mut ctx);
    assert_eq!(
        images(&killed, [A]),
        BTreeSet::from([[0], [1]]),
        "the flush of the killed process has no effect"
    );
    persist(&killed, &mut ctx, A, 8).unwrap();
    assert_eq!(images(&killed, [A]), BTreeSet::from([[1]]));
    assert_eq!(
        images(&sim, [A]),
        BTreeSet::from([[0], [1]]),
        "the original is untouched"
    );
}

#[test]
fn too_many_images_are_sampled_adversarial_first_and_deterministically() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    for line in 0..40 {
        sim.store(&mut ctx, Off(line * 64), line + 1);
    }
    let state = sim.crash_state();
    let images = state.images(200, 7);
    assert!(!images.exhaustive());
    let cuts: Vec<ImageCut> = images.collect();
    assert_eq!(cuts.len(), 200);
    let kept = |cut: &ImageCut| state.survivors(cut).iter().filter(|s| s.kept > 0).count();
    assert_eq!(
        cuts[..4].iter().map(kept).collect::<Vec<_>>(),
        [0, 40, 1, 39]
    );
    let hashes: BTreeSet<u64> = cuts.iter().map(|c| c.hash).collect();
    assert_eq!(hashes.len(), 200);
    let again: Vec<u64> = state.images(200, 7).map(|c| c.hash).collect();
    assert_eq!(again, cuts.iter().map(|c| c.hash).collect::<Vec<_>>());
}

#[test]
fn a_failed_drain_poisons_the_medium_and_its_ticket_never_becomes_durable() {
    for persistency in Persistency::ALL {
        let (sim, mut ctx) = sim(persistency);
        sim.fail_drain(2);
        persist(&sim, &mut ctx, A, 8).unwrap();
        sim.copy_in(&mut ctx, S, &[&[1; 8]]);
        let ticket = sim.drain(&mut ctx);
        assert!(sim.poll(ticket).is_err() && sim.wait(ticket).is_err());
        assert!(persist(&sim, &mut ctx, S, 8).is_err(), "it is poisoned");
        assert_eq!(
            sim.poll(Ticket::DURABLE),
            Ok(true),
            "a durable ticket stays durable"
        );
    }
}

#[test]
fn source_lines_are_recorded_through_generic_code_with_their_crash_points() {
    fn through<M: Medium>(medium: &M, ctx: &mut PersistCtx) {
        medium.store(ctx, A, 1);
        medium.flush(ctx, A, 8);
        medium.drain(ctx);
    }
    let (sim, mut ctx) = sim(Persistency::Adr);
    let places = Arc::new(SourceLines::new());
    sim.count_places(Arc::clone(&places));
    sim.observe(Some(Arc::new(|state: CrashState| {
        let place = state.place().unwrap();
        assert!(place.file().ends_with("tests.rs") && state.moment == CrashMoment::Drain);
    })));
    through(&sim, &mut ctx);
    through(&sim, &mut ctx);
    let list = places.list();
    assert_eq!(
        list.iter().map(|p| p.act).collect::<Vec<_>>(),
        [
            SourceAction::Store,
            SourceAction::Flush,
            SourceAction::Drain
        ]
    );
    assert!(
        list.windows(2)
            .all(|p| p[0].at.line() + 1 == p[1].at.line()),
        "{list:?}"
    );
    assert!(list.iter().all(|p| (p.hits, p.crashes) == (2, 2)));
}

#[test]
fn growth_appends_zeros_and_keeps_all_bytes() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    persist(&sim, &mut ctx, A, 8).unwrap();
    sim.store(&mut ctx, A, 5);
    sim.grow(100_000).unwrap();
    assert_eq!(
        (sim.len(), sim.load(A), sim.load(Off(99_992))),
        (100_000, 5, 0)
    );
    assert_eq!(
        PoolImage::from_bytes(&sim.visible().to_bytes()).hash(),
        sim.visible().hash()
    );
}

#[test]
fn an_empty_drain_never_fails_and_a_panic_leaves_the_medium_usable() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    let outside = std::panic::AssertUnwindSafe(|| sim.load(Off(64 << 10)));
    assert!(std::panic::catch_unwind(outside).is_err());
    sim.fail_drain(1);
    assert_eq!(
        sim.drain(&mut ctx),
        Ticket::DURABLE,
        "it had nothing to drain"
    );
    assert!(!sim.is_poisoned());
}

#[test]
#[should_panic(expected = "outside")]
fn an_offset_beyond_the_end_panics() {
    let (sim, _) = sim(Persistency::Adr);
    sim.load(Off(64 << 10));
}
