//! The durability phase: kills a process that sets keys, and reads all keys in another process.
//!
//! ```text
//!   judge                 writer                      reader
//!     │ ledger ──────────▶ set, acknowledge, set ...    │
//!     │ ◀── acknowledged ───┘                           │
//!     │ SIGKILL at any point                            │
//!     │ ledger ────────────────────────────────────────▶ get every key
//!     │ ◀── found ──────────────────────────────────────┘
//!     ▼ each key must have the version acknowledged last, or the next one
//! ```
//!
//! Versions of a key continue from kill to kill. The processes exchange all data in files, because engines may write to
//! their standard output.
//!
//! Stores of a killed process to a shared mapping stay in the file, flushed or not. So this phase finds engines that
//! delay writes or cannot recover, but not those that omit a flush. With our libpmem (`pmem/`) only drained bytes are
//! certain to be in the file. With it, every second writer kills itself before one of its drains.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farbank_bench::figure::{Figure, Report};
use farbank_contest::judge::{ContestRound, KeyNames};
use farbank_contest::{Engine, Worker};
use farbank_pm::rng::Rng;

use crate::Table;
use crate::engine::Outside;

/// Number of keys.
const KEYS: u32 = 3000;
/// Number of threads of a writer.
const THREADS: u32 = 4;
/// Longest time for the sets after which a writer is killed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of an acknowledgement, which is a key and a version.
const ACK_BYTES: u64 = 8;
/// Signal with which a writer with our libpmem kills itself.
const SIGKILL: i32 = 9;
/// In place of a version: the key has a value that was never stored.
const WRONG: u32 = u32::MAX;

/// Settings of the phase, also for its child processes.
pub(crate) struct Job {
    pub(crate) round: ContestRound,
    pub(crate) seed: u64,
}

/// Paths of the files of this phase, all in one folder.
struct Files<'a>(&'a Path);

impl Files<'_> {
    fn pool(&self) -> PathBuf {
        self.0.join("killed")
    }

    fn ledger(&self) -> PathBuf {
        self.0.join("ledger")
    }

    fn acks(&self) -> PathBuf {
        self.0.join("acknowledged")
    }

    fn found(&self) -> PathBuf {
        self.0.join("found")
    }
}

fn doing<T>(what: &str, path: &Path, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("cannot {what} {}: {e}", path.display()))
}

fn read_versions(path: &Path) -> Result<Vec<u32>, String> {
    let bytes = doing("read", path, std::fs::read(path))?;
    Ok(bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect())
}

fn write_versions(path: &Path, versions: &[u32]) -> Result<(), String> {
    let bytes: Vec<u8> = versions
        .iter()
        .flat_map(|version| version.to_le_bytes())
        .collect();
    doing("write", path, std::fs::write(path, bytes))
}

/// Kills `kills` writers and checks all keys after each kill. Adds the figures to `report`.
pub(crate) fn judge(
    job: &Job,
    folder: &Path,
    kills: u32,
    report: &mut Report,
) -> Result<(), String> {
    let files = Files(folder);
    let mut rng = Rng::new(job.seed);
    let mut versions = vec![0; KEYS as usize];
    let (mut sets, mut lost, mut wrong) = (0, 0, 0);
    for kill in 1..=kills {
        write_versions(&files.ledger(), &versions)?;
        doing("make", &files.acks(), File::create(files.acks()))?;
        let enough = 200 + rng.below(4000);
        let cut = (kill % 2 == 0).then_some(enough);
        let mut writer = start(job, "write", folder, cut)?;
        let stopped = wait_for(&files, enough, &mut writer);
        // Fails if the writer has ended already. `stopped` then contains the error, if that was not a kill.
        let _ = writer.kill();
        doing("wait for", &files.pool(), writer.wait())?;
        stopped?;
        let acknowledged = read_versions(&files.acks())?;
        for [key, version] in acknowledged.as_chunks().0 {
            versions[*key as usize] = *version;
            sets += 1;
        }
        write_versions(&files.ledger(), &versions)?;
        let mut looker = start(job, "look", folder, None)?;
        let status = doing("wait for", &files.found(), looker.wait())?;
        if !status.success() {
            return Err(format!(
                "kill {kill}: the engine could not be reopened: the process ended with {status}"
            ));
        }
        for (key, (found, acknowledged)) in read_versions(&files.found())?
            .iter()
            .zip(&mut versions)
            .enumerate()
        {
            let told = match *found {
                WRONG => "a value that was never stored".to_owned(),
                version => format!("version {version}"),
            };
            if *found == WRONG {
                wrong += 1;
            } else if *found < *acknowledged || *found > *acknowledged + 1 {
                lost += 1;
            } else {
                *acknowledged = *found;
                continue;
            }
            if wrong + lost <= 3 {
                let acknowledged = *acknowledged;
                report.notes.push(format!(
                    "kill {kill}: key {key} was acknowledged as version {acknowledged}, found {told}"
                ));
            }
        }
    }
    let counted = |what: &str, value: u64| Figure::counted("engine", what, value as f64);
    report.figures.extend([
        counted("kills", u64::from(kills)),
        counted("kills: sets acknowledged", sets),
        counted("kills: values lost", lost).at_most(0.0),
        counted("kills: values that were never stored", wrong).at_most(0.0),
    ]);
    Ok(())
}

/// Starts this program in another role. With our libpmem it kills itself before drain number `cut`.
fn start(job: &Job, role: &str, folder: &Path, cut: Option<u64>) -> Result<Child, String> {
    let program = std::env::current_exe()
        .map_err(|e| format!("cannot find the path of this program: {e}"))?;
    let mut command = Command::new(&program);
    command
        .args(["--role", role, "--seed", &job.seed.to_string()])
        .arg("--folder")
        .arg(folder);
    if let Some(drain) = cut {
        command.env("FARBANK_PMEM_CUT", drain.to_string());
    }
    if job.round == ContestRound::Preliminary {
        command.args(["--round", "preliminary"]);
    }
    doing(
        "run",
        &program,
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn(),
    )
}

fn wait_for(files: &Files<'_>, acknowledged: u64, writer: &mut Child) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let bytes = doing("look at", &files.acks(), std::fs::metadata(files.acks()))?.len();
        if bytes >= acknowledged * ACK_BYTES {
            return Ok(());
        }
        if let Some(status) = doing("wait for", &files.pool(), writer.try_wait())? {
            if status.signal() == Some(SIGKILL) {
                return Ok(());
            }
            return Err(format!(
                "the writer ended unexpectedly after {} sets: {status}",
                bytes / ACK_BYTES
            ));
        }
        if started.elapsed() > PATIENCE {
            let seconds = PATIENCE.as_secs();
            return Err(format!(
                "the writer did {} sets in {seconds} s, expected {acknowledged}",
                bytes / ACK_BYTES
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Role of the writer: sets keys and acknowledges each, until the process is killed.
pub(crate) fn write(job: &Job, table: Table, folder: &Path) -> Result<(), String> {
    let files = Files(folder);
    let versions = read_versions(&files.ledger())?;
    let engine = Outside::open(table, &files.pool(), false)?;
    let mut options = File::options();
    let acks = doing(
        "open",
        &files.acks(),
        options.append(true).open(files.acks()),
    )?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (acks, versions) = (&acks, versions.clone());
                let worker = engine.worker();
                scope.spawn(move || write_own(job, thread, worker, versions, acks))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)
    })
}

fn write_own(
    job: &Job,
    thread: u32,
    mut worker: Box<dyn Worker>,
    mut versions: Vec<u32>,
    mut acks: &File,
) -> Result<(), String> {
    let names = KeyNames::new(job.seed);
    let written: u64 = versions.iter().map(|version| u64::from(*version)).sum();
    let mut rng = Rng::new(job.seed ^ written).fork(u64::from(thread));
    let mut value = Vec::new();
    loop {
        let key = rng.below(u64::from(KEYS / THREADS)) as u32 * THREADS + thread;
        let version = versions[key as usize] + 1;
        let bytes = match job.round {
            ContestRound::Preliminary => 80,
            ContestRound::Final => 80 + rng.below(945) as usize,
        };
        value.clear();
        names.value(u64::from(key), version, bytes, &mut value);
        worker
            .set(&names.key(u64::from(key)), &value)
            .map_err(|e| e.to_string())?;
        versions[key as usize] = version;
        let [a, b] = [key, version].map(u32::to_le_bytes);
        acks.write_all(&[a, b].concat())
            .map_err(|e| e.to_string())?;
    }
}

/// Role of the reader: writes the version of each key to a file; 0 means absent.
pub(crate) fn read_all(job: &Job, table: Table, folder: &Path) -> Result<(), String> {
    let files = Files(folder);
    let engine = Outside::open(table, &files.pool(), false)?;
    let (mut worker, names, mut out) = (engine.worker(), KeyNames::new(job.seed), Vec::new());
    let mut version_of = |key| match worker.get(&names.key(key), &mut out) {
        false => 0,
        true => names.version(key, &out).unwrap_or(WRONG),
    };
    let found: Vec<u32> = (0..u64::from(KEYS)).map(&mut version_of).collect();
    write_versions(&files.found(), &found)
}
