//! Record of acknowledged writes, reported as lines of output.

use std::fmt::Write as _;
use std::sync::Mutex;

use super::WRITERS;
use super::error::PowerError;
use super::plan::BATCH_WRITES;

/// Acknowledged writes after which the power may be cut.
const ENOUGH_WRITES: u64 = 8_000;
/// The same for the raw pool, where each record is waited for.
const ENOUGH_RECORDS: u64 = 2_000;

/// A store under test that writes until the power is cut.
#[derive(Clone)]
pub(super) struct PowerSubject {
    pub(super) name: &'static str,
    /// Acknowledged count of each writer: batches, or records of the raw pool.
    pub(super) acknowledged: Vec<u64>,
    /// Writes acknowledged in earlier boots.
    before: u64,
}

impl PowerSubject {
    /// Continues from `previous`, the output of the last boot. A subject that it does not mention starts at zero.
    pub(super) fn new(name: &'static str, previous: &str) -> PowerSubject {
        let writers = if name == "raw" { 1 } else { WRITERS };
        let last = previous
            .lines()
            .rev()
            .find_map(|line| acknowledged(name, line));
        let mut subject = PowerSubject {
            name,
            acknowledged: last.unwrap_or_else(|| vec![0; writers]),
            before: 0,
        };
        subject.before = subject.writes();
        subject
    }

    pub(super) fn is_in(name: &str, previous: &str) -> bool {
        previous
            .lines()
            .any(|line| acknowledged(name, line).is_some())
    }

    pub(super) fn is_new(&self) -> bool {
        self.before == 0
    }

    /// Returns the writes acknowledged in all boots.
    pub(super) fn writes(&self) -> u64 {
        let unit = if self.name == "raw" { 1 } else { BATCH_WRITES };
        self.acknowledged.iter().sum::<u64>() * unit
    }

    fn has_enough_writes(&self) -> bool {
        let enough = if self.name == "raw" {
            ENOUGH_RECORDS
        } else {
            ENOUGH_WRITES
        };
        self.writes() >= self.before + enough
    }
}

/// Parses an `ACK` line of the subject `name` into the counts of its writers.
pub(super) fn acknowledged(name: &str, line: &str) -> Option<Vec<u64>> {
    let mut words = line.split_whitespace();
    if words.next() != Some("ACK") || words.next() != Some(name) {
        return None;
    }
    words.map(|number| number.parse().ok()).collect()
}

type AckLine<'a> = &'a (dyn Fn(&str) -> Result<(), PowerError> + Sync);

/// Collects acknowledgements from all writers and reports each as a line.
pub(super) struct AckLog<'a> {
    state: Mutex<AckState>,
    report_line: AckLine<'a>,
}

struct AckState {
    subjects: Vec<PowerSubject>,
    enough: bool,
    failed: Option<PowerError>,
}

/// Handle through which one writer reports to the [`AckLog`].
pub(super) struct WriterLog<'a> {
    ack_log: &'a AckLog<'a>,
    subject: usize,
    writer: usize,
}

impl<'a> AckLog<'a> {
    pub(super) fn new(subjects: Vec<PowerSubject>, report_line: AckLine<'a>) -> AckLog<'a> {
        let state = AckState {
            subjects,
            enough: false,
            failed: None,
        };
        AckLog {
            state: Mutex::new(state),
            report_line,
        }
    }

    pub(super) fn writer_log(&'a self, subject: usize, writer: usize) -> WriterLog<'a> {
        WriterLog {
            ack_log: self,
            subject,
            writer,
        }
    }

    /// Records how a writer ended. If it failed, the other writers stop.
    pub(super) fn record_outcome(&self, ended: Result<(), PowerError>) {
        if let Err(why) = ended {
            self.state
                .lock()
                .expect("a thread panicked while it held the lock")
                .failed
                .get_or_insert(why);
        }
    }

    /// Returns the first failure of a writer. All writers have ended.
    pub(super) fn outcome(&self) -> Result<(), PowerError> {
        let failed = self
            .state
            .lock()
            .expect("a thread panicked while it held the lock")
            .failed
            .take();
        failed.map_or(Ok(()), Err)
    }
}

impl WriterLog<'_> {
    /// Reports that the first `count` batches or records of this writer are acknowledged.
    pub(super) fn acknowledge(&self, count: u64) -> Result<(), PowerError> {
        let mut state = self
            .ack_log
            .state
            .lock()
            .expect("a thread panicked while it held the lock");
        let subject = &mut state.subjects[self.subject];
        subject.acknowledged[self.writer] = count;
        let mut line = format!("ACK {}", subject.name);
        for count in &subject.acknowledged {
            write!(line, " {count}").expect("writing to a string cannot fail");
        }
        // Reported under the lock, so that the lines of one subject stay in order.
        (self.ack_log.report_line)(&line)?;
        if !state.enough && state.subjects.iter().all(PowerSubject::has_enough_writes) {
            state.enough = true;
            (self.ack_log.report_line)("ENOUGH")?;
        }
        Ok(())
    }

    /// Returns whether a writer has failed.
    pub(super) fn is_over(&self) -> bool {
        self.ack_log
            .state
            .lock()
            .expect("a thread panicked while it held the lock")
            .failed
            .is_some()
    }
}
