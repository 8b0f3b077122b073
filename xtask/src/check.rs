//! The suites that have `farbank check` try to lose something.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use crate::RunSize;
use crate::run::{farbank, output, root, succeed, target, works};

/// The seeds a suite explores in each persistency mode. `cargo test` explores some of them, and a gate many more.
const SUITE_SEEDS: [(&str, &str); 5] = [
    ("adr", "0..8"),
    ("eadr", "0..2"),
    ("word", "0..5"),
    ("page", "0..8"),
    ("relaxed", "0..8"),
];
/// Those of the engine with batches of one, in each mode.
const ALONE_SEEDS: &str = "0..4";
/// Those of the engine with four classes, in each mode.
const CLASSES_SEEDS: [(&str, &str); 2] = [("adr", "0..3"), ("page", "0..3")];
/// Those of the engine with values of several extents.
const LARGE_SEEDS: [(&str, &str); 2] = [("adr", "0..3"), ("page", "0..3")];
/// The persistent hash indexes, each with the seeds in which a release finds a million distinct images of it.
pub(crate) const TABLES: [(&str, &str); 7] = [
    ("cceh", "0..700"),
    ("clht", "0..600"),
    ("level", "0..1000"),
    ("clevel", "0..320"),
    ("dash-eh", "0..500"),
    ("dash-lh", "0..80"),
    ("soft", "0..1000"),
];
/// Which faults are tried of which table: its names, its own files, and what it shares with another.
///
/// The two that take longest come first.
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
/// Under which each fault is tried in each mode: the rarest is found under 336.
const FAULT_SEEDS: &str = "0..1024";
/// What is explored of each in each mode: half a minute together.
const TABLE_SEEDS: [(&str, &str); 3] = [("adr", "0..100"), ("eadr", "0..40"), ("page", "0..60")];
/// What a suite explores of a table whose seeds take many times as long.
const SLOW_TABLE: &str = "dash-lh";
const SLOW_TABLE_SEEDS: [(&str, &str); 3] =
    [("adr", "0..12"), ("eadr", "0..20"), ("page", "0..30")];
/// What a suite and what a gate explore of the cache in each mode.
const CACHE_SEEDS: [(&str, &str, &str); 4] = [
    ("adr", "0..10", "0..24"),
    ("eadr", "0..2", "0..3"),
    ("word", "0..6", "0..24"),
    ("page", "0..20", "0..40"),
];
/// What a release asks of each mode: minutes of computing on one CPU, and distinct images in them.
const GATE_MINUTES: &str = "5";
const GATE_IMAGES: u64 = 1_000_000;
/// Crash points a release asks of each mode, lazily.
const LAZY_POINTS: u64 = 10_000;
/// Schedules in which each deviation that only threads can find is found.
const CONTROL_SCHEDULES: &str = "20000";
/// Seeds of which a gate crashes the recoveries of recoveries.
const GATE_DEEP_SEEDS: &str = "0..8";

/// The servers whose histories are searched, each on a pool in memory.
const HISTORIES: [&[&str]; 5] = [
    &[],
    &["--medium", "file", "--size", "32mb", "--max-size", "256mb"],
    &["--medium", "file", "--sync", "everysec"],
    &["--medium", "file", "--sync", "never", "--workers", "2"],
    &["--size", "32mb", "--full"],
];

/// `farbank check <what>`, if the binary has it.
fn check(what: &str) -> Result<Command, String> {
    let mut command = farbank();
    if !works(command.get_program(), &["check", what, "--help"]) {
        return Err(format!(
            "it did not run: this farbank has no `check {what}`"
        ));
    }
    command.args(["check", what]);
    Ok(command)
}

/// Clients that share keys write down what they see of servers that are killed; an order of their calls is searched.
pub(crate) fn histories(size: RunSize) -> Result<(), String> {
    let cycles = if size == RunSize::Gate { "200" } else { "20" };
    for server in HISTORIES {
        let mut command = check("histories")?;
        output(command.args(["--cycles", cycles]).args(server))?;
    }
    Ok(())
}

/// A server under load is killed and started again, many times.
pub(crate) fn kill(size: RunSize) -> Result<(), String> {
    let cycles = if size == RunSize::Gate { "1000" } else { "60" };
    output(check("kill")?.args(["--cycles", cycles])).map(|_| ())
}

/// The engine, the cache and the tables are crashed wherever they can be, in every persistency mode.
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
        output(command.args(["--seeds", seeds])).map(|_| ())
    };
    for (mode, seeds) in SUITE_SEEDS {
        kv("kv", mode, seeds)?;
        if mode != "relaxed" {
            kv("kv-alone", mode, ALONE_SEEDS)?; // Its operations are durable when they return.
        }
    }
    for (mode, seeds) in CLASSES_SEEDS {
        kv("kv-classes", mode, seeds)?;
        kv("kv-slices", mode, seeds)?;
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
                    "{table}: {images} distinct images, {GATE_IMAGES} are asked for"
                ));
            }
        }
    }
    Ok(())
}

/// Every way a power cut can look to recovery, at so many crash points; those with too many ways do not count.
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
                "{mode}: {points} points without sampling, {least} are asked for"
            ));
        }
    }
    Ok(())
}

/// The explorer reaches every situation that the engine, the cache and the tables list. It objects to every fault that they
/// list by name. It objects when any place drops a flush or a drain: each place of the engine and of the cache, and each place
/// that only one table has.
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
    ];
    let commands = engines.into_iter().chain(tables).map(|(target, only)| {
        let mut command = Command::new(&binary);
        command.args(["check", "faults", "--target", target]);
        if let Some(only) = only {
            command.args(["--only", only]);
        }
        // The number of seeds ends the search and not the time: so it ends alike on every machine.
        command.args(["--seeds", FAULT_SEEDS, "--seconds", "3600"]);
        command.args(["--threads", "1"]);
        command
    });
    side_by_side(commands.collect())
}

/// Runs commands that use one thread each, as many at a time as there are CPUs.
///
/// The rarest fault of a command takes minutes of one thread. So one command after another would leave CPUs idle.
fn side_by_side(commands: Vec<Command>) -> Result<(), String> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(commands.into_iter());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no holder panics").next();
                    let Some(mut command) = next else { return };
                    if let Err(failure) = output(&mut command) {
                        failures.lock().expect("no holder panics").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no holder panics");
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("\n")),
    }
}

/// Threads under schedules of chance and of priorities; and what only schedules find is found.
pub(crate) fn schedules(size: RunSize) -> Result<(), String> {
    let binary = with_faults("shuttle", "--cfg shuttle")?;
    let (schedules, alone, others) = match size {
        RunSize::Suite => ("2000", "1000", "200"),
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
    Ok(())
}

/// The tree under disasters on a simulated rack: what holds, and that what must fail does.
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
    for system in ["published", "fg+", "fg"] {
        tree("schedules", &["--system", system, "--schedules", others])?;
    }
    tree("schedules", &["--controls"])?;
    tree("faults", &["--threads", "1"])
}

/// A binary that has faults by name, in a folder of its own, so that nobody takes it for the real one.
fn with_faults(folder: &str, flags: &str) -> Result<PathBuf, String> {
    let folder = target().join(folder);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root()).env("RUSTFLAGS", flags);
    command.args([
        "build",
        "--release",
        "--package=farbank-cli",
        "--features=faults",
    ]);
    succeed(command.arg("--target-dir").arg(&folder))?;
    Ok(folder.join("release/farbank"))
}

/// Every engine answers the contest's workload, and costs far memory what was published; a gate asks at the size
/// those figures are stated for.
pub(crate) fn judge(size: RunSize) -> Result<(), String> {
    let scale = match size {
        RunSize::Suite => "1/256",
        RunSize::Gate => "1/64",
    };
    for round in [["--round", "final"], ["--round", "preliminary"]] {
        let mut command = farbank();
        command.args(["bench", "judge", "--target"]);
        // The first round's limits are too tight for records that are checked: ours is not judged by them.
        command.arg(if round[1] == "final" { "all" } else { "prelim" });
        command.args(round);
        command.args(["--scale", scale, "--phases", "correctness"]);
        output(&mut command)?;
    }
    Ok(())
}

/// As many seeds of one mode as the gate's time allows.
fn crash_for_long(mode: &str) -> Result<(), String> {
    let mut command = check("crash")?;
    command.args(["--target", "kv", "--persistency", mode, "--threads", "1"]);
    command.args(["--seeds", "0..1000000", "--minutes", GATE_MINUTES, "--json"]);
    let text = output(&mut command)?;
    let images = figure(&text, "distinct_images")?;
    match images >= GATE_IMAGES {
        true => Ok(()),
        false => Err(format!(
            "{mode}: {images} distinct images, {GATE_IMAGES} are asked for"
        )),
    }
}

/// The number called `name` in the last line of what was printed.
fn figure(text: &str, name: &str) -> Result<u64, String> {
    let report = text.lines().last().unwrap_or_default();
    number(report, name).ok_or_else(|| format!("no {name} in the last line: {report}"))
}

/// The number called `name` in a line of JSON.
fn number(json: &str, name: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{name}\":"))?;
    let rest = rest.trim_start();
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn a_number_is_found_by_its_name() {
        let json = r#"{"images":12,"distinct_images": 7}"#;
        assert_eq!(number(json, "distinct_images"), Some(7));
        assert_eq!(number(json, "images"), Some(12));
        assert_eq!(number(json, "kills"), None);
    }
}
