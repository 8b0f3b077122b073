//! Reads the kernel's lists of bad sectors. A medium treats them as unreadable before the first access.
//!
//! ```text
//!   badblocks of the disk ("sector count", 512 bytes each) ─▶ minus the start of the partition
//!        ─▶ mapped by the file's extents (FIEMAP) ─▶ ranges of the file
//!   badblocks of the region of a devdax device ─▶ minus the device's offset in the region ─▶ ranges of the device
//! ```
//!
//! Only drivers of persistent memory and RAID keep such a list. For other devices the list is empty, and the
//! extents of the file are not read.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::extents::{FileExtent, extents};
use super::sysfs::Sysfs;

/// Bytes of a sector in `badblocks` files.
const SECTOR_BYTES: u64 = 512;
/// Mask of the file type in `st_mode`, and the type of a character device.
const KIND: u32 = libc::S_IFMT;
const CHARACTER_DEVICE: u32 = libc::S_IFCHR;

/// Returns the ranges of `file`, in bytes, that the kernel lists as bad sectors of its device.
///
/// # Errors
/// The device has bad sectors, and the file system does not report which blocks belong to the file.
pub(super) fn unreadable_ranges(file: BorrowedFd<'_>) -> io::Result<Vec<Range<u64>>> {
    let stat = rustix::fs::fstat(file)?;
    if stat.st_mode & KIND == CHARACTER_DEVICE {
        return Ok(of_device(&Sysfs::system().device("char", stat.st_rdev)));
    }
    let Ok(device) = fs::canonicalize(Sysfs::system().device("block", stat.st_dev)) else {
        return Ok(Vec::new()); // A file system that is not on a single device.
    };
    let bad = of_disk(&device);
    match bad.is_empty() {
        true => Ok(bad),
        false => match extents(file, u64::MAX)? {
            Some(runs) => Ok(map_by_extents(&runs, &bad)),
            None => Err(io::Error::other(
                "the device has bad sectors, and the file system does not report which blocks belong to the file",
            )),
        },
    }
}

/// Returns the bad ranges, in bytes, of a block device. A partition without a list uses the list of its disk.
fn of_disk(device: &Path) -> Vec<Range<u64>> {
    if let Ok(text) = fs::read_to_string(device.join("badblocks")) {
        return parse(&text, 0);
    }
    let number = |name| {
        fs::read_to_string(device.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let start: Option<u64> = number("start");
    let list = device.parent().map(|disk| disk.join("badblocks"));
    match (start, list.and_then(|list| fs::read_to_string(list).ok())) {
        (Some(start), Some(text)) => parse(&text, start * SECTOR_BYTES),
        _ => Vec::new(),
    }
}

/// Returns the bad ranges, in bytes, of a devdax device. The list is that of the device's region. `resource` holds the
/// physical start address of the region and of the device.
fn of_device(device: &Path) -> Vec<Range<u64>> {
    let address = |folder: &Path| {
        let text = fs::read_to_string(folder.join("resource")).ok()?;
        u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    let Ok(device) = fs::canonicalize(device) else {
        return Vec::new();
    };
    let region = device
        .ancestors()
        .find(|folder| folder.join("badblocks").is_file());
    let found = region.and_then(|region| {
        let text = fs::read_to_string(region.join("badblocks")).ok()?;
        let begin = address(&device)?.checked_sub(address(region)?)?;
        Some(parse(&text, begin))
    });
    found.unwrap_or_default()
}

/// Parses lines of `first_sector count` into byte ranges relative to byte `begin`. Drops ranges before `begin`.
fn parse(text: &str, begin: u64) -> Vec<Range<u64>> {
    let part = |line: &str| {
        let mut fields = line.split_whitespace().map(str::parse::<u64>);
        let first = fields.next()?.ok()?.checked_mul(SECTOR_BYTES)?;
        let len = fields.next()?.ok()?.checked_mul(SECTOR_BYTES)?;
        let end = first.checked_add(len)?.checked_sub(begin)?;
        Some(first.saturating_sub(begin)..end)
    };
    let parts = text.lines().filter_map(part);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Returns the ranges of a file with the extents `runs` that lie in the `bad` ranges of its device.
fn map_by_extents(runs: &[FileExtent], bad: &[Range<u64>]) -> Vec<Range<u64>> {
    let both = runs
        .iter()
        .flat_map(|run| bad.iter().map(move |bad| (run, bad)));
    let parts = both.map(|(run, bad)| {
        let from = bad.start.max(run.device);
        let to = bad.end.min(run.device.saturating_add(run.len)).max(from);
        run.at + (from - run.device.min(from))..run.at + (to - run.device.min(to))
    });
    parts.filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    fn ends(parts: &[Range<u64>]) -> Vec<(u64, u64)> {
        parts.iter().map(|part| (part.start, part.end)).collect()
    }

    #[test]
    fn sector_lines_become_byte_ranges_relative_to_the_device_start() {
        let lines = "8 1\n100 4\n";
        assert_eq!(ends(&parse(lines, 0)), [(4096, 4608), (51_200, 53_248)]);
        assert_eq!(ends(&parse(lines, 51_712)), [(0, 1536)]);
        for none in ["", "\n", "8\n", "x 1", "8 0", "18446744073709551615 9"] {
            assert_eq!(parse(none, 0), [], "{none:?}");
        }
    }

    #[test]
    fn bad_ranges_of_a_device_are_mapped_to_file_ranges_by_extents() {
        let run = |at, device, len| FileExtent {
            at,
            device,
            len,
            is_shared: false,
        };
        let runs = [run(0, 1000, 100), run(100, 5000, 50), run(300, 900, 100)];
        type Ends<'a> = &'a [(u64, u64)];
        let cases: [(Ends<'_>, Ends<'_>); 4] = [
            (&[(0, 900), (1100, 5000)], &[]),
            (&[(1010, 1020)], &[(10, 20)]),
            (&[(950, 1001)], &[(0, 1), (350, 400)]),
            (&[(0, u64::MAX)], &[(0, 100), (100, 150), (300, 400)]),
        ];
        for (bad, expected) in cases {
            let parts: Vec<_> = bad.iter().map(|(start, end)| *start..*end).collect();
            assert_eq!(ends(&map_by_extents(&runs, &parts)), expected, "{bad:?}");
        }
    }

    #[test]
    fn extents_cover_the_whole_file_where_the_file_system_reports_them() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[1; 64 << 10]).expect("it is written");
        file.sync_all().expect("it is allocated");
        match extents(file.as_fd(), u64::MAX) {
            Ok(Some(runs)) => {
                assert_eq!(runs.first().map(|run| run.at), Some(0), "{runs:?}");
                assert!(
                    runs.iter().map(|run| run.len).sum::<u64>() >= 64 << 10,
                    "{runs:?}"
                );
            }
            known => eprintln!("skipped: this file system does not report extents ({known:?})"),
        }
        assert_eq!(
            unreadable_ranges(file.as_fd()).expect("no bad sectors are known"),
            []
        );
    }
}
