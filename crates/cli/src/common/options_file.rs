//! Options from a TOML file: `serve --config FILE`, and `bench kv|judge|index|cache --workload FILE`.
//!
//! ```text
//!   port = 7000            is        --port 7000
//!   bind = ["::1", "127.0.0.1"]      --bind ::1,127.0.0.1
//!   unsafe-no-auth = true            --unsafe-no-auth
//!   [set]
//!   slowlog-max-len = 500            --set slowlog-max-len=500
//! ```
//!
//! The keys of the file are the command-line options without their dashes, so options are defined, described and
//! checked in one place. Options on the command line come after those of the file and override them. A workload file
//! also names its benchmark (`bench = "kv"`) and the question it answers (`question = "..."`).

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Parser;
use clap::error::ErrorKind;
use toml::Value;
use toml::de::DeTable;

use crate::common::Failure;

/// Subcommands that accept a file, and the option that names it.
const FILES: [(&[&str], &str); 5] = [
    (&["serve"], "--config"),
    (&["bench", "kv"], "--workload"),
    (&["bench", "judge"], "--workload"),
    (&["bench", "index"], "--workload"),
    (&["bench", "cache"], "--workload"),
];

/// Returns `args` with the options of the file that it names, if any, inserted before its own options.
pub(crate) fn with_file(args: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let asked =
        |(verbs, _): &&(&[&str], &str)| args.get(1..=verbs.len()).is_some_and(|own| own == *verbs);
    let Some(&(verbs, option_name)) = FILES.iter().find(asked) else {
        return Ok(args);
    };
    let Some(path) = named_file(&args, option_name) else {
        return Ok(args);
    };
    let path = Path::new(path);
    let at = |what: String| Failure::Usage(format!("{}: {what}", path.display()));
    let text =
        std::fs::read_to_string(path).map_err(|e| at(format!("cannot read the file: {e}")))?;
    let mut table: toml::Table = text
        .parse()
        .map_err(|e: toml::de::Error| at(e.to_string()))?;
    if let ["bench", bench] = verbs {
        format_setting(&mut table, bench).map_err(at)?;
    }
    let mut merged = args[..=verbs.len()].to_vec();
    for (key, value) in &table {
        let at = |what: String| at(format!("line {}: {what}", line_of(&text, key)));
        for option in options(key, value).map_err(at)? {
            check(verbs, key, &option).map_err(at)?;
            merged.push(option);
        }
    }
    merged.extend_from_slice(&args[verbs.len() + 1..]);
    Ok(merged)
}

/// Returns the number of the line of `text` that has `key`, from 1.
fn line_of(text: &str, key: &str) -> usize {
    let table = DeTable::parse(text).map(|table| table.into_inner());
    let place = table.ok().and_then(|table| {
        let mut keys = table.keys();
        keys.find_map(|known| (known.get_ref() == key).then(|| known.span().start))
    });
    text[..place.unwrap_or(0)].matches('\n').count() + 1
}

/// Checks one option of a file alone, so that an error can name the file.
fn check(verbs: &[&str], key: &str, option: &OsString) -> Result<(), String> {
    let verb = verbs.join(" ");
    let unknown = |tip: &str| Err(format!("{verb} has no option {key:?}{tip}"));
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if key.is_empty() || !key.chars().all(is_name) {
        return unknown("");
    }
    let args = ["farbank"].iter().chain(verbs).map(OsString::from);
    let Err(error) = crate::Cli::try_parse_from(args.chain([option.clone()])) else {
        return Ok(());
    };
    let text = error.to_string();
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let tip = text
                .lines()
                .find_map(|line| line.trim().strip_prefix("tip: "));
            unknown(&tip.map_or(String::new(), |tip| format!("; {tip}")))
        }
        _ if !error.use_stderr() => unknown(""),
        _ => {
            let first = text.lines().next().unwrap_or_default();
            Err(first.trim_start_matches("error: ").to_owned())
        }
    }
}

/// Returns the parser's error for one option of a subcommand, without its name and value.
pub(crate) fn objection(verbs: &[&str], option: &OsString) -> Option<String> {
    let args = ["farbank"].iter().chain(verbs).map(OsString::from);
    let error = crate::Cli::try_parse_from(args.chain([option.clone()])).err()?;
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let why = first.split_once("': ").map_or(first, |(_, why)| why);
    Some(why.to_owned())
}

/// Removes `bench` and `question` from `table`. Fails if one is missing or the workload is of another benchmark than
/// `bench`.
fn format_setting(table: &mut toml::Table, bench: &str) -> Result<(), String> {
    let mut text = |key: &str| match table.remove(key) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(format!("a workload file must have a line {key} = \"...\"")),
    };
    text("question")?;
    match text("bench")? {
        of if of == bench => Ok(()),
        of => Err(format!(
            "this workload is for bench {of}, not for bench {bench}; run: farbank bench {of} --workload FILE"
        )),
    }
}

/// Returns FILE of `--config FILE` or `--config=FILE`, where `option` is the name of the option.
fn named_file<'a>(args: &'a [OsString], option: &str) -> Option<&'a OsStr> {
    let by_itself = args.iter().position(|arg| arg == option).map(|i| i + 1);
    let joined = || {
        let value = |arg: &'a OsString| arg.to_str()?.strip_prefix(option)?.strip_prefix('=');
        args.iter().find_map(value)
    };
    by_itself
        .and_then(|i| args.get(i).map(OsString::as_os_str))
        .or_else(|| joined().map(OsStr::new))
}

/// Converts a key and value of the file to command-line options: one, none for `false`, or one for each entry of `[set]`.
fn options(key: &str, value: &Value) -> Result<Vec<OsString>, String> {
    if key == "config" || key == "workload" {
        return Err(format!("a file cannot include another one with {key:?}"));
    }
    let one = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        other => Err(format!("{key:?} cannot be a {}", other.type_str())),
    };
    match value {
        Value::Boolean(false) => Ok(Vec::new()),
        Value::Boolean(true) => Ok(vec![format!("--{key}").into()]),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(one).collect::<Result<_, _>>()?;
            Ok(vec![format!("--{key}={}", values.join(",")).into()])
        }
        Value::Table(entries) if key == "set" => entries
            .iter()
            .map(|(name, value)| Ok(format!("--{key}={name}={}", one(value)?).into()))
            .collect(),
        value => Ok(vec![format!("--{key}={}", one(value)?).into()]),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn merged(file: &str, more: &[&str]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("farbank.toml");
        std::fs::write(&path, file).unwrap();
        let mut args: Vec<OsString> = ["farbank", "serve", "--config"].map(OsString::from).into();
        args.push(path.into());
        args.extend(more.iter().map(OsString::from));
        match with_file(args) {
            Ok(args) => Ok(args.into_iter().map(|a| a.into_string().unwrap()).collect()),
            Err(Failure::Usage(why)) => Err(why),
            Err(_) => panic!("an error in a file must be a usage error"),
        }
    }

    #[test]
    fn a_file_gives_options_and_the_command_line_comes_after_them() {
        let file = "port = 7000\nbind = ['::1', '127.0.0.1']\nunsafe-no-auth = false\nsize = '2gb'";
        let args = merged(file, &["--port", "7001"]).unwrap();
        let own = args.iter().position(|a| a == "--config").unwrap();
        assert_eq!(args[..2], ["farbank", "serve"]);
        let mut given = args[2..own].to_vec();
        given.sort();
        assert_eq!(given, ["--bind=::1,127.0.0.1", "--port=7000", "--size=2gb"]);
        assert_eq!(args[own + 2..], ["--port", "7001"]);
    }

    #[test]
    fn each_entry_of_the_table_set_is_an_option() {
        let file = "[set]\nslowlog-max-len = 5\nclient-output-buffer-limit = 'pubsub 1 2 3'";
        let args = merged(file, &[]).unwrap();
        let own = args.iter().position(|a| a == "--config").unwrap();
        let limit = "--set=client-output-buffer-limit=pubsub 1 2 3";
        assert_eq!(args[2..own], [limit, "--set=slowlog-max-len=5"]);
        let wrong = merged("[set]\nslowlog-max-len = true", &[]).unwrap_err();
        assert!(wrong.contains("cannot be a boolean"), "{wrong}");
    }

    #[test]
    fn every_workload_is_accepted_by_its_own_bench_only() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
        assert!(files.len() >= 4, "{files:?}");
        for file in files {
            let path = file.unwrap().path();
            let of = |bench: &str| {
                let args = ["farbank", "bench", bench, "--workload"].map(OsString::from);
                let args = args.into_iter().chain([path.clone().into()]).collect();
                let args = with_file(args).map_err(|_| bench.to_owned())?;
                crate::Cli::try_parse_from(args).map_err(|why| why.to_string())
            };
            let benches = FILES.iter().filter_map(|(verbs, _)| match verbs {
                ["bench", bench] => Some(of(bench).map(|_| *bench)),
                _ => None,
            });
            let fit: Vec<_> = benches.collect();
            assert_eq!(fit.iter().flatten().count(), 1, "{path:?}: {fit:?}");
        }
    }

    #[test]
    fn errors_in_a_file_name_the_line_and_the_option() {
        for (file, why) in [
            ("port = ", "port"),
            ("config = 'x'", "another one"),
            ("port = 1979-05-27", "datetime"),
            (
                "port = 1\nprot = 2",
                "farbank.toml: line 2: serve has no option \"prot\"; a similar",
            ),
            (
                "\n\nport = 70000",
                "line 3: invalid value '70000' for '--port <N|off>': a port must",
            ),
            ("help = true", "line 1: serve has no option \"help\""),
            (
                "'port=1 --bind' = '::1'",
                "line 1: serve has no option \"port=1 --bind\"",
            ),
            (
                "workers = 100000",
                "line 1: invalid value '100000' for '--workers <N>'",
            ),
            ("\nunsafe-no-auth = 'yes'", "line 2: unexpected value 'yes'"),
            (
                "port = 1\n[bind]\nip = 1",
                "line 2: \"bind\" cannot be a table",
            ),
        ] {
            let error = merged(file, &[]).unwrap_err();
            assert!(
                error.contains(why) && error.contains("farbank.toml"),
                "{error}"
            );
        }
    }
}
