//! What would explain the figures that are not as published.
//!
//! *Release.* From the second step of the ablation on, each gains about what was published: FG+ alone is too fast. It differs
//! from the second step only in that the release is a round trip of its own, after the write-back was answered. A wait is put there, and
//! nothing else is changed: it shows how much later the release would have to come.
//!
//! *Hold.* Atomics that hold their bucket longer make FG+ as slow as published. But they make locks in host memory as slow
//! too, and those were measured by themselves: the gain of locks on chip is then twice what it should be. So it is not that.
//!
//! *Own time.* What clients do by themselves for an operation is assumed, not calibrated; this is how much depends on it.

use farbank_fabric::sim::Constants;
use farbank_tree::Config;

use super::costs::{LOCKS, ways_to_lock};
use super::experiments::Bench;
use super::load::Mix;
use super::ratios::{both, shorter, steps};
use super::run::Setup;
use crate::figure::{Error, Figure};

/// Microseconds that a release of its own comes later.
const WAITS_US: [u64; 4] = [0, 25, 50, 75];
/// How long atomics hold their bucket, in nanoseconds; the calibrated time is the first.
const HOLDS_NS: [Option<u64>; 3] = [None, Some(200), Some(300)];
/// A client's own time for an operation.
const OWN_NS: [Option<u64>; 3] = [Some(0), Some(1_000), None];
pub(super) const RUNS: u64 =
    2 * (2 + WAITS_US.len() as u64) + HOLDS_NS.len() as u64 * 4 + OWN_NS.len() as u64 * 4;

pub(super) fn causes(bench: &mut Bench<'_>) -> Result<(), Error> {
    release(bench)?;
    hold(bench)?;
    own_time(bench)
}

fn times(what: String, value: f64) -> Figure {
    Figure::modelled("causes", what, value).unit("times")
}

fn beside(figure: Figure, published: f64) -> Figure {
    figure.published(published, f64::INFINITY)
}

fn release(bench: &mut Bench<'_>) -> Result<(), Error> {
    for (mix, over, tail) in [
        (Mix::WRITE_ONLY, 24.7, 35.8),
        (Mix::WRITE_INTENSIVE, 23.6, 30.2),
    ] {
        let [_, (_, combined, gain, _), ..] = steps();
        let sherman = bench.options.setup(Config::sherman_published(), mix, 0.99);
        let sherman = bench.run("release", &sherman)?;
        let combined = bench.options.setup(combined, mix, 0.99);
        let combined = bench.run("release", &combined)?;
        for wait_us in WAITS_US {
            let config = Config {
                lone_release_ns: wait_us * 1000,
                ..Config::fg_plus()
            };
            let fg = bench.run("release", &bench.options.setup(config, mix, 0.99))?;
            let name = format!("{}, a release of its own {wait_us} us later", mix.name);
            let combining = times(
                format!("{name}: command combination gains"),
                combined.mops / fg.mops,
            );
            bench.show(match mix.inserts {
                100 => combining,
                _ => beside(combining, gain),
            });
            let throughput = times(format!("{name}: over fg+"), sherman.mops / fg.mops);
            bench.show(beside(throughput, over));
            let shorter = fg.latency_us(0.99) / sherman.latency_us(0.99);
            let shorter = times(format!("{name}: 99 of 100, times shorter"), shorter);
            bench.show(beside(shorter, tail));
        }
    }
    Ok(())
}

fn hold(bench: &mut Bench<'_>) -> Result<(), Error> {
    let [(_, in_host, _), (_, on_chip, gain), ..] = ways_to_lock();
    for hold_ns in HOLDS_NS {
        let held = |setup: Setup| match hold_ns {
            None => setup,
            Some(ns) => Setup {
                constants: Constants {
                    host_atomic_ns: ns,
                    host_write_holds_ns: ns,
                    ..setup.constants
                },
                ..setup
            },
        };
        let ns = held(bench.options.setup(in_host, Mix::WRITE_ONLY, 0.99))
            .constants
            .host_atomic_ns;
        let name = format!("atomics hold their bucket for {ns} ns");
        let mut mops = [0.0; 2];
        for (mops, config) in mops.iter_mut().zip([in_host, on_chip]) {
            bench.step(&name)?;
            let setup = held(bench.options.setup(config, Mix::WRITE_ONLY, 0.99));
            let outcome = setup.run_locks(LOCKS);
            *mops = outcome
                .map_err(|e| Error::Failed(format!("{name}: {e}")))?
                .mops;
        }
        let chip = times(
            format!("{name}: locks on chip alone gain"),
            mops[1] / mops[0],
        );
        bench.show(beside(chip, gain));
        let [sherman, fg] = both(bench, &name, held, (Mix::WRITE_INTENSIVE, 0.99))?;
        let over = times(format!("{name}: sherman over fg+"), sherman.mops / fg.mops);
        bench.show(beside(over, 23.6));
    }
    Ok(())
}

fn own_time(bench: &mut Bench<'_>) -> Result<(), Error> {
    for own_ns in OWN_NS {
        let own = |setup: Setup| match own_ns {
            None => shorter(setup),
            Some(operation_ns) => shorter(Setup {
                constants: Constants {
                    operation_ns,
                    ..setup.constants
                },
                ..setup
            }),
        };
        let most = |setup| Setup {
            coroutines: 3,
            ..own(setup)
        };
        let mix = (Mix::WRITE_INTENSIVE, 0.0);
        let name = match own_ns {
            None => "clients' own time as assumed".into(),
            Some(ns) => format!("clients' own time {ns} ns"),
        };
        let [sherman, fg] = both(bench, &name, own, mix)?;
        let over = times(format!("{name}: sherman over fg+"), sherman.mops / fg.mops);
        bench.show(beside(over, 1.15));
        let [sherman, fg] = both(bench, &name, most, mix)?;
        let throughput = format!("{name}: sherman, three clients a thread");
        let throughput = Figure::modelled("causes", throughput, sherman.mops);
        bench.show(beside(throughput.unit("M operations a second"), 44.0));
        let over = format!("{name}: three clients a thread, over fg+");
        bench.show(beside(times(over, sherman.mops / fg.mops), 1.14));
    }
    Ok(())
}
