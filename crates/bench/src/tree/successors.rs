//! From Sherman to Farbank: the techniques of later systems, one after another.

use farbank_tree::Config;

use super::bench::{TreeBench, describe};
use crate::figure::{Error, Figure};

pub(super) const SUCCESSORS_RUNS: u64 = 5;

/// Steps from Sherman to [`Config::farbank`], each adding one technique.
fn steps() -> [(&'static str, Config); SUCCESSORS_RUNS as usize] {
    let sherman = Config::sherman();
    let shared = Config {
        shares_keys: true,
        ..sherman
    };
    let together = Config {
        reads_with_lock: true,
        ..shared
    };
    let compact = Config {
        compact_cache: true,
        ..together
    };
    [
        ("sherman", sherman),
        ("+ shared operations", shared),
        ("+ reads with locks", together),
        ("+ compact cache", compact),
        ("+ hashed leaves", Config::farbank()),
    ]
}

/// Measures the gain of each technique, relative to Sherman.
pub(super) fn successors(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let options = bench.options;
    let mut sherman = None;
    for (name, config) in steps() {
        let setup = options.setup(config, options.mix, options.theta);
        let outcome = bench.run(name, &setup)?;
        describe(&mut bench.report, "successors", name, &outcome);
        let base = *sherman.get_or_insert(outcome.mops);
        let what = format!("{name}: throughput over sherman");
        bench.show(Figure::modelled("successors", what, outcome.mops / base).unit("times"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_has_all_techniques() {
        let [.., (_, compact), (_, all)] = steps();
        let hashed = Config {
            layout: Config::farbank().layout,
            ..compact
        };
        assert_eq!(hashed, all);
        assert!(hashed.layout.is_hashed());
    }
}
