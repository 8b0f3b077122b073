//! Checks every state in which a power cut could have left a disk, by replaying a log of dm-log-writes.
//!
//! The kernel's device mapper can record what reaches a disk: every write once a flush has made it durable, then the
//! flush, and marks. The writer sets a mark when a write was acknowledged. So the replayed disk up to a flush holds
//! what at least survives a power cut right after that flush:
//!
//! ```text
//!   log  │ write write FLUSH │ mark │ write write write FLUSH │ write FUA │ ...
//!                            ▲      ▲                         ▲           ▲
//!        ──▶ the disk so far ──▶ a snapshot of it ──▶ some of the writes up to the next flush
//!                                    ──▶ mounted ──▶ opened ──▶ compared with the last mark
//! ```
//!
//! Any sector written after that flush may have reached the disk or not. So each point is also checked with random
//! subsets of these writes, drawn from a seed.
//!
//! The log's layout is the kernel's (`Documentation/admin-guide/device-mapper/log-writes.rst`): a superblock sector,
//! then for each entry a sector with its header, followed by its data.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use farbank_pm::rng::Rng;

use super::ack_log::acknowledged;
use super::engine::PowerEngine;
use super::error::PowerError;
use super::plan::BATCH_WRITES;
use super::{WRONG_LINES, check_engine};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Bytes of an entry's header. A mark's text follows it.
const ENTRY_BYTES: usize = 32;
/// Unit that a disk writes atomically, in bytes.
const SECTOR: usize = 512;
/// Device-mapper name of the snapshot.
const SNAPSHOT: &str = "replayed";
/// Chunk size of the snapshot, in sectors.
const CHUNK: u64 = 8;
/// Points between two lines of progress.
const PROGRESS_EVERY: u64 = 32;

/// Devices and paths of a replay.
#[derive(Clone, Debug)]
pub struct ReplayDevices {
    /// Device with the recorded log.
    pub log: PathBuf,
    /// Device of the same size as the recorded disk, all zeros.
    pub onto: PathBuf,
    /// Device for the blocks that a check changes.
    pub changes: PathBuf,
    /// Directory where the file system is mounted.
    pub folder: PathBuf,
}

/// Counters of a replay.
#[derive(Clone, Copy, Default, Debug)]
pub struct ReplayFigures {
    /// Disk states that were checked.
    pub disks: u64,
    /// Points of the log from which these states were made.
    pub points: u64,
    /// Writes acknowledged by the last mark.
    pub acknowledged: u64,
    /// Largest number of acknowledged writes that one disk state had lost.
    pub lost: u64,
    /// Disk states with a lost write or another violation.
    pub wrong: u64,
}

/// Adds `line` as a mark to the log of the device-mapper device `device`, with underscores instead of spaces.
pub fn mark(device: &str, line: &str) -> Result<(), PowerError> {
    run(
        "dmsetup",
        &["message", device, "0", "mark", &line.replace(' ', "_")],
    )
}

/// Checks the disk at every flush, every FUA write and every mark. Each point is checked as it is, and `subsets` times
/// with a random subset of the writes that follow.
pub fn replay(
    devices: &ReplayDevices,
    engine: &dyn PowerEngine,
    subsets: u64,
) -> Result<ReplayFigures, PowerError> {
    let log = WriteLog::open(&devices.log)?;
    let onto = open(&devices.onto)?;
    let mut figures = ReplayFigures::default();
    let mut last_counts: Option<Vec<u64>> = None;
    let mut is_point = false;
    for (i, entry) in log.entries.iter().enumerate() {
        // Between a flush and the marks behind it the disk does not change. The last mark has the highest counts.
        if let Some(last_counts) = last_counts.as_ref().filter(|_| is_point && entry.writes()) {
            figures.points += 1;
            for subset in 0..=subsets {
                let torn = (subset > 0).then(|| Rng::new(subset).fork(i as u64));
                onto.sync_data()
                    .map_err(|e| PowerError::io(&devices.onto, e))?;
                check((devices, engine), &log, i, torn, last_counts, &mut figures)?;
            }
            is_point = false;
            if figures.points.is_multiple_of(PROGRESS_EVERY) {
                println!(
                    "{} points, entry {i} of {}",
                    figures.points,
                    log.entries.len()
                );
            }
        }
        entry.pieces(&log, &mut |at, bytes| onto.write_all_at(bytes, at))?;
        is_point |= entry.flags & (FLUSH | FUA | MARK) != 0;
        if let Some(counts) = entry
            .mark
            .as_deref()
            .and_then(|m| acknowledged("engine", m))
        {
            figures.acknowledged = counts.iter().sum::<u64>() * BATCH_WRITES;
            last_counts = Some(counts);
        }
    }
    Ok(figures)
}

/// Checks the disk as it is before entry `next`. With `torn`, a random part of the writes up to the next flush is
/// added.
fn check(
    (devices, engine): (&ReplayDevices, &dyn PowerEngine),
    log: &WriteLog,
    next: usize,
    torn: Option<Rng>,
    last_counts: &[u64],
    figures: &mut ReplayFigures,
) -> Result<(), PowerError> {
    let size = open(&devices.onto).and_then(|onto| bytes_of(&onto, &devices.onto))?;
    let (onto, changes) = (devices.onto.display(), devices.changes.display());
    let table = format!(
        "0 {} snapshot {onto} {changes} N {CHUNK}",
        size / SECTOR as u64
    );
    run("dmsetup", &["create", SNAPSHOT, "--table", &table])?;
    let snapshot = PathBuf::from(format!("/dev/mapper/{SNAPSHOT}"));
    if let Some(rng) = torn {
        tear(log, next, rng, &snapshot)?;
    }
    let (from, to) = (snapshot.to_string_lossy(), devices.folder.to_string_lossy());
    let findings = run("mount", &["-t", "ext4", "-o", "noatime", &from, &to]).and_then(|()| {
        let findings = check_engine(engine, &devices.folder.join("engine"), last_counts);
        run("umount", &[&to]).and(findings)
    });
    run("dmsetup", &["remove", SNAPSHOT])?;
    let (lost, wrong) = match findings {
        Ok(findings) => (
            findings.iter().map(|j| j.lost).sum(),
            findings.iter().flat_map(|j| j.wrong.clone()).collect(),
        ),
        // A pool that cannot be opened counts as having lost all writes.
        Err(why) => (
            last_counts.iter().sum::<u64>() * BATCH_WRITES,
            vec![why.to_string()],
        ),
    };
    figures.disks += 1;
    figures.lost = figures.lost.max(lost);
    if !wrong.is_empty() {
        figures.wrong += 1;
        let shown = if figures.wrong == 1 { WRONG_LINES } else { 0 };
        wrong
            .iter()
            .take(shown)
            .for_each(|line| println!("WRONG before entry {next}: {line}"));
    }
    Ok(())
}

/// Writes to `disk` a random part of the sectors of the entries from `next` up to the next flush.
fn tear(log: &WriteLog, next: usize, mut rng: Rng, disk: &Path) -> Result<(), PowerError> {
    let file = open(disk)?;
    let entries = log.entries[next..]
        .iter()
        .take_while(|e| e.flags & (FLUSH | FUA) == 0);
    for entry in entries {
        let kept_of_4 = rng.below(5);
        entry.pieces(log, &mut |at, bytes| {
            for (sector, i) in bytes.chunks(SECTOR).zip(0..) {
                if rng.below(4) < kept_of_4 {
                    file.write_all_at(sector, at + i * SECTOR as u64)?;
                }
            }
            Ok(())
        })?;
    }
    file.sync_data().map_err(|e| PowerError::io(disk, e))
}

struct WriteLog {
    file: File,
    path: PathBuf,
    entries: Vec<LogEntry>,
}

struct LogEntry {
    /// Destination offset on the disk, in bytes.
    to: u64,
    /// Length of the data, in bytes.
    bytes: u64,
    flags: u64,
    /// Offset of the data in the log, in bytes.
    data: u64,
    mark: Option<String>,
}

impl LogEntry {
    fn writes(&self) -> bool {
        self.bytes > 0
    }

    /// Calls `each` with all data, in pieces of at most 1 MiB, each with its destination offset.
    fn pieces(
        &self,
        log: &WriteLog,
        each: &mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>,
    ) -> Result<(), PowerError> {
        const PIECE: u64 = 1 << 20;
        for from in (0..self.bytes).step_by(PIECE as usize) {
            let mut piece = vec![0; PIECE.min(self.bytes - from) as usize];
            if self.flags & DISCARD == 0 {
                let read = log.file.read_exact_at(&mut piece, self.data + from);
                read.map_err(|e| PowerError::io(&log.path, e))?;
            }
            each(self.to + from, &piece).map_err(|source| PowerError::Io {
                what: "cannot write to the replay disk".into(),
                source,
            })?;
        }
        Ok(())
    }
}

impl WriteLog {
    /// Reads the header of every entry. The data is read later, from the log.
    fn open(path: &Path) -> Result<WriteLog, PowerError> {
        let file = open(path)?;
        let read = |at: u64| {
            let mut sector = [0; SECTOR];
            file.read_exact_at(&mut sector, at)
                .map(|()| sector)
                .map_err(|e| PowerError::io(path, e))
        };
        let head = read(0)?;
        let (magic, version, count) = (word(&head, 0), word(&head, 1), word(&head, 2));
        let sector_bytes = word(&head, 3) & 0xffff_ffff;
        if (magic, version) != (MAGIC, VERSION) || sector_bytes < SECTOR as u64 {
            return Err(PowerError::NotALog {
                path: path.into(),
                version: VERSION,
            });
        }
        let mut at = sector_bytes;
        let mut entries = Vec::new();
        for _ in 0..count {
            let head = read(at)?;
            let entry = LogEntry::parse(&head, at, sector_bytes);
            at = entry.data
                + if entry.flags & DISCARD == 0 {
                    entry.bytes
                } else {
                    0
                };
            entries.push(entry);
        }
        Ok(WriteLog {
            file,
            path: path.into(),
            entries,
        })
    }
}

impl LogEntry {
    fn parse(head: &[u8; SECTOR], at: u64, sector_bytes: u64) -> LogEntry {
        let (flags, len) = (word(head, 2), word(head, 3) as usize);
        let text = head[ENTRY_BYTES..].get(..len).filter(|_| flags & MARK != 0);
        LogEntry {
            to: word(head, 0) * sector_bytes,
            bytes: word(head, 1) * sector_bytes,
            flags,
            data: at + sector_bytes,
            mark: text.map(|text| String::from_utf8_lossy(text).replace('_', " ")),
        }
    }
}

/// Returns the little-endian 64-bit word with index `i`.
fn word(sector: &[u8; SECTOR], i: usize) -> u64 {
    u64::from_le_bytes(sector.as_chunks().0[i])
}

fn open(path: &Path) -> Result<File, PowerError> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|e| PowerError::io(path, e))
}

fn bytes_of(mut file: &File, path: &Path) -> Result<u64, PowerError> {
    // Metadata gives no length for a device.
    std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(|e| PowerError::io(path, e))
}

fn run(program: &str, arguments: &[&str]) -> Result<(), PowerError> {
    let command = || format!("{program} {}", arguments.join(" "));
    let ended = Command::new(program).args(arguments).output();
    let ended = ended.map_err(|source| PowerError::Run {
        command: command(),
        source,
    })?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(PowerError::Command {
            command: command(),
            printed: String::from_utf8_lossy(&ended.stderr).trim().to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(words: &[u64], text: &str) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(text.as_bytes());
        bytes.resize(SECTOR, 0);
        bytes
    }

    #[test]
    fn a_log_in_the_kernels_layout_is_parsed() {
        let mark = "ACK_engine_1_2";
        let log = [
            sector(&[MAGIC, VERSION, 3, SECTOR as u64], ""),
            sector(&[7, 2, FUA, 0], ""),
            vec![5; SECTOR],
            vec![6; SECTOR],
            sector(&[0, 0, MARK, mark.len() as u64], mark),
            sector(&[9, 1, DISCARD, 0], ""),
        ];
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), log.concat()).expect("cannot write the file");
        let log = WriteLog::open(file.path()).expect("a log");
        let mut written = Vec::new();
        for entry in &log.entries {
            let mut each = |at, bytes: &[u8]| {
                written.push((at, bytes[0], bytes[bytes.len() - 1], bytes.len()));
                Ok(())
            };
            entry.pieces(&log, &mut each).expect("cannot read the log");
        }
        let at = |sector: u64| sector * SECTOR as u64;
        let expected = [(at(7), 5, 6, 2 * SECTOR), (at(9), 0, 0, SECTOR)];
        assert_eq!(written, expected);
        assert_eq!(log.entries[1].mark.as_deref(), Some("ACK engine 1 2"));
    }

    #[test]
    fn a_file_that_is_not_a_log_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), [0; SECTOR]).expect("cannot write the file");
        assert!(
            WriteLog::open(file.path())
                .is_err_and(|why| why.to_string().contains("not a dm-log-writes log"))
        );
    }
}
