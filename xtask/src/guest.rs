//! Suite `guest`: cuts the power of virtual machines that run the engine and the server on persistent memory.
//!
//! ```text
//!   boot ── writes, acknowledges ── power cut ──▶ boot ── checks, writes on ── power cut ──▶ ... ──▶ boot ── checks
//! ```
//!
//! Each boot is one call of `guest/guest.sh` (see `guest/README.md`). The pools are kept from one power cut to the
//! next. The suite ends with a table of acknowledged and lost writes. Nothing may be lost. The controls leave out the
//! flush or the sync, and must lose thousands of writes: otherwise the suite could not detect a loss.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::RunSize;
use crate::run::{cargo, farbank, root, succeed, target};

/// Least number of acknowledged writes that a control must lose.
const CONTROL_LOSES: u64 = 1_000;
/// Time limits in seconds: for a boot, and for a boot that replays a disk's log.
const BOOT_S: u64 = 180;
const REPLAY_S: u64 = 600;
/// Exit code of guest.sh at its time limit. The machine was too busy; this is no failure of the product.
const EXIT_TIME_LIMIT: i32 = 124;

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    let (cuts, subsets) = match size {
        RunSize::Suite => (1, "1"),
        RunSize::Gate => (5, "4"),
    };
    let guest = Guest::for_power_cuts()?;
    let mut rows = Vec::new();
    for (medium, options) in [
        ("ext4-dax", &["-f", "ext4"][..]),
        ("devdax", &["-f", "devdax", "-s", "32"]),
    ] {
        for evicted in ["0", "30"] {
            rows.extend(guest.cuts(medium, options, evicted, "write", cuts)?);
        }
    }
    rows.extend(guest.cuts("ext4-dax, never flushed", &["-f", "ext4"], "0", "vain", 1)?);
    rows.extend(guest.disks(subsets)?);
    println!("\n{}", GuestRow::HEAD);
    rows.iter().for_each(|row| println!("{row}"));
    rows.iter().try_for_each(GuestRow::judge)
}

/// Acknowledged and lost writes of one test program on one medium.
#[derive(Debug, PartialEq)]
struct GuestRow {
    medium: String,
    subject: String,
    evicted: String,
    /// Number of power cuts that were followed by a check.
    cuts: u64,
    acknowledged: u64,
    lost: u64,
    wrong: u64,
    /// Whether this row is a control, which must lose writes.
    control: bool,
}

impl GuestRow {
    const HEAD: &str =
        "medium                    subject  evicted  power cuts  acknowledged    lost";

    fn judge(&self) -> Result<(), String> {
        let told = format!(
            "{}, {}: {} of {} acknowledged writes lost",
            self.medium, self.subject, self.lost, self.acknowledged
        );
        match self.control {
            true if self.lost < CONTROL_LOSES => Err(format!(
                "{told}; a control must lose at least {CONTROL_LOSES}: the check does not detect losses"
            )),
            false if self.lost + self.wrong > 0 => {
                Err(format!("{told}, {} wrong values", self.wrong))
            }
            false if self.cuts == 0 => Err(format!("{told}: no check has run")),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for GuestRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GuestRow {
            medium,
            subject,
            evicted,
            cuts,
            acknowledged,
            lost,
            ..
        } = self;
        let control = if self.control { "  (control)" } else { "" };
        write!(
            f,
            "{medium:<25} {subject:<8} {evicted:>7}  {cuts:>10}  {acknowledged:>12}  {lost:>6}{control}"
        )
    }
}

/// Outcome of a boot: the lines printed, and whether the program succeeded.
pub(crate) struct BootOutcome {
    pub(crate) lines: Vec<String>,
    pub(crate) fine: bool,
}

/// The folder with the guests' files and programs.
pub(crate) struct Guest {
    work: PathBuf,
    /// Files that are copied into each guest.
    files: Vec<PathBuf>,
}

impl Guest {
    /// Prepares guests that have `programs`, without their symbols, and `files`.
    pub(crate) fn new(programs: &[PathBuf], files: &[&str]) -> Result<Guest, String> {
        let work = target().join("guest");
        std::fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
        let mut all: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        for program in programs {
            let name = program.file_name().unwrap_or_default();
            let stripped = work.join(name);
            succeed(Command::new("strip").arg("-o").arg(&stripped).arg(program))?;
            all.push(stripped);
        }
        Ok(Guest { work, files: all })
    }

    /// Builds the programs of the suite `guest`.
    fn for_power_cuts() -> Result<Guest, String> {
        cargo(&[
            "build",
            "--release",
            "--package",
            "farbank-cli",
            "--example",
            "power_cut",
        ])?;
        let built = [
            PathBuf::from(farbank().get_program()),
            target().join("release/examples/power_cut"),
        ];
        Guest::new(&built, &[])
    }

    /// Boots a guest. If the time limit is reached, boots it once more with twice the time.
    pub(crate) fn boot(
        &self,
        options: &[&str],
        limit_s: u64,
        program: &[&str],
    ) -> Result<BootOutcome, String> {
        for limit_s in [limit_s, 2 * limit_s] {
            let (lines, status) = self.try_boot(options, limit_s, program)?;
            match status {
                Some(EXIT_TIME_LIMIT) => println!("time limit of {limit_s} s reached"),
                // 0 and 1 are the program's exit codes; larger ones are errors of the script.
                Some(status) if status < 2 => {
                    return Ok(BootOutcome {
                        lines,
                        fine: status == 0,
                    });
                }
                status => return Err(format!("guest.sh ended with {status:?}")),
            }
        }
        Err("the time limit was reached twice: this machine is too busy for a guest; nothing was tested".into())
    }

    fn try_boot(
        &self,
        options: &[&str],
        limit_s: u64,
        program: &[&str],
    ) -> Result<(Vec<String>, Option<i32>), String> {
        let mut command = Command::new(root().join("guest/guest.sh"));
        command
            .arg("-w")
            .arg(&self.work)
            .args(["-t", &limit_s.to_string()])
            .args(options);
        for file in &self.files {
            command.arg("-a").arg(file);
        }
        command
            .arg("--")
            .args(program)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        println!("$ {command:?}");
        let mut child = command
            .spawn()
            .map_err(|e| format!("guest.sh cannot be run: {e}"))?;
        let stdout = child.stdout.take().ok_or("guest.sh has no output")?;
        let mut lines = Vec::new();
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(|e| e.to_string())?;
            if !line.starts_with("ACK ") {
                println!("{line}");
                lines.push(line);
            }
        }
        let status = child.wait().map_err(|e| e.to_string())?;
        Ok((lines, status.code()))
    }

    /// Makes `cuts` power cuts. The boot after each cut checks the pools.
    fn cuts(
        &self,
        medium: &str,
        options: &[&str],
        evicted: &str,
        what: &str,
        cuts: u64,
    ) -> Result<Vec<GuestRow>, String> {
        let program = self.work.join("power_cut").display().to_string();
        let program = |what| vec![program.clone(), what, "$PMEM".into(), "$PREVIOUS".into()];
        let mut rows = Vec::new();
        for boot in 0..=cuts {
            let seed = (boot + 1).to_string();
            let mut all = options.to_vec();
            all.extend(if boot == 0 { &[][..] } else { &["-K"] });
            if boot < cuts {
                all.extend(["-e", evicted, "-S", &seed, "-k", "^ENOUGH$"]);
            }
            let program = program(if boot < cuts {
                what.into()
            } else {
                "check".to_owned()
            });
            let program: Vec<&str> = program.iter().map(String::as_str).collect();
            let boot = self.boot(&all, BOOT_S, &program)?;
            let row = |line: &String| {
                Checked::parse(line).map(|c| c.row(medium, evicted, what == "vain"))
            };
            boot.lines
                .iter()
                .filter_map(row)
                .for_each(|row| add(&mut rows, row));
            if !boot.fine && what != "vain" && rows.iter().all(|row| row.judge().is_ok()) {
                return Err(format!("{medium}: the program failed; its output is above"));
            }
            if !boot.fine {
                break;
            }
        }
        match rows.is_empty() {
            true => Err(format!("{medium}: no check has run")),
            false => Ok(rows),
        }
    }

    /// Runs `virtio.sh`: a device that refuses mappings, and a disk whose log is replayed up to every flush.
    fn disks(&self, subsets: &str) -> Result<Vec<GuestRow>, String> {
        let script = root().join("guest/virtio.sh").display().to_string();
        let options = ["-f", "virtio", "-m", "1024"];
        let boot = self.boot(&options, REPLAY_S, &[&script, "$PMEM", subsets])?;
        if !boot.fine || !boot.lines.iter().any(|line| line == "FALLBACK ok") {
            return Err("virtio.sh failed; its output is above".into());
        }
        let replays = boot.lines.iter().filter_map(|line| Checked::parse(line));
        let rows: Vec<GuestRow> = replays
            .zip([("ext4, every flush", false), ("ext4, never synced", true)])
            .map(|(checked, (medium, control))| checked.row(medium, "", control))
            .collect();
        match rows.len() {
            2 => Ok(rows),
            found => Err(format!("{found} logs were replayed, expected 2")),
        }
    }
}

/// Adds the result of one check to the row of its subject.
fn add(rows: &mut Vec<GuestRow>, new: GuestRow) {
    match rows.iter_mut().find(|row| row.subject == new.subject) {
        Some(row) => {
            row.cuts += new.cuts;
            row.acknowledged = new.acknowledged;
            row.lost += new.lost;
            row.wrong += new.wrong;
        }
        None => rows.push(new),
    }
}

/// The parsed result line of a check.
#[derive(Debug, PartialEq)]
struct Checked {
    subject: String,
    cuts: u64,
    lost: u64,
    wrong: u64,
    acknowledged: u64,
}

impl Checked {
    /// Parses lines like `CHECK engine lost=0 wrong=0 of 20480` and
    /// `REPLAY points=150 disks=300 lost=0 wrong=0 of 10240`.
    fn parse(line: &str) -> Option<Checked> {
        let mut words = line.split_whitespace();
        let subject = match words.next()? {
            "CHECK" => words.next()?,
            "REPLAY" => "engine",
            _ => return None,
        };
        let figure = |name: &str| {
            let value = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix(name));
            value.and_then(|value| value.parse().ok())
        };
        Some(Checked {
            subject: subject.into(),
            cuts: figure("disks=").unwrap_or(1),
            lost: figure("lost=")?,
            wrong: figure("wrong=")?,
            acknowledged: line.split_whitespace().next_back()?.parse().ok()?,
        })
    }

    fn row(self, medium: &str, evicted: &str, control: bool) -> GuestRow {
        let percent = if evicted.is_empty() { "" } else { " %" };
        GuestRow {
            medium: medium.into(),
            subject: self.subject,
            evicted: format!("{evicted}{percent}"),
            cuts: self.cuts,
            acknowledged: self.acknowledged,
            lost: self.lost,
            wrong: self.wrong,
            control,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: &str, control: bool) -> GuestRow {
        Checked::parse(line)
            .expect("a check")
            .row("ext4-dax", "0", control)
    }

    #[test]
    fn a_loss_fails_and_a_control_without_one_does_too() {
        assert!(
            row("CHECK engine lost=0 wrong=0 of 9000", false)
                .judge()
                .is_ok()
        );
        assert!(
            row("CHECK engine lost=1 wrong=1 of 9000", false)
                .judge()
                .is_err()
        );
        assert!(
            row("CHECK engine lost=0 wrong=1 of 9000", false)
                .judge()
                .is_err()
        );
        assert!(
            row("CHECK engine lost=9000 wrong=1 of 9000", true)
                .judge()
                .is_ok()
        );
        assert!(
            row("CHECK engine lost=12 wrong=5 of 9000", true)
                .judge()
                .is_err()
        );
    }

    #[test]
    fn results_of_the_same_subject_are_added() {
        let mut rows = Vec::new();
        for line in [
            "CHECK raw lost=0 wrong=0 of 5",
            "CHECK engine lost=1 wrong=2 of 64",
            "CHECK engine lost=0 wrong=0 of 128",
        ] {
            add(&mut rows, row(line, false));
        }
        assert_eq!(rows.len(), 2);
        let engine = &rows[1];
        assert_eq!(
            (engine.cuts, engine.acknowledged, engine.lost, engine.wrong),
            (2, 128, 1, 2)
        );
        assert_eq!(Checked::parse("ACK engine 1 2 3"), None);
    }
}
