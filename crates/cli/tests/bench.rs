//! `farbank bench` as a process: its JSON output, and its errors.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command.arg("bench").args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs an experiment of `bench kv`, and checks its JSON object, except whether its bounds hold: they may not hold at
/// this size and beside other tests.
fn kv_has_figures(experiment: &str, options: &[&str], figures: usize) {
    let mut arguments = vec!["kv", "--json", "--experiment", experiment];
    arguments.extend(options);
    let output = bench(&arguments);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let last = text
        .lines()
        .last()
        .unwrap_or_else(|| panic!("{}", stderr(&output)));
    let object: Value = serde_json::from_str(last).unwrap();
    assert_eq!(object["bench"], "kv");
    if options.contains(&"--keys") {
        assert_eq!(object["settings"]["keys"], 5000);
    }
    let found = object["figures"].as_array().unwrap();
    assert_eq!(found.len(), figures, "{experiment}: {last}");
    for figure in found {
        assert_eq!(figure["experiment"], experiment);
        assert!(figure["value"].is_number(), "{figure}");
        let kind = figure["kind"].as_str().unwrap();
        assert!(["counted", "measured"].contains(&kind), "{figure}");
    }
    let holds = found.iter().all(|figure| figure["holds"] == true);
    assert_eq!(object["holds"], holds);
    assert_eq!(output.status.code(), Some(if holds { 0 } else { 1 }));
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn the_last_line_of_bench_kv_has_every_figure() {
    kv_has_figures("amplification", &["--size", "16mb"], 5);
    kv_has_figures("load", &["--keys", "5000"], 8);
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn bench_kv_reopens_a_pool_and_removes_its_file() {
    // In memory if possible, to avoid disk syncs.
    let folder = match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let pool = folder.path().join("pool");
    let options = ["--keys", "5000", "--medium", pool.to_str().unwrap()];
    kv_has_figures("reopen", &options, 16);
    assert!(!pool.exists());
}

/// Runs `bench tree`. Returns its output and its JSON object.
fn tree(arguments: &[&str]) -> (Output, Value) {
    let mut all = vec!["tree", "--json", "--entries", "3000"];
    if !arguments.contains(&"--window-us") {
        all.extend(["--window-us", "200"]);
    }
    all.extend(arguments);
    let output = bench(&all);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let last = text.lines().last().unwrap_or_default();
    let object = serde_json::from_str(last).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (output, object)
}

#[test]
fn bench_tree_measures_every_system_and_repeats_a_seed_exactly() {
    let arguments = [
        "--system",
        "sherman,fg+,fg",
        "--coroutines",
        "2",
        "--seed",
        "7",
    ];
    let (output, first) = tree(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(first["settings"]["clients"], 8 * 22 * 2);
    let figures = first["figures"].as_array().unwrap();
    for system in ["sherman", "fg+", "fg"] {
        let name = format!("{system}: throughput");
        assert!(
            figures.iter().any(|figure| figure["name"] == name),
            "{name}"
        );
    }
    let (_, second) = tree(&arguments);
    assert_eq!(first["figures"], second["figures"]);
    assert_eq!(first["notes"], second["notes"]);
    let (_, other) = tree(&[
        "--system",
        "sherman,fg+,fg",
        "--coroutines",
        "2",
        "--seed",
        "8",
    ]);
    assert_ne!(first["figures"], other["figures"]);
}

#[test]
fn bench_tree_measures_each_kind_of_operation_over_tcp() {
    let run = |mix: &str, system: &'static str| {
        let options = ["--fabric", "tcp", "--servers", "1", "--window-us", "100000"];
        let (output, found) = tree(&[&options[..], &["--mix", mix, "--system", system]].concat());
        // The bound of the bare round trips may be broken on a busy machine.
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1)), "{output:?}");
        let figures = found["figures"].as_array().unwrap().clone();
        move |name: &str| {
            let name = format!("{system}: {name}");
            let figure = figures
                .iter()
                .find(|figure| figure["name"] == name.as_str());
            figure.and_then(|figure| figure["value"].as_f64())
        }
    };
    let figure = run("ycsb-f", "sherman");
    assert!(figure("all clients: throughput").unwrap() > 0.0);
    let rounded = |name: &str| figure(name).map(f64::round);
    assert_eq!(rounded("one client: round trips of a lookup"), Some(1.0));
    assert_eq!(
        figure("one client: round trips of an update").map(f64::round),
        Some(3.0)
    );
    // A lookup, and a compare-and-swap of the three round trips of a write.
    assert!(figure("all clients: round trips of writes").unwrap() > 3.5);
    assert_eq!(figure("all clients: ranges, p50"), None);
    let figure = run("ycsb-e", "fg+");
    assert_eq!(
        figure("one client: round trips of an update").map(f64::round),
        Some(4.0)
    );
    assert!(figure("all clients: ranges, p50").unwrap() > 0.0);
    assert_eq!(figure("all clients: lookups, p50"), None);
}

#[test]
fn bench_tree_measures_compute_servers_of_several_threads() {
    for fabric in ["tcp", "shm"] {
        let options = [
            "--compute-servers",
            "2",
            "--threads",
            "2",
            "--coroutines",
            "2",
        ];
        let load = ["--mix", "ycsb-a", "--system", "sherman"];
        let time = ["--window-us", "100000"];
        let all = [&["--fabric", fabric][..], &options, &load, &time].concat();
        let (output, found) = tree(&all);
        // The bound of the bare round trips may be broken on a busy machine.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        let figures = found["figures"].as_array().unwrap();
        let name = "sherman: all clients: throughput";
        let throughput = figures.iter().find(|figure| figure["name"] == name);
        assert!(throughput.unwrap()["value"].as_f64().unwrap() > 0.0);
        let notes = found["notes"].to_string();
        let servers = "2 compute servers of 2 threads in this process; 8 clients";
        assert!(notes.contains(servers), "{notes}");
    }
}

#[test]
fn bench_tree_fails_if_a_bound_does_not_hold() {
    // The index cache of such a small tree has one node, and a single client has no contention.
    let (output, found) = tree(&["--experiment", "counts", "--servers", "1", "--threads", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(found["holds"], false);
    let text = stderr(&output);
    assert!(
        text.contains("counts: ") && text.contains("should be at least"),
        "{text}"
    );
}

#[test]
fn a_missing_server_is_an_error_that_names_its_package() {
    for (peer, package) in [("redis", "redis-server"), ("memcached", "memcached")] {
        let missing = format!("/nowhere/{package}");
        let flag = format!("--{peer}");
        let output = bench(&["server", "--peer", peer, &flag, &missing]);
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        let told = text.contains(&missing) && text.contains(&format!("package {package}"));
        assert!(told, "{text}");
    }
}

#[test]
fn an_open_loop_reports_percentiles_of_both_servers() {
    if !Path::new("/dev/shm").is_dir() || Command::new("redis-server").arg("-v").output().is_err() {
        eprintln!("skipped: redis-server or /dev/shm is missing");
        return;
    }
    let small = ["--keys", "2000", "--seconds", "1", "--rounds", "1"];
    let more = [
        "--connections",
        "4",
        "--loads",
        "5",
        "--aged",
        "50",
        "--json",
    ];
    let output = bench(&[&["server", "--open-loop"], &small[..], &more].concat());
    // A bound need not hold on a busy machine: the test checks the report, not the bounds.
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let object: Value =
        serde_json::from_str(last).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(object["settings"]["sync"], "none");
    let figures = object["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 2 + 15, "{text}");
    for system in ["redis-server", "farbank"] {
        let name = format!(": p99.9, {system}");
        let found = figures
            .iter()
            .find(|figure| figure["name"].as_str().unwrap().ends_with(&name));
        assert!(found.unwrap()["value"].as_f64().unwrap() > 0.0, "{text}");
    }
}

#[test]
fn options_of_the_open_loop_and_of_the_closed_loop_exclude_each_other() {
    for arguments in [
        &["server", "--keys", "10"][..],
        &["server", "--aged", "50"],
        &["server", "--open-loop", "--pipelines", "16"],
        &["server", "--open-loop", "--requests", "10"],
        &["server", "--open-loop", "--aged", "95"],
        &["server", "--open-loop", "--peer", "memcached"],
    ] {
        let output = bench(arguments);
        let code = output.status.code();
        assert_eq!(code, Some(2), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn curves_are_drawn_if_the_experiment_has_any() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("curves.svg");
    let draw = |experiment: &str| {
        let small = [
            "index",
            "--target",
            "clht,soft",
            "-n",
            "2000",
            "--experiment",
        ];
        let svg = ["--svg", file.to_str().unwrap()];
        bench(&[&small[..], &[experiment], &svg].concat())
    };
    let output = draw("counts");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("found no curve"),
        "{}",
        stderr(&output)
    );
    assert!(!file.exists());
    let output = draw("load-factor");
    assert!(output.status.success(), "{}", stderr(&output));
    let picture = std::fs::read_to_string(&file).unwrap();
    for text in ["<svg", "utilisation", "clht", "soft", "</svg>"] {
        assert!(picture.contains(text), "{text} is missing in {picture}");
    }
}

#[test]
fn invalid_options_are_refused() {
    for arguments in [
        &["kv", "--size", "1mb"][..],
        &["kv", "--keys", "0"],
        &["server", "--rounds", "0"],
        &["server", "--pipelines", "16,0"],
        &["cache", "--experiment", "hot", "-n", "9999"],
        &["tree", "--skew", "1.5"],
        &["tree", "--key-bytes", "4"],
        &["tree", "--fabric", "rdma"],
        &["tree", "--fabric", "tcp", "--system", "sherman-published"],
        &["tree", "--coroutines", "8"],
        &["tree", "--memory-servers", "127.0.0.1:7411"],
        &[
            "tree",
            "--memory-servers",
            "127.0.0.1:7411",
            "--key-file",
            "key",
        ],
        &[
            "tree",
            "--fabric",
            "shm",
            "--system",
            "fg",
            "--memory-servers",
            "127.0.0.1:7411",
            "--key-file",
            "key",
        ],
        &[
            "tree",
            "--fabric",
            "tcp",
            "--memory-servers",
            "127.0.0.1:7411",
            "--key-file",
            "key",
        ],
        &["index", "--svg", "/nowhere/curves.svg"],
        &[
            "index",
            "--target",
            "clht",
            "--experiment",
            "mix",
            "-r",
            "0.5",
            "-s",
            "0.5",
        ],
        &["index", "--target", "clht", "-f", "ab"],
        &[
            "index",
            "--target",
            "clht",
            "--experiment",
            "counts",
            "-f",
            "ab",
            "-k",
            "6",
        ],
        &["index", "--target", "clht", "-f", "abcdefg", "-k", "1"],
        &[
            "index",
            "--mode",
            "time",
            "--distribution",
            "zipfian",
            "-r",
            "0.5",
            "-i",
            "0.5",
        ],
        &["index", "--pcm=true"],
        &["index", "--experiment", "array", "--no-flush"],
        &["tree", "--experiment", "keys", "--key-bytes", "64"],
    ] {
        let output = bench(arguments);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}
