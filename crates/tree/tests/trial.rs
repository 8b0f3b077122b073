//! The tree under disasters, and the trials under faults.

use farbank_tree::sim_test::{FaultMoment, InjectedFault, SearchPlan, SearchReport, TreeVariant};

/// Runs trials, all of which must hold.
fn tried(plan: &SearchPlan, seeds: std::ops::Range<u64>) -> SearchReport {
    let run = plan.run(seeds, &mut |_| true);
    if let Some(caught) = &run.caught {
        panic!(
            "{plan:?}, seed {}, {:?}: {}",
            caught.seed, caught.disaster, caught.violation
        );
    }
    run
}

fn plan(system: TreeVariant, disaster: InjectedFault) -> SearchPlan {
    SearchPlan {
        disaster: Some(disaster),
        ..SearchPlan::new(system)
    }
}

#[test]
fn what_clients_are_told_can_be_explained() {
    for system in [
        TreeVariant::Safe,
        TreeVariant::Published,
        TreeVariant::FgPlus,
        TreeVariant::Fg,
    ] {
        let run = tried(&plan(system, InjectedFault::None), 0..40);
        assert_eq!(run.sum.failed + run.sum.cut_off, 0, "{system:?}");
        assert!(
            run.sum.splits > 100 && run.sum.merges > 20,
            "{system:?}: {run:?}"
        );
    }
}

#[test]
fn a_compute_server_that_crashes_or_pauses_at_any_moment_does_no_harm() {
    for disaster in [InjectedFault::Crash, InjectedFault::Pause] {
        let run = tried(&plan(TreeVariant::Safe, disaster), 0..120);
        for moment in &FaultMoment::ALL[1..] {
            let reached = run.reached(disaster, *moment);
            assert!(reached > 5, "{disaster:?} {}: {run:?}", moment.name());
        }
        assert!(run.reach.locks_named > 40, "{run:?}");
        assert!(run.sum.taken_over > 20, "{run:?}");
        assert!(run.sum.mended > 5, "{run:?}");
        if disaster == InjectedFault::Pause {
            assert!(run.reach.refused_holding > 20, "{run:?}");
        }
    }
}

#[test]
fn when_a_memory_server_is_gone_what_needs_it_fails_in_time_and_nothing_else_stops() {
    for disaster in [InjectedFault::Kill, InjectedFault::Empty] {
        let run = tried(&plan(TreeVariant::Safe, disaster), 0..80);
        assert!(run.sum.failed > 100, "{run:?}");
        assert!(run.sum.beside > 500 && run.sum.lost > 500, "{run:?}");
        assert!(run.sum.slowest_error_ns > 0, "{run:?}");
    }
}

#[test]
fn the_published_layout_fails_where_lines_come_in_any_order_and_the_safe_one_does_not() {
    let any_order = |system| SearchPlan {
        read_line_order: false,
        ..SearchPlan::new(system)
    };
    let run = any_order(TreeVariant::Published).run(0..4000, &mut |_| true);
    let caught = run.caught.expect("the published layout holds in any order");
    let again = caught.seed..caught.seed + 1;
    tried(&any_order(TreeVariant::Safe), again.clone());
    tried(&SearchPlan::new(TreeVariant::Published), again);
}

/// Trials that once failed, and why.
#[test]
fn what_trials_have_found_stays_mended() {
    let words = |system, disaster| SearchPlan {
        value_bytes: Some(0),
        key_bytes: Some(8),
        ..plan(system, disaster)
    };
    // A separator that came late named a leaf that was another by then.
    tried(&words(TreeVariant::Published, InjectedFault::None), 89..90);
    // The leaf to which another was moving when its mover died was itself merged away, and used again, before anybody
    // looked whether the move had happened; what was moved came back to life.
    tried(&words(TreeVariant::Safe, InjectedFault::Crash), 4..5);
    // A parent was split at a leaf whose mover had died, so that the leaf was the first of the new one: lookups that were
    // led astray there did not go further to the left.
    tried(&SearchPlan::new(TreeVariant::Safe), 2691..2692);
    tried(&plan(TreeVariant::Safe, InjectedFault::Crash), 2691..2692);
    tried(&plan(TreeVariant::Safe, InjectedFault::Pause), 2691..2692);
    // One timeout after another, until the lease was over.
    tried(&SearchPlan::new(TreeVariant::Safe), 178..179);
    tried(&plan(TreeVariant::Safe, InjectedFault::Kill), 2806..2807);
    // A block on a memory server that had come back with zeros was read without looking for the tree's mark.
    tried(&plan(TreeVariant::Safe, InjectedFault::Empty), 10..11);
}

#[test]
fn keys_of_many_bytes_and_values_out_of_line_change_nothing() {
    for system in [
        TreeVariant::Safe,
        TreeVariant::Published,
        TreeVariant::FgPlus,
    ] {
        for (key_bytes, value_bytes) in [(9, 0), (64, 700), (1024, 0), (8, 300), (1024, 40)] {
            let plan = SearchPlan {
                key_bytes: Some(key_bytes),
                value_bytes: Some(value_bytes),
                ..plan(system, InjectedFault::None)
            };
            tried(&plan, 0..6);
        }
    }
}

#[test]
fn the_same_seeds_give_the_same_digest() {
    let plan = SearchPlan::new(TreeVariant::Safe);
    let [a, b, c] = [3..13, 3..13, 4..14].map(|seeds| tried(&plan, seeds));
    assert_eq!((a.digest, &a.sum, &a.reach), (b.digest, &b.sum, &b.reach));
    assert_ne!(a.digest, c.digest);
}
