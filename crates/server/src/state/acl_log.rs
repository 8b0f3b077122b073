//! The latest refused requests, for ACL LOG.
//!
//! Bounded by `acllog-max-len` and by [`LOG_BYTES_MAX`].

use std::collections::VecDeque;
use std::sync::Mutex;

use super::users::DenialReason;
use crate::lock::lock;

/// Most bytes of memory that all entries use together.
const LOG_BYTES_MAX: usize = 16 << 20;
/// Most bytes of the object of an entry.
const OBJECT_BYTES_MAX: usize = 16 << 10;
/// LoggedDenials that are compared with a new one.
const COMPARED: usize = 10;
/// Milliseconds after which an equal refusal gets an entry of its own.
const GROUPED_MS: u64 = 60_000;

/// Where a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DenialContext {
    TopLevel,
    /// In a transaction: when it was queued, or by EXEC.
    Multi,
    /// A script has called it.
    Lua,
}

impl DenialContext {
    /// Its name in ACL LOG.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DenialContext::TopLevel => "toplevel",
            DenialContext::Multi => "multi",
            DenialContext::Lua => "lua",
        }
    }
}

/// Refused requests that are alike.
#[derive(Clone, Debug)]
pub(crate) struct AclLogEntry {
    pub(crate) count: u64,
    pub(crate) reason: DenialReason,
    pub(crate) context: DenialContext,
    /// The command, key or channel.
    pub(crate) object: Vec<u8>,
    pub(crate) user: Vec<u8>,
    /// When the last of them was refused, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The line of CLIENT LIST of the last client.
    pub(crate) client: String,
}

impl AclLogEntry {
    fn is_like(&self, other: &AclLogEntry) -> bool {
        self.reason == other.reason
            && self.context == other.context
            && self.at_ms.abs_diff(other.at_ms) <= GROUPED_MS
            && self.object == other.object
            && self.user == other.user
    }

    fn bytes(&self) -> usize {
        size_of::<AclLogEntry>() + self.object.len() + self.user.len() + self.client.len()
    }
}

/// The latest refused requests, newest first.
#[derive(Default)]
pub(crate) struct AclLog(Mutex<LoggedDenials>);

#[derive(Default)]
struct LoggedDenials {
    entries: VecDeque<AclLogEntry>,
    bytes: usize,
}

impl AclLog {
    /// Adds a refused request, to an entry of like ones if there is a recent one. Keeps at most `len_max` entries.
    pub(crate) fn add(&self, mut entry: AclLogEntry, len_max: usize) {
        entry.object.truncate(OBJECT_BYTES_MAX);
        entry.user.truncate(OBJECT_BYTES_MAX);
        let mut log = lock(&self.0);
        let mut recent = log.entries.iter().take(COMPARED);
        if let Some(at) = recent.position(|known| known.is_like(&entry))
            && let Some(known) = log.entries.remove(at)
        {
            log.bytes -= known.bytes();
            entry.count = known.count + 1;
        }
        log.bytes += entry.bytes();
        log.entries.push_front(entry);
        while log.entries.len() > len_max || log.bytes > LOG_BYTES_MAX {
            let Some(oldest) = log.entries.pop_back() else {
                break;
            };
            log.bytes -= oldest.bytes();
        }
    }

    /// The latest `count` entries, newest first.
    pub(crate) fn latest(&self, count: usize) -> Vec<AclLogEntry> {
        lock(&self.0).entries.iter().take(count).cloned().collect()
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).entries.len()
    }

    /// Removes all entries.
    pub(crate) fn clear(&self) {
        *lock(&self.0) = LoggedDenials::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(object: &str, at_ms: u64) -> AclLogEntry {
        AclLogEntry {
            count: 1,
            reason: DenialReason::Key,
            context: DenialContext::TopLevel,
            object: object.into(),
            user: b"a".to_vec(),
            at_ms,
            client: String::new(),
        }
    }

    #[test]
    fn like_refusals_share_an_entry_for_a_minute() {
        let log = AclLog::default();
        for (object, at_ms) in [("x", 0), ("y", 1), ("x", 60_000), ("x", 130_000)] {
            log.add(entry(object, at_ms), 128);
        }
        let found: Vec<_> = log
            .latest(9)
            .into_iter()
            .map(|entry| (entry.count, entry.object))
            .collect();
        let expected = [(1, "x"), (2, "x"), (1, "y")].map(|(count, object)| (count, object.into()));
        assert_eq!(found, expected);
    }

    #[test]
    fn the_log_is_bounded() {
        let log = AclLog::default();
        for number in 0..2000 {
            let object = format!("{number:0>width$}", width = 2 * OBJECT_BYTES_MAX);
            let object = object.chars().rev().collect::<String>();
            log.add(entry(&object, 0), usize::MAX);
        }
        assert!(log.len() < 1100 && lock(&log.0).bytes <= LOG_BYTES_MAX);
        log.add(entry("x", 0), 1);
        assert_eq!(log.len(), 1);
        log.add(entry("x", 0), 0);
        log.clear();
        assert_eq!(log.len(), 0);
    }
}
