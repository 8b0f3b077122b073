//! Size of an experiment relative to the study's, and whether it is large enough to measure far memory.
//!
//! The study's tables were hundreds of times as large as its processor's cache. A table that fits into the modelled
//! cache measures the cache. So the cache is scaled down with the number of operations. If a table is still too small,
//! every figure of it has a caveat ([`DataScale::caveat`]).

use farbank_index::{Index, TableWorker};
use farbank_pm::model::{AccessCounts, MachineConfig, Trace};

use super::contender::refused;
use super::{IndexOptions, published};
use crate::figure::Error;
use crate::scale::DataScale;

/// Returns the study's machine with `dimms` DIMMs. Its cache is scaled down with the operations, unless its size is
/// given.
pub(super) fn machine(options: &IndexOptions, dimms: u32) -> MachineConfig {
    let study = MachineConfig::small_dimms(dimms);
    let share = options.records as f64 / published::OPERATIONS as f64;
    let in_proportion = (study.cache_bytes as f64 * share) as u64;
    MachineConfig {
        seed: options.seed,
        places: false,
        cache_bytes: options.cache_bytes.unwrap_or(in_proportion),
        ..study
    }
}

/// Returns the sizes of a table and of the cache. The table is walked without recording its trace.
pub(super) fn of_table(
    made: &dyn Index,
    trace: &Trace,
    worker: &mut TableWorker,
    cache_bytes: u64,
) -> Result<DataScale, Error> {
    trace.record(false);
    let space = made.space(worker);
    trace.record(true);
    Ok(DataScale {
        data_bytes: space.map_err(refused)?.table_bytes,
        cache_bytes,
    })
}

/// Returns the reason why a phase does not measure far memory: its operations did not access any.
pub(super) fn untouched(counts: &AccessCounts, threads: u32, cpu_ns: u32) -> Option<String> {
    (counts.loads + counts.stores + counts.around == 0).then(|| {
        format!(
            "NOT OF FAR MEMORY: no operation touched it, so this is {threads} threads at {cpu_ns} ns per operation (--cpu-ns); \
             reads of DRAM are modelled only by --experiment orders"
        )
    })
}

/// Returns the reason why a growing table is not a scaled-down version of the study's, or `None` if it is.
pub(super) fn not_the_studys_growth(options: &IndexOptions) -> Option<String> {
    let ours = options.records as f64 / options.slots as f64;
    let theirs = published::OPERATIONS as f64 / published::SLOTS as f64;
    let is_alike = (ours / theirs - 1.0).abs() <= 0.01 && options.slots.is_power_of_two();
    (!is_alike || !options.with_replacement).then(|| {
        "not the study's growth: it drew keys with replacement (--with-replacement), 11.92 for each slot of the new \
         table, whose slots are a power of two (-n 781250 -S 65536)"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_that_touches_no_far_memory_says_so() {
        let mut counts = AccessCounts::default();
        let why = untouched(&counts, 32, 50).expect("nothing was touched");
        assert!(why.contains("32 threads at 50 ns"), "{why}");
        counts.loads = 1;
        assert_eq!(untouched(&counts, 32, 50), None);
    }
}
