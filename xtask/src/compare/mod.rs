//! Suite `redis-compare`: checks that random requests get the same replies from Farbank as from redis-server.
//!
//! ```text
//!   seed ─▶ generate ─▶ case ─┬─▶ redis-server 7.0.15 ─▶ replies ─┐
//!                             └─▶ farbank serve ───────▶ replies ─┴─▶ equal, or allowed by a rule?
//! ```
//!
//! A seed determines a case: 20 to 80 steps on three connections, starting with empty servers. Both servers receive the
//! same bytes, and their replies must be equal byte for byte. [`rules`] lists the allowed differences. A difference
//! counts if it shows again in three further runs of the case. The suite then reduces the case to few steps, and
//! prints them with the seed and the command that reproduces the difference.
//!
//! | variable | meaning |
//! |---|---|
//! | `COMPARE_SEED` | run only this case, and print its steps |
//! | `COMPARE_COMMANDS` | send about this many commands |
//! | `COMPARE_FIRST_SEED` | start with this seed instead of 1 |
//! | `COMPARE_MAX` | stop after this many differences instead of 10 |

mod acl_rules;
mod case;
mod generate;
mod numbers;
mod rules;
mod scripts;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use self::case::{
    CaseEnd, CaseStep, Difference, Servers, StepOutcome, replay, run as run_case, script,
};
use crate::RunSize;
use crate::run::{farbank, install, output, works};
use crate::serving::Serving;
use crate::wire::{ReceivedReply, WireConnection};

/// Version of redis-server that the replies are compared with.
const VERSION: &str = "7.0.15";

/// Returns the number of commands sent to each server.
fn commands(size: RunSize) -> u64 {
    match size {
        RunSize::Suite => 15_000,
        RunSize::Gate => 1_000_000,
    }
}

/// Number of differences after which a run ends.
const DIFFERENCES_MAX: usize = 10;

/// Returns the number in an environment variable, if it is set.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    if !works("redis-server", &["--version"]) {
        install(&["redis-server"])?;
    }
    let version = output(Command::new("redis-server").arg("--version"))?;
    if !version.contains(&format!("v={VERSION} ")) {
        return Err(format!(
            "redis-server is {}, expected version {VERSION}",
            version.trim()
        ));
    }
    let folder = CompareFolder::new()?;
    let redis = Redis::start(&folder.0)?;
    let mut command = farbank();
    command
        .args([
            "serve",
            "--port",
            "0",
            "--memcached-port",
            "off",
            "--enable-debug-command",
            "yes",
            "--workers",
            "2",
        ])
        .args(["--size", "64mb", "--pool"])
        .arg(folder.0.join("pool"));
    let serving = Serving::start(&mut command, "redis://")?;
    let farbank = serving
        .port
        .parse()
        .map_err(|e| format!("port {}: {e}", serving.port))?;
    let servers = Servers {
        redis: redis.port,
        farbank,
    };
    match number("COMPARE_SEED") {
        Some(seed) => one_seed(servers, seed),
        None => many_seeds(servers, size),
    }
}

/// Runs the case of one seed.
fn one_seed(servers: Servers, seed: u64) -> Result<(), String> {
    let outcome = run_case(servers, seed)?;
    print!("{}", script(&outcome.steps));
    match &outcome.end {
        CaseEnd::Differs(found) => {
            report(servers, seed, &outcome.steps, found)?;
            Err(format!("seed {seed} shows a difference"))
        }
        _ => Ok(()),
    }
}

fn many_seeds(servers: Servers, size: RunSize) -> Result<(), String> {
    let most = number("COMPARE_COMMANDS").unwrap_or_else(|| commands(size));
    let first = number("COMPARE_FIRST_SEED").unwrap_or(1);
    let differences = number("COMPARE_MAX").map_or(DIFFERENCES_MAX, |n| n as usize);
    let (mut sent, mut parted, mut seed) = (0, 0, first);
    let mut found = BTreeSet::new();
    let mut allowed: BTreeMap<&str, u64> = BTreeMap::new();
    let start = Instant::now();
    while sent < most && found.len() < differences {
        let outcome = run_case(servers, seed).map_err(|e| format!("seed {seed}: {e}"))?;
        sent += outcome.commands;
        for reason in outcome.allowed {
            *allowed.entry(reason).or_default() += 1;
        }
        match outcome.end {
            CaseEnd::Same => {}
            CaseEnd::Parted => parted += 1,
            CaseEnd::Differs(difference) => {
                let lasts = lasts(servers, &outcome.steps)
                    .map_err(|e| format!("seed {seed}, again after {}: {e}", difference.request))?;
                if lasts && found.insert(kind(&difference)) {
                    report(servers, seed, &outcome.steps, &difference)?;
                }
            }
        }
        seed += 1;
    }
    let seeds = seed - first;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{sent} commands, {seeds} seeds from {first} on, {seconds:.1} s; {parted} cases ended early"
    );
    for (reason, cases) in allowed {
        println!("  {cases} cases: {reason}");
    }
    match found.len() {
        0 => Ok(()),
        n => Err(format!("{n} differences from Redis {VERSION}")),
    }
}

/// Returns a key by which differences of the same cause are recognised, in most cases: the command and the first words
/// of both replies.
fn kind(difference: &Difference) -> String {
    let first = |text: &str| text.split(' ').take(3).collect::<Vec<_>>().join(" ");
    let name = difference.request.split(' ').next().unwrap_or_default();
    let (redis, farbank) = (first(&difference.redis), first(&difference.farbank));
    format!("{}: {redis} / {farbank}", name.to_ascii_lowercase())
}

/// Returns whether the steps show a difference in each of three further runs, and not only once because of load.
fn lasts(servers: Servers, steps: &[CaseStep]) -> Result<bool, String> {
    for _ in 0..3 {
        if !matches!(replay(servers, steps)?.end, CaseEnd::Differs(_)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes steps as long as a difference of the same kind remains, then prints the remaining steps.
fn report(
    servers: Servers,
    seed: u64,
    steps: &[CaseStep],
    found: &Difference,
) -> Result<(), String> {
    let shows = |steps: &[CaseStep]| -> Result<Option<StepOutcome>, String> {
        let outcome = replay(servers, steps)?;
        Ok(match &outcome.end {
            CaseEnd::Differs(difference) if kind(difference) == kind(found) => Some(outcome),
            _ => None,
        })
    };
    let mut least = steps.to_vec();
    let singles = steps.iter().flat_map(CaseStep::singles).collect::<Vec<_>>();
    if let Some(outcome) = shows(&singles)? {
        least = outcome.steps;
    }
    for at in (0..least.len().saturating_sub(1)).rev() {
        let mut fewer = least.clone();
        fewer.remove(at);
        if let Some(outcome) = shows(&fewer)? {
            least = outcome.steps;
        }
    }
    println!(
        "difference at seed {seed}, in {} of {} steps:",
        least.len(),
        steps.len()
    );
    print!("{}", script(&least));
    println!("  request  {}", found.request);
    println!("  Redis    {}", found.redis);
    println!("  Farbank  {}", found.farbank);
    println!("  repeat:  COMPARE_SEED={seed} cargo xtask suites redis-compare\n");
    Ok(())
}

/// A folder in memory. Dropping this value removes it.
struct CompareFolder(PathBuf);

impl CompareFolder {
    fn new() -> Result<CompareFolder, String> {
        let parent = Some(Path::new("/dev/shm")).filter(|shm| shm.is_dir());
        let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
        let path = parent.join(format!("farbank-compare-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(CompareFolder(path))
    }
}

impl Drop for CompareFolder {
    fn drop(&mut self) {
        // A folder that stays does no harm, and the result is already known.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A redis-server without persistence. Dropping this value kills it.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start(folder: &Path) -> Result<Redis, String> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr());
        let port = free.map_err(|e| e.to_string())?.port();
        let mut command = Command::new("redis-server");
        command
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .args([
                "--appendonly",
                "no",
                "--enable-debug-command",
                "yes",
                "--dir",
            ])
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command
            .spawn()
            .map_err(|e| format!("redis-server does not start: {e}"))?;
        let redis = Redis { child, port };
        let start = Instant::now();
        let mut link = loop {
            match WireConnection::connect(port) {
                Ok(link) => break link,
                Err(why) if start.elapsed() > Duration::from_secs(10) => return Err(why),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        // The keys that Redis has removed as expired must not depend on time.
        link.send(b"DEBUG SET-ACTIVE-EXPIRE 0\r\n");
        match link.receive() {
            ReceivedReply::Reply(reply) if reply.head == b"+OK" => Ok(redis),
            other => Err(format!("DEBUG SET-ACTIVE-EXPIRE 0: {other}")),
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
