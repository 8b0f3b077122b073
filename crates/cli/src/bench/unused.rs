//! Rejects benchmark options that the selected experiment does not use. A run that ignored such an option would
//! measure something other than the user requested.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::common::Failure;

/// Long name of an option, and the experiments that use it.
type OptionUse = (&'static str, &'static [&'static str]);

/// A benchmark, the option that selects its experiment, and the experiments that use each of its other options. Every
/// experiment uses the options that are not listed.
type BenchOptions = (&'static str, &'static str, &'static [OptionUse]);

const MIX: &[&str] = &["mix"];
const ON_MODEL: &[&str] = &["bytes", "dimms", "numa", "orders", "array"];
const OF_TABLES: &[&str] = &[
    "throughput",
    "latency",
    "mix",
    "counts",
    "load-factor",
    "resize",
    "recovery",
    "bytes",
    "dimms",
    "numa",
];

const INDEX: &[OptionUse] = &[
    ("target", OF_TABLES),
    ("plugin", &["throughput", "latency", "mix"]),
    ("pool-path", &["throughput", "latency", "mix"]),
    ("pool-size", &["throughput", "latency", "mix"]),
    (
        "preset",
        &[
            "throughput",
            "latency",
            "mix",
            "counts",
            "load-factor",
            "resize",
            "recovery",
            "bytes",
            "dimms",
            "numa",
            "orders",
        ],
    ),
    (
        "hash-size",
        &[
            "throughput",
            "latency",
            "mix",
            "counts",
            "load-factor",
            "resize",
            "recovery",
            "bytes",
            "dimms",
            "numa",
            "orders",
        ],
    ),
    (
        "no-flush",
        &[
            "throughput",
            "latency",
            "mix",
            "counts",
            "load-factor",
            "resize",
            "bytes",
            "dimms",
            "numa",
            "orders",
        ],
    ),
    (
        "threads",
        &[
            "throughput",
            "latency",
            "mix",
            "bytes",
            "dimms",
            "numa",
            "array",
        ],
    ),
    ("mode", MIX),
    ("seconds", MIX),
    ("operations", MIX),
    ("read-ratio", MIX),
    ("insert-ratio", MIX),
    ("update-ratio", MIX),
    ("remove-ratio", MIX),
    ("scan-ratio", MIX),
    ("scan-size", MIX),
    ("distribution", MIX),
    ("skew", MIX),
    ("skip-load", MIX),
    ("latency-sampling", MIX),
    ("sampling-ms", MIX),
    (
        "seed",
        &[
            "mix",
            "load-factor",
            "resize",
            "bytes",
            "dimms",
            "numa",
            "orders",
            "array",
        ],
    ),
    ("with-replacement", &["load-factor", "resize"]),
    ("cpu-ns", ON_MODEL),
    ("cache", ON_MODEL),
];

const ENTRIES_USED: &[&str] = &[
    "mix",
    "counts",
    "ablation",
    "paper",
    "ranges",
    "scale",
    "keys",
    "caches",
    "held-out",
    "published",
    "causes",
];

const TREE: &[OptionUse] = &[
    ("system", MIX),
    ("mix", MIX),
    ("skew", MIX),
    ("range", MIX),
    ("entries", ENTRIES_USED),
    (
        "key-bytes",
        &[
            "mix", "counts", "ablation", "paper", "ranges", "scale", "caches", "causes",
        ],
    ),
    (
        "cache",
        &[
            "mix",
            "counts",
            "ablation",
            "paper",
            "ranges",
            "scale",
            "keys",
            "held-out",
            "published",
            "causes",
        ],
    ),
    (
        "threads",
        &[
            "mix",
            "counts",
            "locks",
            "messages",
            "ablation",
            "paper",
            "ranges",
            "keys",
            "caches",
            "held-out",
            "published",
            "causes",
        ],
    ),
    (
        "coroutines",
        &[
            "mix",
            "counts",
            "locks",
            "messages",
            "ablation",
            "paper",
            "ranges",
            "keys",
            "caches",
            "held-out",
            "published",
            "causes",
        ],
    ),
];

const CACHE: &[OptionUse] = &[
    ("threads", &["arrangements"]),
    ("dimms", &["arrangements"]),
    ("cpu-ns", &["arrangements"]),
    ("requests", &["hits", "hot"]),
    ("mib", &["hits", "hot"]),
    ("memcached", &["hits"]),
];

/// Options of `bench kv` that only the medium `sim` uses, which is an experiment of its own.
const KV_MEDIUM: &[OptionUse] = &[
    ("workers", &["sim"]),
    ("dimms", &["sim"]),
    ("cpu-ns", &["sim"]),
    ("seed", &["sim"]),
];

const KV: &[OptionUse] = &[
    ("size", &["amplification", "all"]),
    ("updates", &["amplification", "all"]),
    ("keys", &["load", "reopen", "all"]),
];

const SERVER: &[OptionUse] = &[
    ("redis", &["redis"]),
    ("redis-benchmark", &["redis"]),
    ("memcached", &["memcached"]),
];

const BENCHES: &[BenchOptions] = &[
    ("index", "experiment", INDEX),
    ("tree", "experiment", TREE),
    ("cache", "experiment", CACHE),
    ("server", "peer", SERVER),
];

fn was_given(of: &ArgMatches, option: &str) -> bool {
    // clap ids are field names, with underscores.
    of.value_source(&option.replace('-', "_")) == Some(ValueSource::CommandLine)
}

/// Returns the last value of an option, as text.
fn value<'a>(of: &'a ArgMatches, option: &str) -> Option<&'a str> {
    of.get_raw(option)?.next_back()?.to_str()
}

fn check(of: &ArgMatches, by: &str, uses: &[OptionUse]) -> Result<(), Failure> {
    let Some(chosen) = value(of, by) else {
        return Ok(());
    };
    for (option, users) in uses {
        if was_given(of, option) && !users.contains(&chosen) {
            return Err(Failure::Usage(format!(
                "--{option} has no effect with --{by} {chosen}; it is for {}",
                users.join(", ")
            )));
        }
    }
    Ok(())
}

/// Checks `bench kv` for options that its medium or experiment does not use.
fn check_kv(of: &ArgMatches) -> Result<(), Failure> {
    let is_sim = value(of, "medium") == Some("sim");
    if !is_sim {
        let given = |(option, _): &&OptionUse| was_given(of, option);
        if let Some((option, _)) = KV_MEDIUM.iter().find(given) {
            let why = format!("--{option} has no effect without --medium sim");
            return Err(Failure::Usage(why));
        }
        return check(of, "experiment", KV);
    }
    for option in ["experiment", "size", "updates"] {
        if was_given(of, option) {
            let why = format!("--{option} has no effect with --medium sim");
            return Err(Failure::Usage(why));
        }
    }
    Ok(())
}

/// Checks `bench index` for options that another option makes useless.
fn check_index_pairs(of: &ArgMatches) -> Result<(), Failure> {
    let refuse = |option: &str, needs: &str| {
        Err(Failure::Usage(format!(
            "--{option} has no effect without {needs}"
        )))
    };
    let experiment = value(of, "experiment").unwrap_or_default();
    let by_time = value(of, "mode").is_some_and(|mode| mode.eq_ignore_ascii_case("time"));
    if was_given(of, "seconds") && !by_time {
        return refuse("seconds", "--mode time");
    }
    if was_given(of, "operations") && by_time {
        return refuse("operations", "--mode operation");
    }
    let grows = matches!(experiment, "load-factor" | "resize");
    if grows && was_given(of, "seed") && !of.get_flag("with_replacement") {
        return refuse("seed", "--with-replacement");
    }
    for option in ["pool-path", "pool-size"] {
        if was_given(of, option) && !was_given(of, "plugin") {
            return refuse(option, "--plugin");
        }
    }
    Ok(())
}

/// Rejects a command line with an option that would have no effect.
pub(crate) fn refuse(line: &ArgMatches) -> Result<(), Failure> {
    let Some(("bench", bench)) = line.subcommand() else {
        return Ok(());
    };
    let Some((name, of)) = bench.subcommand() else {
        return Ok(());
    };
    match name {
        "kv" => return check_kv(of),
        "index" => check_index_pairs(of)?,
        _ => {}
    }
    match BENCHES.iter().find(|(bench, ..)| *bench == name) {
        Some((_, by, uses)) => check(of, by, uses),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    fn refused(line: &[&str]) -> Option<String> {
        let args = ["farbank", "bench"].iter().chain(line).map(OsString::from);
        let args = crate::common::options_file::with_file(args.collect()).ok()?;
        let matches = Cli::command().try_get_matches_from(args);
        match refuse(&matches.unwrap_or_else(|error| panic!("{line:?}: {error}"))) {
            Ok(()) => None,
            Err(Failure::Usage(why)) => Some(why),
            Err(_) => panic!("{line:?}: not a usage error"),
        }
    }

    #[test]
    fn an_option_that_its_experiment_would_ignore_is_refused() {
        for (line, option) in [
            ("index --experiment array --no-flush", "no-flush"),
            ("index --experiment recovery --no-flush", "no-flush"),
            ("index --experiment array --target cceh", "target"),
            ("index --experiment orders -t 8", "threads"),
            ("index --experiment counts -t 8", "threads"),
            ("index --cpu-ns 100", "cpu-ns"),
            ("index -r 0.5 -i 0.5", "read-ratio"),
            ("index --experiment mix --seconds 3", "seconds"),
            ("index --experiment mix --mode time -p 3", "operations"),
            ("index --experiment load-factor --seed 3", "seed"),
            ("index --experiment mix --pool-size 1gb", "pool-size"),
            ("tree --experiment keys --mix range-only", "mix"),
            ("tree --experiment keys --key-bytes 64", "key-bytes"),
            ("tree --experiment locks --entries 5000", "entries"),
            ("tree --experiment scale --threads 4", "threads"),
            ("cache --experiment hits --dimms 2", "dimms"),
            ("kv --seed 3", "seed"),
            ("kv --medium sim --size 1gb", "size"),
            ("kv --experiment load --updates hot", "updates"),
            ("server --peer memcached --redis here", "redis"),
        ] {
            let line: Vec<&str> = line.split(' ').collect();
            let why = refused(&line).unwrap_or_else(|| panic!("{line:?} is accepted"));
            let begin = format!("--{option} has no effect with");
            assert!(why.starts_with(&begin), "{line:?}: {why}");
        }
    }

    #[test]
    fn options_that_are_used_and_every_workload_are_accepted() {
        for line in [
            "index --experiment mix -r 0.5 -i 0.5 --mode time --seconds 3",
            "index --experiment load-factor --with-replacement --seed 3",
            "index --experiment array -t 32 --cpu-ns 60",
            "index --experiment numa --no-flush --cache 22mb",
            "tree --mix write-only --skew 0.5",
            "kv --medium sim --seed 3 --keys 1000",
        ] {
            let line: Vec<&str> = line.split(' ').collect();
            assert_eq!(refused(&line), None, "{line:?}");
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads");
        for file in std::fs::read_dir(folder).expect("workloads are there") {
            let path = file.expect("it is listed").path();
            let text = std::fs::read_to_string(&path).expect("it can be read");
            let table: toml::Table = text.parse().expect("it is TOML");
            let bench = table["bench"].as_str().expect("it names its bench");
            let path = path.to_str().expect("it is text");
            assert_eq!(refused(&[bench, "--workload", path]), None, "{path}");
        }
    }

    #[test]
    fn the_options_and_experiments_that_are_listed_exist() {
        let cli = Cli::command();
        let bench = cli.find_subcommand("bench").expect("it is a verb");
        let kv = [("kv", "experiment", KV), ("kv", "medium", KV_MEDIUM)];
        for (name, by, uses) in BENCHES.iter().copied().chain(kv) {
            let command = bench.find_subcommand(name).expect(name);
            let mut arguments = command.get_arguments();
            let chooses = arguments.find(|of| of.get_long() == Some(by)).expect(by);
            let values = chooses.get_possible_values();
            for (option, users) in uses {
                let mut arguments = command.get_arguments();
                assert!(
                    arguments.any(|of| of.get_long() == Some(option)),
                    "{name} --{option}"
                );
                for user in *users {
                    let known = by == "medium" || values.iter().any(|of| of.get_name() == *user);
                    assert!(known, "{name} --{by} {user}");
                }
            }
        }
    }
}
