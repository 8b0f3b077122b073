//! Tests of locked operations and of faults by place.

use super::*;
use crate::fault::{self, Fault, PlaceFault};

#[test]
fn a_locked_operation_completes_its_contexts_flushes_whether_it_succeeds_or_not() {
    for old in [0, 9] {
        let (sim, mut ctx) = sim(Persistency::Adr);
        let mut other = PersistCtx::new(2);
        sim.drain_on_cas(true);
        sim.store(&mut ctx, A, 1);
        sim.flush(&mut ctx, A, 8);
        sim.store(&mut other, S, 2);
        sim.flush(&mut other, S, 8);
        let swapped = sim.cas(&mut ctx, B, old, 7).is_ok();
        let b = if swapped { vec![0, 7] } else { vec![0] };
        let all = b.into_iter().flat_map(|b| [[1, 0, b], [1, 2, b]]);
        assert_eq!(images(&sim, [A, S, B]), all.collect(), "from {old}");
    }
}

#[test]
fn a_locked_operation_that_completes_flushes_is_a_crash_point() {
    let (sim, mut ctx) = sim(Persistency::Adr);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    sim.observe(Some(Arc::new(move |state: CrashState| {
        tell.lock().unwrap().push(state.images(10, 0).count());
    })));
    sim.drain_on_cas(true);
    sim.store(&mut ctx, A, 1);
    sim.flush(&mut ctx, A, 8);
    sim.cas(&mut ctx, B, 0, 1).unwrap();
    sim.cas(&mut ctx, B, 1, 2).unwrap();
    assert_eq!(
        *told.lock().unwrap(),
        [2],
        "before the first, which took a choice away"
    );
}

#[test]
fn drain_on_cas_survives_a_kill_and_has_no_effect_on_a_file() {
    for (persistency, left) in [(Persistency::Word, 1), (Persistency::Page, 2)] {
        let (sim, mut ctx) = sim(persistency);
        sim.drain_on_cas(true);
        let sim = sim.crash_state().killed();
        sim.store(&mut ctx, A, 1);
        sim.flush(&mut ctx, A, 8);
        assert_eq!(sim.cas(&mut ctx, S, 1, 2), Err(0));
        assert_eq!(images(&sim, [A]).len(), left, "{persistency}");
    }
}

/// Flushes three lines, copies in three that begin and end within a line, and drains.
fn program(sim: &Sim, ctx: &mut PersistCtx) -> Ticket {
    for i in 0..3 {
        sim.store(ctx, Off(i * 64 + 8), 1);
    }
    sim.flush(ctx, Off(8), 128 + 8);
    sim.copy_in(ctx, Off(1024 + 8), &[&[1; 128]]);
    sim.drain(ctx)
}

/// Returns the fault that drops this part of the action `act` in `program`.
fn fault_in<R>(
    program: impl Fn(&Sim, &mut PersistCtx) -> R,
    (act, part, hit): (SourceAction, FaultPart, Option<u64>),
) -> Fault {
    let (sim, mut ctx) = sim(Persistency::Adr);
    let places = Arc::new(SourceLines::new());
    sim.count_places(Arc::clone(&places));
    program(&sim, &mut ctx);
    let place = places.list().into_iter().find(|p| p.act == act).unwrap();
    let at = brief(place.at);
    Fault::Place(PlaceFault { act, at, part, hit })
}

fn fault(act: SourceAction, part: FaultPart, hit: Option<u64>) -> Fault {
    fault_in(program, (act, part, hit))
}

/// Returns which of the six lines of `program` are durable after a run and a drain outside of it.
fn durable(sim: &Sim, ctx: &mut PersistCtx) -> [bool; 6] {
    sim.drain(ctx);
    let state = sim.crash_state();
    let none = state.image(&state.images(1, 0).next().unwrap());
    [8, 64 + 8, 128 + 8, 1024 + 8, 1024 + 64, 1024 + 128].map(|at| none.word(Off(at)) != 0)
}

#[test]
fn a_fault_drops_its_lines_and_they_are_not_counted() {
    const F: bool = false;
    for (act, part, left) in [
        (
            SourceAction::Flush,
            FaultPart::Whole,
            [F, F, F, true, true, true],
        ),
        (
            SourceAction::Flush,
            FaultPart::First,
            [F, true, true, true, true, true],
        ),
        (
            SourceAction::Flush,
            FaultPart::Last,
            [true, true, F, true, true, true],
        ),
        (
            SourceAction::CopyIn,
            FaultPart::Whole,
            [true, true, true, F, F, F],
        ),
        (
            SourceAction::CopyIn,
            FaultPart::First,
            [true, true, true, F, true, true],
        ),
        (
            SourceAction::CopyIn,
            FaultPart::Last,
            [true, true, true, true, true, F],
        ),
    ] {
        let fault = fault(act, part, None);
        let (sim, mut ctx) = sim(Persistency::Adr);
        fault::with(Some(&fault), || program(&sim, &mut ctx));
        assert_eq!(durable(&sim, &mut ctx), left, "{fault}");
        let lines = left.iter().filter(|&&d| d).count() as u64;
        let spent = ctx.counters;
        assert_eq!(
            (spent.lines, spent.bytes, spent.fences),
            (lines, 24 + 128, 1),
            "{fault}"
        );
    }
}

#[test]
fn the_first_and_the_last_part_of_a_single_line_are_the_whole_line() {
    let program = |sim: &Sim, ctx: &mut PersistCtx| {
        sim.store(ctx, A2, 1);
        sim.flush(ctx, A2, 8);
        sim.drain(ctx)
    };
    for part in FaultPart::ALL {
        let fault = fault_in(program, (SourceAction::Flush, part, None));
        let (sim, mut ctx) = sim(Persistency::Adr);
        fault::with(Some(&fault), || program(&sim, &mut ctx));
        assert_eq!(images(&sim, [A2]).len(), 2, "{fault}");
        assert_eq!(ctx.counters.fences, 0, "the drain had nothing to order");
    }
}

#[test]
fn a_dropped_drain_leaves_its_flushes_to_the_contexts_next_drain() {
    let fault = fault(SourceAction::Drain, FaultPart::Whole, None);
    let (sim, mut ctx) = sim(Persistency::Adr);
    let ticket = fault::with(Some(&fault), || program(&sim, &mut ctx));
    assert_eq!(ticket, Ticket::DURABLE, "the caller gets a durable ticket");
    assert_eq!(ctx.counters.fences, 0);
    assert_eq!(images(&sim, [Off(8), Off(72), Off(136)]).len(), 8);
    assert_eq!(durable(&sim, &mut ctx), [true; 6]);
}

#[test]
fn a_dropped_drain_of_a_file_gets_the_newest_ticket_which_does_not_cover_it() {
    let fault = fault(SourceAction::Drain, FaultPart::Whole, None);
    let (sim, mut ctx) = sim(Persistency::Page);
    let mut other = PersistCtx::new(2);
    sim.store(&mut other, Off(8192), 1);
    sim.flush(&mut other, Off(8192), 8);
    let newest = sim.drain(&mut other);
    let ticket = fault::with(Some(&fault), || program(&sim, &mut ctx));
    assert_eq!(ticket, newest);
    sim.sync().unwrap();
    assert_eq!(sim.poll(ticket), Ok(true));
    assert_eq!(
        images(&sim, [Off(8192), Off(8)]),
        BTreeSet::from([[1, 0], [1, 1]])
    );
}

#[test]
fn a_fault_can_drop_one_execution_only_and_each_medium_counts_its_own() {
    let fault = fault(SourceAction::Flush, FaultPart::Whole, Some(2));
    let lines = |runs: usize| {
        let (sim, mut ctx) = sim(Persistency::Adr);
        fault::with(Some(&fault), || {
            for _ in 0..runs {
                program(&sim, &mut ctx);
            }
        });
        ctx.counters.lines
    };
    assert_eq!([1, 2, 3, 1].map(lines), [6, 6 + 3, 6 + 3 + 6, 6]);
}

#[test]
fn a_fault_of_another_source_line_has_no_effect() {
    let elsewhere = fault_in(
        |sim, ctx| sim.flush(ctx, A, 8),
        (SourceAction::Flush, FaultPart::Whole, None),
    );
    let (sim, mut ctx) = sim(Persistency::Adr);
    fault::with(Some(&elsewhere), || program(&sim, &mut ctx));
    assert_eq!(durable(&sim, &mut ctx), [true; 6]);
}
