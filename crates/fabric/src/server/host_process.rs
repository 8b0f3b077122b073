//! [`HostProcess`]: a process of this host that executes verbs itself. It can be recognised and ended.

use std::fs;
use std::io;
use std::time::Duration;

use farbank_pm::FileId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process, which no later process of the same id equals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HostProcess {
    pub(crate) id: u32,
    /// Time of its start, in the kernel's ticks since the start of the host.
    pub(crate) began: u64,
}

/// State of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProcessState {
    /// It executes no instruction any more.
    Gone,
    /// It is stopped, by a signal or by a debugger.
    Stopped,
    Runs,
}

impl HostProcess {
    /// Returns this process.
    ///
    /// # Errors
    /// /proc is not mounted.
    pub(crate) fn current() -> io::Result<HostProcess> {
        let id = std::process::id();
        let stat = fs::read_to_string("/proc/self/stat")?;
        let (_, began) = parse_stat(&stat).ok_or(io::ErrorKind::InvalidData)?;
        Ok(HostProcess { id, began })
    }

    /// Returns the state of the process.
    pub(super) fn state(&self) -> ProcessState {
        let Ok(handle) = self.handle() else {
            return ProcessState::Runs;
        };
        match handle {
            None => ProcessState::Gone,
            Some(handle) if has_ended(&handle, Duration::ZERO) => ProcessState::Gone,
            Some(_) => match self.stat() {
                Some(('T' | 't', began)) if began == self.began => ProcessState::Stopped,
                _ => ProcessState::Runs,
            },
        }
    }

    fn stat(&self) -> Option<(char, u64)> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id)).ok()?;
        parse_stat(&stat)
    }

    /// Returns a handle of the process, or `None` if it has ended.
    ///
    /// # Errors
    /// The kernel gives no handle, or /proc does not show the process.
    fn handle(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = i32::try_from(self.id).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The handle was opened first: if the process with this id is the one that began then, so is the handle's.
        match self.stat() {
            Some((_, began)) if began == self.began => Ok(Some(handle)),
            Some(_) => Ok(None),
            None if has_ended(&handle, Duration::ZERO) => Ok(None),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Ensures that the process makes no store to `file` any more: kills it if it maps the file. Returns whether that is
    /// ensured. Never kills this process.
    pub(super) fn expel(&self, file: Option<FileId>) -> bool {
        /// Time for the end of a killed process.
        const END: Duration = Duration::from_millis(200);
        let handle = match self.handle() {
            Ok(None) => return true,
            Ok(Some(handle)) => handle,
            Err(_) => return false,
        };
        if self.id == std::process::id() {
            return false;
        }
        match file.and_then(|file| self.maps(file)) {
            None => false,
            // It has called `exec`, which has unmapped the file.
            Some(false) => true,
            // Without the permission the process stays, and its lock with it.
            Some(true) => {
                pidfd_send_signal(&handle, Signal::KILL).is_ok() && has_ended(&handle, END)
            }
        }
    }

    /// Returns whether the process maps `file`, or `None` if /proc does not show it to this process.
    fn maps(&self, file: FileId) -> Option<bool> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.id)).ok()?;
        // A line: addresses, rights, offset, device, inode, path.
        let inode = file.inode.to_string();
        let has_inode = |line: &str| line.split_ascii_whitespace().nth(4) == Some(&inode);
        Some(maps.lines().any(has_inode))
    }
}

/// Waits up to `time` for the end of a process with all its threads. Returns whether it has ended.
fn has_ended(handle: &OwnedFd, time: Duration) -> bool {
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    poll(&mut polled, Some(&time)).is_ok_and(|ready| ready > 0)
}

/// Returns the state and the start of a process from its line in /proc: its name in parentheses is the second field, the
/// state the third, and the start the 22nd.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::kill_process;

    use super::*;

    #[test]
    fn a_line_of_proc_is_parsed_whatever_the_name_of_the_process() {
        let stat = "12 (a) b (c) T 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(parse_stat(stat), Some(('T', 777)));
        assert_eq!(parse_stat("12 (a"), None);
    }

    #[test]
    fn a_process_is_recognised_while_it_runs_and_killed_only_if_it_maps_the_file() {
        let mut child = Command::new("sleep")
            .arg("100")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut process = HostProcess {
            id: child.id(),
            began: 0,
        };
        process.began = process.stat().unwrap().1;
        assert_eq!(process.state(), ProcessState::Runs);
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        while process.state() != ProcessState::Stopped {
            std::thread::yield_now();
        }
        let inode = |path| {
            let file = fs::File::open(path).unwrap();
            farbank_pm::media::file_id(&file)
        };
        assert!(process.expel(inode("/proc/self/exe")));
        assert!(!process.expel(None));
        assert_eq!(process.state(), ProcessState::Stopped);
        let program = fs::canonicalize(format!("/proc/{}/exe", child.id())).unwrap();
        assert!(process.expel(inode(program.to_str().unwrap())));
        assert_eq!(process.state(), ProcessState::Gone);
        child.wait().unwrap();
        assert_eq!(process.state(), ProcessState::Gone);
        let own = HostProcess::current().unwrap();
        assert_eq!(own.state(), ProcessState::Runs);
        assert!(!own.expel(inode("/proc/self/exe")));
    }
}
