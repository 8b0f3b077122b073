//! Program that runs in a guest whose power is cut; see `guest/README.md` and `farbank_check::power`.
//!
//! ```text
//! power_cut write PLACE PREVIOUS    checks what PREVIOUS reports, then writes until the power is cut
//! power_cut vain PLACE PREVIOUS     the same, but makes nothing durable that it writes
//! power_cut check PLACE PREVIOUS    only checks
//! power_cut record POOL DEVICE always|never
//!                                   writes to a file on a dm-log-writes DEVICE, with acknowledgements as marks
//! power_cut replay LOG ONTO CHANGES FOLDER SUBSETS
//!                                   checks the disk at every point of that log
//! ```
//!
//! PLACE is a directory or a device. PREVIOUS is a file with the output before the power cut. The `farbank` binary
//! must be in the same directory as this program.

mod engine;
mod session;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use farbank_check::power::{self, AfterCheck, ReplayDevices};
use farbank_pm::media::SyncPolicy;

use engine::KvEngine;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["write", place, previous] => live(place, previous, AfterCheck::Write),
        ["vain", place, previous] => live(place, previous, AfterCheck::WriteInVain),
        ["check", place, previous] => live(place, previous, AfterCheck::End),
        ["record", pool, device, "always"] => record(pool, device, SyncPolicy::Always),
        ["record", pool, device, "never"] => record(pool, device, SyncPolicy::Never),
        ["replay", log, onto, changes, folder, subsets] => {
            let devices = [log, onto, changes, folder].map(PathBuf::from);
            replay(devices, subsets)
        }
        _ => Err("unknown arguments; see the usage at the start of power_cut.rs".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("FAILED {why}");
            ExitCode::FAILURE
        }
    }
}

fn live(place: &str, previous: &str, then: AfterCheck) -> Result<(), String> {
    let previous = std::fs::read_to_string(previous).map_err(|e| format!("{previous}: {e}"))?;
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let farbank = own.with_file_name("farbank");
    power::check_and_write(&KvEngine, Path::new(place), &previous, &farbank, then)
        .map_err(|e| e.to_string())
}

fn record(pool: &str, device: &str, syncing: SyncPolicy) -> Result<(), String> {
    let mark = |line: &str| power::mark(device, line);
    power::record(&KvEngine, Path::new(pool), syncing, &mark).map_err(|e| e.to_string())
}

fn replay([log, onto, changes, folder]: [PathBuf; 4], subsets: &str) -> Result<(), String> {
    let subsets = subsets.parse().map_err(|e| format!("{subsets}: {e}"))?;
    let figures = power::replay(
        &ReplayDevices {
            log,
            onto,
            changes,
            folder,
        },
        &KvEngine,
        subsets,
    )
    .map_err(|e| e.to_string())?;
    println!(
        "REPLAY points={} disks={} lost={} wrong={} of {}",
        figures.points, figures.disks, figures.lost, figures.wrong, figures.acknowledged
    );
    match figures {
        power::ReplayFigures { points: 0, .. } => {
            Err("the log has no flush or mark to check".into())
        }
        power::ReplayFigures { wrong: 0, .. } => Ok(()),
        _ => Err("the check failed: acknowledged writes are lost, or the store is damaged".into()),
    }
}
