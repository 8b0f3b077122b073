//! Tests of words that bypass the cache, of words without any order, and of both together.

use super::*;
use crate::offset::LINE;

/// Returns a line whose eight words are all `n`.
fn line(n: u64) -> [u8; LINE] {
    let word = n.to_le_bytes();
    std::array::from_fn(|i| word[i % WORD])
}

fn words_of(at: Off) -> [Off; 8] {
    std::array::from_fn(|i| at.plus((i * WORD) as u64))
}

#[test]
fn words_of_a_whole_line_copied_in_survive_independently() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.copy_in(&mut ctx, B, &[&line(1)]);
    assert_eq!(images(&sim, words_of(B)).len(), 1 << 8);
    sim.drain(&mut ctx);
    assert_eq!(images(&sim, words_of(B)), BTreeSet::from([[1; 8]]));
}

#[test]
fn words_of_a_partial_line_copied_in_survive_in_order() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    let [before, after] = [B.0 - 16, B.0 + 64].map(Off);
    sim.copy_in(&mut ctx, before, &[&[1; 16 + 64 + 16]]);
    let one = 0x0101_0101_0101_0101;
    let prefixes = BTreeSet::from([[0, 0], [one, 0], [one, one]]);
    assert_eq!(images(&sim, [before, before.plus(8)]), prefixes);
    assert_eq!(images(&sim, [after, after.plus(8)]), prefixes);
    assert_eq!(images(&sim, words_of(B)).len(), 1 << 8);
    sim.drain(&mut ctx);
    assert_eq!(
        images(&sim, [before, B, after]).len(),
        1,
        "the flush of all is implied"
    );
}

#[test]
fn a_word_copied_in_twice_keeps_the_order_of_its_copies() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.copy_in(&mut ctx, A, &[&line(1)]);
    sim.copy_in(&mut ctx, A, &[&line(2)]);
    let pairs = (0..3).flat_map(|a| (0..3).map(move |b| [a, b]));
    assert_eq!(images(&sim, [A, A2]), pairs.collect());
}

#[test]
fn in_word_mode_no_two_words_of_a_line_are_ordered() {
    let (sim, mut ctx) = sim(Persistency::Word);
    sim.store(&mut ctx, A, 1);
    sim.store(&mut ctx, A2, 2);
    sim.store(&mut ctx, A, 3);
    let pairs = [0, 1, 3].into_iter().flat_map(|a| [0, 2].map(|b| [a, b]));
    assert_eq!(images(&sim, [A, A2]), pairs.collect());
    sim.flush(&mut ctx, A2, 8);
    sim.store(&mut ctx, A2, 4);
    sim.drain(&mut ctx);
    assert_eq!(
        images(&sim, [A, A2]),
        BTreeSet::from([[3, 2], [3, 4]]),
        "a flush is a line's, and covers what precedes it"
    );
}

#[test]
fn a_context_drains_only_the_words_that_it_copied_in() {
    for persistency in [Persistency::Adr, Persistency::Word] {
        let (sim, mut ctx) = sim(persistency);
        let mut other = PersistCtx::new(2);
        sim.copy_in(&mut ctx, A, &[&line(1)]);
        sim.copy_in(&mut other, B, &[&line(2)]);
        sim.drain(&mut other);
        assert_eq!(images(&sim, words_of(B)).len(), 1, "{persistency}");
        assert_eq!(images(&sim, words_of(A)).len(), 1 << 8, "{persistency}");
    }
}

#[test]
fn the_later_of_a_cached_and_a_copied_store_of_a_word_wins() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    sim.copy_in(&mut ctx, A, &[&line(2)]);
    sim.store(&mut ctx, A2, 3);
    sim.store(&mut ctx, A, 4);
    // The chain of cached stores is A=1, A2=3, A=4. The chain of each copied word is 2.
    let a = [[0, 2], [1, 2], [1, 2], [4, 4]];
    let a2 = [[0, 2], [0, 2], [3, 3], [3, 3]];
    let all = (0..4).flat_map(|kept| {
        let pairs = a[kept]
            .into_iter()
            .flat_map(move |a| a2[kept].map(|a2| [a, a2]));
        pairs.collect::<Vec<_>>()
    });
    assert_eq!(images(&sim, [A, A2]), all.collect());
    sim.drain(&mut ctx);
    assert_eq!(
        images(&sim, [A, A2]),
        BTreeSet::from([[2, 2], [2, 3], [4, 3]]),
        "the copy and what precedes it are durable"
    );
}

#[test]
fn equal_images_of_shared_words_appear_once() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.store(&mut ctx, A, 1);
    sim.copy_in(&mut ctx, A, &[&line(1)]);
    sim.store(&mut ctx, A, 1);
    let state = sim.crash_state();
    assert_eq!(state.images(1 << 16, 0).count(), 1 << 8);
}

#[test]
fn samples_keep_each_word_alone_and_all_but_it_and_include_random_images() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    let lines: u64 = 10;
    for i in 0..lines {
        sim.copy_in(&mut ctx, Off(i * 64), &[&line(1)]);
    }
    let state = sim.crash_state();
    let kept = |cut: &ImageCut| -> usize { state.survivors(cut).iter().map(|s| s.kept).sum() };
    let counts: Vec<usize> = state.images(1000, 0).map(|cut| kept(&cut)).collect();
    assert_eq!(counts.len(), 1000);
    assert_eq!(counts[..2], [0, 80]);
    assert!(counts[2..22].chunks(2).all(|pair| pair == [8, 72]), "lines");
    assert!(
        counts[22..182].chunks(2).all(|pair| pair == [1, 79]),
        "words"
    );

    let counts: Vec<usize> = state.images(100, 0).map(|cut| kept(&cut)).collect();
    let single = |n: &&usize| [0, 1, 8, 72, 79, 80].contains(*n);
    assert_eq!(counts.len(), 100);
    assert!(counts.iter().filter(single).count() <= 60, "{counts:?}");
}

#[test]
fn survivors_are_reported_by_word_if_words_have_chains_of_their_own() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    sim.copy_in(&mut ctx, A, &[&line(1)]);
    sim.copy_in(&mut ctx, B, &[&[1; 16]]);
    let state = sim.crash_state();
    let first = |image: &PoolImage| image.word(A) == 1 && image.word(A2) == 0;
    let mut cuts = state
        .images(1 << 12, 0)
        .filter(|cut| first(&state.image(cut)));
    let told: Vec<String> = state
        .survivors(&cuts.next().unwrap())
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        told,
        [
            "@0x0: 1 of 8 stores survived, words #.......",
            "@0x40: 0 of 2 stores survived"
        ]
    );
}

#[test]
fn crash_states_with_different_images_have_different_digests() {
    let digest = |persistency, program: &dyn Fn(&Sim, &mut PersistCtx)| {
        let (sim, mut ctx) = sim(persistency);
        program(&sim, &mut ctx);
        sim.crash_state().digest()
    };
    let adr = |program: &dyn Fn(&Sim, &mut PersistCtx)| digest(Persistency::Adr, program);
    let base = adr(&|sim, ctx| {
        sim.store(ctx, A, 1);
        sim.store(ctx, A2, 2);
        sim.store(ctx, B, 3);
    });
    let other_lines_first = adr(&|sim, ctx| {
        sim.store(ctx, B, 3);
        sim.store(ctx, A, 1);
        sim.flush(ctx, A, 8);
        sim.store(ctx, A2, 2);
    });
    assert_eq!(base, other_lines_first);
    let swapped = adr(&|sim, ctx| {
        sim.store(ctx, A2, 2);
        sim.store(ctx, A, 1);
        sim.store(ctx, B, 3);
    });
    let drained = adr(&|sim, ctx| {
        sim.store(ctx, A, 1);
        persist(sim, ctx, A, 8).unwrap();
        sim.store(ctx, A2, 2);
        sim.store(ctx, B, 3);
    });
    let copied = adr(&|sim, ctx| sim.copy_in(ctx, A, &[&line(1)]));
    let stored = adr(&|sim, ctx| words_of(A).iter().for_each(|&w| sim.store(ctx, w, 1)));
    let distinct = [base, swapped, drained, copied, stored];
    assert_eq!(BTreeSet::from(distinct).len(), distinct.len());

    let in_one = digest(Persistency::Page, &|sim, ctx| {
        sim.copy_in(ctx, A, &[&[1; 16]]);
    });
    let in_two = digest(Persistency::Page, &|sim, ctx| {
        sim.copy_in(ctx, A, &[&[1; 8]]);
        sim.copy_in(ctx, A2, &[&[1; 8]]);
    });
    assert_ne!(in_one, in_two, "a sector keeps only whole calls");
}
