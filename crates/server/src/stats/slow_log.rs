//! The latest slow requests, for SLOWLOG, and the latest latency peaks, for LATENCY.
//!
//! Both are bounded: [`SlowLog`] by `slowlog-max-len` and by [`SLOW_BYTES_MAX`], [`LatencyLog`] by its two events of
//! [`SAMPLES`] each. Requests that are not slow do not reach them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// Most bytes of memory that the entries of the slow log use together.
const SLOW_BYTES_MAX: usize = 64 << 20;
/// Most samples that are kept of an event.
const SAMPLES: usize = 160;

/// A slow request.
pub(crate) struct SlowRequest {
    pub(crate) id: u64,
    /// When it ended, in seconds since 1970.
    pub(crate) secs: u64,
    pub(crate) micros: u64,
    /// Its arguments, shortened.
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) addr: String,
    pub(crate) name: Vec<u8>,
}

impl SlowRequest {
    fn bytes(&self) -> usize {
        let args: usize = self
            .args
            .iter()
            .map(|arg| arg.len() + size_of::<Vec<u8>>())
            .sum();
        size_of::<SlowRequest>() + args + self.addr.len() + self.name.len()
    }
}

/// The latest slow requests.
#[derive(Default)]
pub(crate) struct SlowLog(Mutex<SlowEntries>);

#[derive(Default)]
struct SlowEntries {
    /// Newest first.
    entries: VecDeque<Arc<SlowRequest>>,
    bytes: usize,
    next_id: u64,
}

impl SlowEntries {
    /// Removes the oldest entries beyond `len_max` and beyond the memory.
    fn trim(&mut self, len_max: usize) {
        while self.entries.len() > len_max || self.bytes > SLOW_BYTES_MAX {
            let Some(oldest) = self.entries.pop_back() else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
    }
}

impl SlowLog {
    /// Adds a request, and sets its id. Keeps at most `len_max` requests.
    pub(crate) fn add(&self, mut request: SlowRequest, len_max: usize) {
        let mut log = lock(&self.0);
        request.id = log.next_id;
        log.next_id += 1;
        log.bytes += request.bytes();
        log.entries.push_front(Arc::new(request));
        log.trim(len_max);
    }

    /// The latest `count` requests, newest first.
    pub(crate) fn latest(&self, count: usize) -> Vec<Arc<SlowRequest>> {
        lock(&self.0).entries.iter().take(count).cloned().collect()
    }

    /// Number of requests in the log.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).entries.len()
    }

    /// Bytes of memory that the requests in the log use.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.0).bytes
    }

    /// Removes all requests. Ids go on.
    pub(crate) fn clear(&self) {
        let mut log = lock(&self.0);
        log.entries.clear();
        log.bytes = 0;
    }
}

/// A kind of latency peak. Its discriminant is its place in [`LatencyLog`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LatencyEvent {
    /// A command took long.
    Command,
    /// A command that Redis counts as fast took long.
    FastCommand,
}

impl LatencyEvent {
    /// All events.
    pub(crate) const ALL: [LatencyEvent; 2] = [LatencyEvent::Command, LatencyEvent::FastCommand];

    /// Its name in LATENCY.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LatencyEvent::Command => "command",
            LatencyEvent::FastCommand => "fast-command",
        }
    }

    /// The event with this name, in either case.
    pub(crate) fn named(name: &[u8]) -> Option<LatencyEvent> {
        let mut all = LatencyEvent::ALL.into_iter();
        all.find(|event| event.name().as_bytes().eq_ignore_ascii_case(name))
    }
}

/// The longest latency of an event within one second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LatencySample {
    /// Seconds since 1970.
    pub(crate) secs: u64,
    pub(crate) ms: u64,
}

/// Samples of one event.
#[derive(Clone, Default, Debug)]
pub(crate) struct LatencySamples {
    /// Oldest first.
    pub(crate) samples: VecDeque<LatencySample>,
    /// The longest latency since the last reset.
    pub(crate) ms_max: u64,
}

/// The latest latency peaks by event.
#[derive(Default)]
pub(crate) struct LatencyLog(Mutex<[LatencySamples; LatencyEvent::ALL.len()]>);

impl LatencyLog {
    /// Adds a latency of `ms` milliseconds.
    pub(crate) fn add(&self, event: LatencyEvent, secs: u64, ms: u64) {
        let log = &mut lock(&self.0)[event as usize];
        log.ms_max = log.ms_max.max(ms);
        match log.samples.back_mut() {
            Some(last) if last.secs == secs => last.ms = last.ms.max(ms),
            _ => log.samples.push_back(LatencySample { secs, ms }),
        }
        if log.samples.len() > SAMPLES {
            log.samples.pop_front();
        }
    }

    /// The samples of an event.
    pub(crate) fn samples(&self, event: LatencyEvent) -> LatencySamples {
        lock(&self.0)[event as usize].clone()
    }

    /// Removes the samples of an event. Returns whether there were any.
    pub(crate) fn clear(&self, event: LatencyEvent) -> bool {
        let removed = std::mem::take(&mut lock(&self.0)[event as usize]);
        !removed.samples.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: usize) -> SlowRequest {
        SlowRequest {
            id: 0,
            secs: 0,
            micros: 0,
            args: vec![vec![0; bytes]],
            addr: String::new(),
            name: Vec::new(),
        }
    }

    #[test]
    fn the_slow_log_is_bounded_by_its_length_and_its_memory() {
        let log = SlowLog::default();
        for _ in 0..10 {
            log.add(request(10), 4);
        }
        let ids: Vec<_> = log.latest(10).iter().map(|entry| entry.id).collect();
        assert_eq!(ids, [9, 8, 7, 6]);
        for _ in 0..4 {
            log.add(request(SLOW_BYTES_MAX / 2), usize::MAX);
        }
        assert!(log.len() == 1 && log.bytes() <= SLOW_BYTES_MAX);
        log.clear();
        assert_eq!((log.len(), log.bytes()), (0, 0));
        log.add(request(1), 0);
        assert_eq!(log.len(), 0);
    }

    #[test]
    fn the_samples_of_a_second_are_one_and_old_ones_are_dropped() {
        let log = LatencyLog::default();
        log.add(LatencyEvent::Command, 1, 5);
        log.add(LatencyEvent::Command, 1, 3);
        let samples = log.samples(LatencyEvent::Command);
        assert_eq!(samples.samples, [LatencySample { secs: 1, ms: 5 }]);
        for secs in 0..1000 {
            log.add(LatencyEvent::FastCommand, secs, 1);
        }
        assert_eq!(
            log.samples(LatencyEvent::FastCommand).samples.len(),
            SAMPLES
        );
        assert!(log.clear(LatencyEvent::Command) && !log.clear(LatencyEvent::Command));
    }
}
