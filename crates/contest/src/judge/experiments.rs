//! The judge's rows in the registry of experiments ([`farbank_bench::registry`]).

use farbank_bench::registry::{Experiment, ExperimentKey, RegisteredBench, bench, benches};

use super::{JudgeExperiment, JudgePhase};

/// Returns all experiments of `farbank bench`: those of `farbank_bench`, and the judge's after the server's.
#[must_use]
pub fn all_benches() -> Vec<RegisteredBench> {
    let mut all = benches();
    let server = all.iter().rposition(|bench| bench.name == "server");
    let place = server.map_or(all.len(), |place| place + 1);
    all.splice(
        place..place,
        [bench::<JudgePhase>(), bench::<JudgeExperiment>()],
    );
    all
}

impl ExperimentKey for JudgePhase {
    const BENCH: &'static str = "judge";
    const OPTION: &'static str = "phases";
    const ROWS: &'static [Experiment<JudgePhase>] = &[
        Experiment {
            name: "correctness",
            question: "Compare every reply with the expected one, and count the far-memory accesses",
            bounds: "no wrong reply, no refused set, no more memory than the round allows; accesses as published",
            options: &[],
            run: JudgePhase::Correctness,
        },
        Experiment {
            name: "durability",
            question: "Crash at every fence on simulated memory, and kill a process with a pool in a file",
            bounds: "nothing is lost or corrupt, except by engines that are known to lose data",
            options: &[],
            run: JudgePhase::Durability,
        },
        Experiment {
            name: "performance",
            question: "Measure the time of a set phase and of the get phases",
            bounds: "no wrong reply, no refused set; `kv` takes at most the time of each other engine",
            options: &[],
            run: JudgePhase::Performance,
        },
        Experiment {
            name: "model",
            question: "Measure virtual time on the model, with sixteen virtual workers and six DIMMs",
            bounds: "the set phase of `v2` is at least 1.5 times as fast as that of `v1`",
            options: &[],
            run: JudgePhase::Model,
        },
    ];
}

impl ExperimentKey for JudgeExperiment {
    const BENCH: &'static str = "judge";
    const ROWS: &'static [Experiment<JudgeExperiment>] = &[Experiment {
        name: "tuning",
        question: "Run the published engines with and without each of their tuning steps",
        bounds: "",
        options: &[],
        run: JudgeExperiment::Tuning,
    }];
}
