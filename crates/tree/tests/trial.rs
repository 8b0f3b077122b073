//! Simulation tests of the tree with injected failures.

use farbank_tree::sim_test::{FaultMoment, InjectedFault, SearchPlan, SearchReport, TreeVariant};

/// Runs trials, which must find no violation.
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
fn calls_are_linearizable_without_failures() {
    for system in TreeVariant::ALL {
        let run = tried(&plan(system, InjectedFault::None), 0..50);
        assert_eq!(run.sum.failed + run.sum.cut_off, 0, "{system:?}");
        assert!(
            run.sum.splits > 100 && run.sum.merges > 20,
            "{system:?}: {run:?}"
        );
    }
}

#[test]
fn a_crash_or_pause_of_a_compute_server_at_any_moment_violates_nothing() {
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

/// TREE-NODE-6.
#[test]
fn trials_that_remove_most_keys_and_insert_them_again_use_freed_leaves_again() {
    for system in TreeVariant::ALL {
        let plan = SearchPlan::new(system);
        let seeds = (2..802).step_by(10);
        let reused = seeds.map(|seed| tried(&plan, seed..seed + 1).sum.reused_leaves);
        let reused: u64 = reused.sum();
        assert!(reused > 5, "{system:?}: {reused}");
    }
}

#[test]
fn a_server_leaves_during_the_calls_and_everything_is_reachable_without_it() {
    for system in TreeVariant::ALL {
        let drains = SearchPlan {
            drains: Some(true),
            ..plan(system, InjectedFault::None)
        };
        let run = tried(&drains, 0..40);
        assert_eq!(run.sum.failed + run.sum.cut_off, 0, "{system:?}");
        assert!(run.sum.drained > 200, "{system:?}: {run:?}");
    }
}

#[test]
fn a_crash_or_pause_while_a_server_leaves_violates_nothing() {
    for disaster in [InjectedFault::Crash, InjectedFault::Pause] {
        let drains = SearchPlan {
            drains: Some(true),
            ..plan(TreeVariant::Safe, disaster)
        };
        let run = tried(&drains, 0..120);
        let reached = run.reached(disaster, FaultMoment::Draining);
        assert!(reached > 10, "{run:?}");
    }
}

#[test]
fn after_a_memory_server_fails_calls_that_need_it_fail_in_time_and_others_succeed() {
    for disaster in [InjectedFault::Kill, InjectedFault::Empty] {
        let run = tried(&plan(TreeVariant::Safe, disaster), 0..80);
        assert!(run.sum.failed > 100, "{run:?}");
        assert!(
            run.sum.unaffected_keys > 500 && run.sum.lost > 500,
            "{run:?}"
        );
        assert!(run.sum.slowest_error_ns > 0, "{run:?}");
    }
}

#[test]
fn with_lines_read_in_any_order_the_published_layout_fails_and_the_safe_one_holds() {
    let any_order = |system| SearchPlan {
        read_line_order: false,
        ..SearchPlan::new(system)
    };
    // About one seed in a thousand shows the fault; at present 1052 is the first. A change of the trial moves it.
    let run = any_order(TreeVariant::Published).run(1000..5000, &mut |_| true);
    let caught = run
        .caught
        .expect("the published layout must fail with lines in any order");
    let again = caught.seed..caught.seed + 1;
    tried(&any_order(TreeVariant::Safe), again.clone());
    tried(&SearchPlan::new(TreeVariant::Published), again);
}

/// Regression tests: trials that once failed.
#[test]
fn trials_that_once_failed_pass() {
    let words = |system, disaster| SearchPlan {
        value_bytes: Some(0),
        key_bytes: Some(8),
        ..plan(system, disaster)
    };
    // A delayed separator led to a leaf that had been reused.
    tried(&words(TreeVariant::Published, InjectedFault::None), 89..90);
    // The mover of a leaf died. The leaf that received the entries was merged away and reused before any client checked
    // the move; the moved entries reappeared.
    tried(&words(TreeVariant::Safe, InjectedFault::Crash), 4..5);
    // A parent was split at a leaf whose mover had died, so the leaf became the new parent's first child. Lookups that
    // arrived there did not search further to the left.
    tried(&SearchPlan::new(TreeVariant::Safe), 2691..2692);
    tried(&plan(TreeVariant::Safe, InjectedFault::Crash), 2691..2692);
    tried(&plan(TreeVariant::Safe, InjectedFault::Pause), 2691..2692);
    // Several timeouts in a row exceeded the lease.
    tried(&SearchPlan::new(TreeVariant::Safe), 178..179);
    tried(&plan(TreeVariant::Safe, InjectedFault::Kill), 2806..2807);
    // A block was read from a memory server that had restarted with zeros, without a check of the tree's mark.
    tried(&plan(TreeVariant::Safe, InjectedFault::Empty), 10..11);
}

#[test]
fn trials_pass_with_long_keys_and_values_out_of_line() {
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
