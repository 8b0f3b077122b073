//! Suites that run `farbank check`, and long tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;

use crate::RunSize;
use crate::run::{
    cargo, cargo_command, farbank, in_parallel, install_ip, json, output, succeed, target, works,
};

/// Seeds of the engine that a suite explores in each persistency mode. `cargo test` explores some of them, a gate many
/// more. With fewer seeds there would be no crash at some places that flush, and `check crash` would take some of [`MORE_SEEDS`]; that
/// also holds for the targets below.
///
/// Seed 7 of `page` covers a stale `sealed` of a segment that was never opened: records beyond it must not be lost. Seed 5
/// of `relaxed` covers two losses of synced large values under `everysec`: extents that are recycled before the newer
/// values are durable, and MOVED copies of records whose extents are not durable.
const SUITE_SEEDS: [(&str, &str); 5] = [
    ("adr", "0..5"),
    ("eadr", "0..2"),
    ("word", "0..5"),
    ("page", "0..8"),
    ("relaxed", "0..6"),
];
/// Maximum number of seeds after those, if a change has moved the random runs so that a place is not reached.
const MORE_SEEDS: &str = "16";
/// Seeds of the engine with batches of one, by mode. With `eadr` a crash leaves most images.
const ALONE_SEEDS: [(&str, &str); 4] = [
    ("adr", "0..4"),
    ("eadr", "0..2"),
    ("word", "0..4"),
    ("page", "0..4"),
];
/// Seeds of the engine with four segment classes, by mode.
const CLASSES_SEEDS: [(&str, &str); 2] = [("adr", "0..3"), ("page", "0..3")];
/// Seeds of the engine with values of several extents, by mode.
const LARGE_SEEDS: [(&str, &str); 2] = [("adr", "0..2"), ("page", "0..2")];
/// The persistent hash indexes. With these seeds a gate finds a million distinct images of each.
pub(crate) const TABLES: [(&str, &str); 7] = [
    ("cceh", "0..700"),
    ("clht", "0..600"),
    ("level", "0..1000"),
    ("clevel", "0..320"),
    ("dash-eh", "0..500"),
    ("dash-lh", "0..80"),
    ("soft", "0..1000"),
];
/// Faults that are tried for each table: its named faults, those of its own files, and those of files it shares with
/// another table.
///
/// The two slowest entries come first.
const TABLE_FAULTS: [(&str, &str); 23] = [
    ("dash-lh", "index/dash_lh/"),
    ("dash-eh,dash-lh", "index/dash/"),
    ("cceh", "index."),
    ("cceh", "cceh."),
    ("cceh", "index/cceh/"),
    ("cceh", "index/extendible/"),
    ("clht", "index."),
    ("clht", "clht."),
    ("clht", "index/clht/"),
    ("clht", "index/pool_heap/recover.rs"),
    ("level", "level."),
    ("level", "index/level/"),
    ("clevel", "clevel."),
    ("clevel", "index/clevel/"),
    ("clevel", "index/pool_heap/heap.rs"),
    ("clevel", "index/pool_heap/recover.rs"),
    ("dash-eh", "dash."),
    ("dash-eh", "dash-eh."),
    ("dash-eh", "index/dash_eh/"),
    ("dash-lh", "dash-lh."),
    ("soft", "soft."),
    ("soft", "index/soft/"),
    ("soft", "index/pool_heap/mod.rs"),
];
/// Seeds tried for each fault in each mode. The rarest fault is found with seed 336.
const FAULT_SEEDS: &str = "0..1024";
/// Seeds of each table, by mode: half a minute in total.
const TABLE_SEEDS: [(&str, &str); 3] = [("adr", "0..100"), ("eadr", "0..40"), ("page", "0..60")];
/// The table whose seeds take many times as long as the others', and its seeds in a suite.
const SLOW_TABLE: &str = "dash-lh";
const SLOW_TABLE_SEEDS: [(&str, &str); 3] =
    [("adr", "0..12"), ("eadr", "0..20"), ("page", "0..30")];
/// Seeds of the cache in a suite and in a gate, by mode.
const CACHE_SEEDS: [(&str, &str, &str); 4] = [
    ("adr", "0..10", "0..24"),
    ("eadr", "0..2", "0..3"),
    ("word", "0..6", "0..24"),
    ("page", "0..20", "0..40"),
];
/// Requirements of a gate for each mode: minutes on one CPU, and the number of distinct images found in that time.
const GATE_MINUTES: &str = "5";
const GATE_IMAGES: u64 = 1_000_000;
/// Crash points that a gate requires in each mode for the suite `lazy`.
const LAZY_POINTS: u64 = 10_000;
/// Schedules in which the explorer must find each fault that only concurrent threads expose.
const CONTROL_SCHEDULES: &str = "20000";
/// Seeds for which a gate also crashes recovery, and the recovery after that crash.
const GATE_DEEP_SEEDS: &str = "0..8";

/// Arguments of the servers whose histories are checked. Each pool is in memory.
const HISTORIES: [&[&str]; 5] = [
    &[],
    &["--medium", "file", "--size", "32mb", "--max-size", "256mb"],
    &["--medium", "file", "--sync", "everysec"],
    &["--medium", "file", "--sync", "never", "--workers", "2"],
    &["--size", "32mb", "--full"],
];

/// What the power cuts of a server on a simulated medium can lose.
const CUT_HISTORIES: [&str; 3] = ["page", "adr", "word"];

/// Returns the command `farbank check <what>`. Returns an error if the binary does not have it.
fn check(what: &str) -> Result<Command, String> {
    let mut command = farbank();
    if !works(command.get_program(), &["check", what, "--help"]) {
        return Err(format!(
            "the suite cannot run: this binary has no command `check {what}`"
        ));
    }
    command.args(["check", what]);
    Ok(command)
}

/// Records the histories of clients that share keys, on servers that are killed or whose power is cut, and searches an
/// order of the calls that explains all replies.
pub(crate) fn histories(size: RunSize) -> Result<(), String> {
    let cycles = if size == RunSize::Gate { "200" } else { "20" };
    for server in HISTORIES {
        let mut command = check("histories")?;
        output(command.args(["--cycles", cycles]).args(server))?;
    }
    let cycles = if size == RunSize::Gate { "2000" } else { "60" };
    for mode in CUT_HISTORIES {
        let mut command = check("histories")?;
        command.args(["--persistency", mode, "--cycles", cycles, "--json"]);
        let figures = json(&mut command)?;
        for count in ["power_cuts", "ends_in_recovery", "media_failures"] {
            if figures[count] == 0 {
                return Err(format!(
                    "{mode}: {count} is 0, so one kind of end was not tried"
                ));
            }
        }
    }
    Ok(())
}

/// Kills, pauses and restarts the processes of a tree on memory servers.
pub(crate) fn cluster(size: RunSize) -> Result<(), String> {
    let cycles = if size == RunSize::Gate { "300" } else { "30" };
    output(check("cluster")?.args(["--cycles", cycles]))?;
    let mut shared = check("cluster")?;
    shared.args(["--fabric", "shm", "--processes", "4", "--threads", "2"]);
    output(shared.args(["--cycles", cycles])).map(|_| ())
}

/// Runs the tests that `cargo test` ignores.
pub(crate) fn long_tests(_size: RunSize) -> Result<(), String> {
    cargo(&["test", "--tests", "--", "--ignored"])
}

/// Runs a tree between network namespaces: the tests of `crates/cli/tests/hosts.rs`, and cycles in which hosts are cut off.
pub(crate) fn tree_hosts(size: RunSize) -> Result<(), String> {
    install_ip()?;
    let mut tests = cargo_command();
    tests
        .env("FARBANK_TEST_HOSTS", "1")
        .args(["test", "-p", "farbank-cli", "--test", "hosts"])
        .args(["--", "--test-threads", "1"]);
    succeed(&mut tests)?;
    let cycles = if size == RunSize::Gate { "300" } else { "30" };
    let mut command = check("cluster")?;
    command.args(["--hosts", "--threads", "2", "--cycles", cycles]);
    let figures = json(command.arg("--json"))?;
    // In a few cycles it may happen that no process holds a lock when it is cut off.
    match figures["taken_in_cuts"].as_u64() {
        Some(0) if size == RunSize::Gate => {
            Err("no process held a lock when it was cut off".into())
        }
        Some(_) => Ok(()),
        None => Err(format!("no number of locks: {figures}")),
    }
}

/// Kills and restarts a server under load many times.
pub(crate) fn kill(size: RunSize) -> Result<(), String> {
    let [full, roomy] = match size {
        RunSize::Gate => ["600", "400"],
        RunSize::Suite => ["40", "20"],
    };
    output(check("kill")?.args(["--cycles", full]))?;
    // With more room the server keeps a checkpoint of its index, and most opens read it.
    output(check("kill")?.args(["--cycles", roomy, "--size", "128mb"]))?;
    output(check("kill")?.args(["--cycles", roomy, "--maxmemory", "40mb"])).map(|_| ())
}

/// Crashes the engine, the cache and the tables at every crash point, in every persistency mode.
pub(crate) fn crash(size: RunSize) -> Result<(), String> {
    tables(size)?;
    for (mode, suite_seeds, gate_seeds) in CACHE_SEEDS {
        let seeds = if size == RunSize::Gate {
            gate_seeds
        } else {
            suite_seeds
        };
        let mut command = check("crash")?;
        command.args(["--target", "mdb", "--persistency", mode]);
        output(command.args(["--seeds", seeds]))?;
    }
    let kv = |target, mode, seeds| {
        let mut command = check("crash")?;
        command.args(["--target", target, "--persistency", mode]);
        command.args(["--more-seeds", MORE_SEEDS]);
        output(command.args(["--seeds", seeds])).map(|_| ())
    };
    for (mode, seeds) in SUITE_SEEDS {
        kv("kv", mode, seeds)?;
    }
    // Its operations are durable when they return, so it is not relaxed.
    for (mode, seeds) in ALONE_SEEDS {
        kv("kv-alone", mode, seeds)?;
    }
    for (mode, seeds) in CLASSES_SEEDS {
        kv("kv-classes", mode, seeds)?;
        kv("kv-slices", mode, seeds)?;
        kv("kv-checkpoint", mode, seeds)?;
    }
    for (mode, seeds) in LARGE_SEEDS {
        kv("kv-large", mode, seeds)?;
    }
    if size == RunSize::Suite {
        return Ok(());
    }
    for (mode, _) in SUITE_SEEDS {
        crash_for_long(mode)?;
        let mut command = check("crash")?;
        command.args(["--target", "kv", "--persistency", mode]);
        command.args(["--depth", "3", "--seeds", GATE_DEEP_SEEDS]);
        output(&mut command)?;
    }
    Ok(())
}

fn tables(size: RunSize) -> Result<(), String> {
    for (table, gate_seeds) in TABLES {
        let table_seeds = match (table, size) {
            (SLOW_TABLE, RunSize::Suite) => SLOW_TABLE_SEEDS,
            _ => TABLE_SEEDS,
        };
        for (mode, seeds) in table_seeds {
            let long = size == RunSize::Gate && mode == "adr";
            let mut command = check("crash")?;
            command.args(["--target", table, "--persistency", mode, "--json"]);
            command.args(["--seeds", if long { gate_seeds } else { seeds }]);
            let images = figure(&output(&mut command)?, "distinct_images")?;
            if long && images < GATE_IMAGES {
                return Err(format!(
                    "{table}: {images} distinct images, at least {GATE_IMAGES} are required"
                ));
            }
        }
    }
    Ok(())
}

/// Explores every image that a power cut can leave, at a number of crash points. Points with too many images, which are
/// sampled, do not count.
pub(crate) fn lazy(size: RunSize) -> Result<(), String> {
    for mode in ["adr", "word", "page"] {
        let (seeds, least) = match size {
            RunSize::Suite => ("0..6", 0),
            RunSize::Gate => ("0..240", LAZY_POINTS),
        };
        let mut command = check("crash")?;
        command.args(["--target", "kv", "--lazy", "--steps", "40"]);
        command.args(["--persistency", mode, "--seeds", seeds, "--json"]);
        let text = output(&mut command)?;
        let points = figure(&text, "exhaustive_points")?;
        if points < least {
            return Err(format!(
                "{mode}: {points} points without sampling, at least {least} are required"
            ));
        }
    }
    Ok(())
}

/// Checks the explorer itself. It must reach every situation that the engine, the cache and the tables list. It must
/// find every fault that they list by name. It must notice when any place drops a flush or a drain: each place of the
/// engine and of the cache, and each place that only one table has.
pub(crate) fn faults(_: RunSize) -> Result<(), String> {
    let binary = with_faults("faults", "")?;
    output(Command::new(&binary).args(["check", "situations"]))?;
    let tables = TABLE_FAULTS
        .iter()
        .map(|(table, only)| (*table, Some(*only)));
    let engines = [
        ("kv", None),
        ("mdb", None),
        ("kv-large", Some("kv.")),
        ("kv-slices", Some("kv.slice_")),
        ("kv-checkpoint", Some("kv.checkpoint_")),
    ];
    let commands = engines.into_iter().chain(tables).map(|(target, only)| {
        let mut command = Command::new(&binary);
        command.args(["check", "faults", "--target", target]);
        if let Some(only) = only {
            command.args(["--only", only]);
        }
        // The number of seeds ends the search, not the time. So the result is the same on every machine.
        command.args(["--seeds", FAULT_SEEDS, "--seconds", "3600"]);
        // These two take two thirds of the time of all. With one thread each they would end last, alone.
        let threads = match target {
            "kv" | "kv-checkpoint" => "0", // One thread for each CPU.
            _ => "1",
        };
        command.args(["--threads", threads]);
        command
    });
    side_by_side(commands.collect())
}

/// Runs commands, as many at a time as there are CPUs.
///
/// The rarest fault of a command takes minutes of one thread. So one command after another would leave CPUs idle.
fn side_by_side(commands: Vec<Command>) -> Result<(), String> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let failures = Mutex::new(Vec::new());
    in_parallel(commands, workers, |_, mut command| {
        if let Err(failure) = output(&mut command) {
            failures.lock().expect("no holder panics").push(failure);
        }
        Ok(())
    })?;
    let failures = failures.into_inner().expect("no holder panics");
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("\n")),
    }
}

/// Runs threads under random schedules and under schedules by priorities. Also checks that the faults that only
/// schedules expose are found.
pub(crate) fn schedules(size: RunSize) -> Result<(), String> {
    let binary = with_faults("shuttle", "--cfg shuttle")?;
    let (schedules, alone, others) = match size {
        RunSize::Suite => ("600", "300", "100"),
        RunSize::Gate => ("100000", "10000", "5000"),
    };
    let run = |rest: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(["check", "schedules", "--seed", "0x10000", "--target"]);
        output(command.args(rest)).map(|_| ())
    };
    run(&["kv", "--schedules", schedules])?;
    run(&["kv-alone", "--schedules", alone])?;
    for name in ["mdb"].into_iter().chain(TABLES.map(|(table, _)| table)) {
        run(&[name, "--schedules", others])?;
    }
    for name in ["kv", "kv-alone", "mdb", "cceh", "clht", "clevel", "soft"] {
        run(&[name, "--schedules", CONTROL_SCHEDULES, "--controls"])?;
    }
    backup_schedules()
}

/// Takes backups while threads write, under schedules.
fn backup_schedules() -> Result<(), String> {
    let mut command = cargo_command();
    command.env("RUSTFLAGS", "--cfg shuttle");
    command.args(["test", "--release", "--package=farbank-kv"]);
    command.args(["--test", "backup_schedules", "--target-dir"]);
    succeed(command.arg(target().join("shuttle")))
}

/// Runs the tree under injected failures on a simulated cluster. Also checks that the known faults are found.
pub(crate) fn tree(size: RunSize) -> Result<(), String> {
    let binary = with_faults("faults", "")?;
    let tree = |what: &str, rest: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(["check", what, "--target", "tree"]);
        output(command.args(rest)).map(|_| ())
    };
    let (schedules, others) = match size {
        RunSize::Suite => ("6000", "1000"),
        RunSize::Gate => ("20000", "5000"),
    };
    tree("schedules", &["--schedules", schedules])?;
    for system in ["published", "fg+", "fg", "farbank"] {
        tree("schedules", &["--system", system, "--schedules", others])?;
    }
    tree("schedules", &["--controls"])?;
    tree("faults", &["--threads", "1"])
}

/// Crates of the binary that no explorer runs. Where they are not optimised, a build takes less time.
const UNEXPLORED: [&str; 3] = ["farbank-bench", "farbank-contest", "farbank-server"];

/// Builds a binary that has named faults. It is in a folder of its own, so that it is not used as the real one.
fn with_faults(folder: &str, flags: &str) -> Result<PathBuf, String> {
    let folder = target().join(folder);
    let mut command = cargo_command();
    command.env("RUSTFLAGS", flags);
    command.args([
        "build",
        "--release",
        "--package=farbank-cli",
        "--features=faults",
    ]);
    for package in UNEXPLORED {
        let option = format!("profile.release.package.{package}.opt-level=0");
        command.args(["--config", &option]);
    }
    succeed(command.arg("--target-dir").arg(&folder))?;
    Ok(folder.join("release/farbank"))
}

/// Checks that every engine answers the contest's workload correctly and has the published costs in far memory. A gate
/// runs at the scale for which the published figures hold.
pub(crate) fn judge(size: RunSize) -> Result<(), String> {
    let scale = match size {
        RunSize::Suite => "1/256",
        RunSize::Gate => "1/64",
    };
    for round in [["--round", "final"], ["--round", "preliminary"]] {
        let mut command = farbank();
        command.args(["bench", "judge", "--target"]);
        // The preliminary round's limits are too tight for records with checksums, so our engine is left out there.
        command.arg(if round[1] == "final" { "all" } else { "prelim" });
        command.args(round);
        command.args(["--scale", scale, "--phases", "correctness"]);
        output(&mut command)?;
    }
    Ok(())
}

/// Explores as many seeds of one mode as the gate's time allows.
fn crash_for_long(mode: &str) -> Result<(), String> {
    let mut command = check("crash")?;
    command.args(["--target", "kv", "--persistency", mode, "--threads", "1"]);
    command.args(["--seeds", "0..1000000", "--minutes", GATE_MINUTES, "--json"]);
    let text = output(&mut command)?;
    let images = figure(&text, "distinct_images")?;
    match images >= GATE_IMAGES {
        true => Ok(()),
        false => Err(format!(
            "{mode}: {images} distinct images, at least {GATE_IMAGES} are required"
        )),
    }
}

/// Returns the sum of the figure `name` over all runs of the report, which is JSON in the last line of `text`.
fn figure(text: &str, name: &str) -> Result<u64, String> {
    let line = text.lines().last().unwrap_or_default();
    let report: Value = serde_json::from_str(line)
        .map_err(|e| format!("the last line is not JSON: {e}: {line}"))?;
    let runs = report["runs"].as_array().map_or(&[][..], Vec::as_slice);
    let figures: Option<Vec<u64>> = runs.iter().map(|run| run[name].as_u64()).collect();
    match figures {
        Some(figures) if !figures.is_empty() => Ok(figures.iter().sum()),
        _ => Err(format!("no {name} in the last line: {line}")),
    }
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn a_figure_is_the_sum_of_the_runs() {
        let text = "progress\n{\"runs\":[{\"images\":12,\"places\":3},{\"images\":7}]}\n";
        assert_eq!(figure(text, "images"), Ok(19));
        for name in ["places", "kills"] {
            assert!(figure(text, name).unwrap_err().starts_with("no "), "{name}");
        }
        assert!(figure("{}", "images").is_err());
        assert!(figure("no JSON", "images").is_err());
    }
}
