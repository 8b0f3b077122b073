//! Rejects benchmark options that the selected experiment does not use. A run that ignored such an option would
//! measure something other than the user requested.

use clap::ArgMatches;
use clap::parser::ValueSource;
use farbank_bench::registry::RegisteredBench;
use farbank_contest::judge::all_benches;

use crate::common::Failure;

/// Options of `bench kv` that only the medium `sim` uses, which is an experiment of its own.
const KV_SIM: [&str; 4] = ["workers", "dimms", "cpu-ns", "seed"];

fn was_given(of: &ArgMatches, option: &str) -> bool {
    // clap ids are field names, with underscores.
    of.value_source(&option.replace('-', "_")) == Some(ValueSource::CommandLine)
}

/// Returns the last value of an option, as text.
fn value<'a>(of: &'a ArgMatches, option: &str) -> Option<&'a str> {
    of.get_raw(option)?.next_back()?.to_str()
}

/// Checks for options that the experiment does not use.
fn check(of: &ArgMatches, bench: &RegisteredBench) -> Result<(), Failure> {
    let by = bench.option;
    let Some(chosen) = value(of, by) else {
        return Ok(());
    };
    for option in bench.options() {
        let users = bench.users_of(option);
        if was_given(of, option) && !users.contains(&chosen) {
            return Err(Failure::Usage(format!(
                "--{option} has no effect with --{by} {chosen}; it is for {}",
                users.join(", ")
            )));
        }
    }
    Ok(())
}

/// Checks `bench kv` for options that its medium does not use. Returns whether the medium has experiments.
fn check_kv_medium(of: &ArgMatches) -> Result<bool, Failure> {
    if value(of, "medium") != Some("sim") {
        let mut options = KV_SIM.into_iter();
        return match options.find(|option| was_given(of, option)) {
            Some(option) => Err(Failure::Usage(format!(
                "--{option} has no effect without --medium sim"
            ))),
            None => Ok(true),
        };
    }
    for option in ["experiment", "size", "updates"] {
        if was_given(of, option) {
            let why = format!("--{option} has no effect with --medium sim");
            return Err(Failure::Usage(why));
        }
    }
    Ok(false)
}

/// Checks `bench tree` for options that its fabric does not use. Returns whether the fabric has experiments.
fn check_tree_fabric(of: &ArgMatches) -> Result<bool, Failure> {
    let (unused, needs, has_experiments) = match value(of, "fabric") {
        Some("tcp") => (&["experiment", "key-bytes"][..], "--fabric sim", false),
        _ => (&["wait"][..], "--fabric tcp", true),
    };
    match unused.iter().find(|option| was_given(of, option)) {
        Some(option) => Err(Failure::Usage(format!(
            "--{option} has no effect without {needs}"
        ))),
        None => Ok(has_experiments),
    }
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
        "kv" if !check_kv_medium(of)? => return Ok(()),
        "tree" if !check_tree_fabric(of)? => return Ok(()),
        "index" => check_index_pairs(of)?,
        _ => {}
    }
    let benches = all_benches();
    let mut parts = benches.iter().filter(|bench| bench.name == name);
    parts.try_for_each(|bench| check(of, bench))
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
            ("tree --wait spin", "wait"),
            ("tree --fabric tcp --experiment mix", "experiment"),
            ("tree --fabric tcp --key-bytes 64", "key-bytes"),
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
    fn the_registered_options_and_experiments_exist() {
        let cli = Cli::command();
        let commands = cli.find_subcommand("bench").expect("it is a verb");
        for bench in all_benches() {
            let (name, by) = (bench.name, bench.option);
            let command = commands.find_subcommand(name).expect(name);
            let find = |option: &str| {
                let mut arguments = command.get_arguments();
                arguments.find(|argument| argument.get_long() == Some(option))
            };
            let values = find(by).expect(by).get_possible_values();
            let values: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
            let registered: Vec<&str> = bench.experiments.iter().map(|row| row.name).collect();
            assert_eq!(values, registered, "{name} --{by}");
            for option in bench.options() {
                assert!(find(option).is_some(), "{name} --{option}");
            }
        }
    }
}
