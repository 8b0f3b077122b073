//! The pause of clients (CLIENT PAUSE).
//!
//! A paused request stays in its connection's input, and the connection waits on a list of its worker. No thread waits.
//! A request that runs when the pause begins ends normally.

use std::sync::atomic::{AtomicU64, Ordering};

/// Which requests a pause holds back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PauseKind {
    /// Those that write or publish.
    Writes,
    All,
}

/// The pause that is in effect, if any.
#[derive(Default)]
pub(crate) struct Pause {
    /// 0 without a pause; otherwise its end in milliseconds of the server's clock, times 2, plus 1 if it holds back all
    /// requests.
    state: AtomicU64,
}

fn decode(state: u64) -> (u64, PauseKind) {
    let kind = match state % 2 {
        0 => PauseKind::Writes,
        _ => PauseKind::All,
    };
    (state / 2, kind)
}

impl Pause {
    /// Whether there may be a pause. Cheap: each request calls it.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.state.load(Ordering::Relaxed) != 0
    }

    /// Begins a pause until `end_ms`. As in Redis, it extends the pause that is in effect and never weakens it.
    pub(crate) fn begin(&self, now_ms: u64, end_ms: u64, kind: PauseKind) {
        if end_ms <= now_ms {
            return;
        }
        let extend = |state| {
            let (old_end, old_kind) = decode(state);
            let kind = match old_end > now_ms {
                true => kind.max(old_kind),
                false => kind,
            };
            let end = end_ms.min(u64::MAX / 2).max(old_end);
            Some(end * 2 + u64::from(kind == PauseKind::All))
        };
        // The closure always returns a value, so this cannot fail.
        let _ = self
            .state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, extend);
    }

    /// Ends the pause.
    pub(crate) fn end(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// The kind of the pause in effect, and its remaining milliseconds. A pause whose time is over is removed.
    pub(crate) fn current(&self, now_ms: u64) -> Option<(PauseKind, u64)> {
        let state = self.state.load(Ordering::Relaxed);
        let (end, kind) = decode(state);
        if end > now_ms {
            return Some((kind, end - now_ms));
        }
        if state != 0 {
            // Fails if a new pause has begun meanwhile; it stays.
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.state.compare_exchange(state, 0, success, failure);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_extends_another_and_never_weakens_it() {
        let pause = Pause::default();
        assert_eq!(pause.current(5), None);
        pause.begin(10, 20, PauseKind::All);
        pause.begin(11, 30, PauseKind::Writes);
        assert_eq!(pause.current(12), Some((PauseKind::All, 18)));
        pause.begin(13, 15, PauseKind::Writes);
        assert_eq!(pause.current(14), Some((PauseKind::All, 16)));
        assert_eq!(pause.current(30), None);
        assert!(!pause.is_set());
        pause.begin(31, 40, PauseKind::Writes);
        assert_eq!(pause.current(31), Some((PauseKind::Writes, 9)));
        pause.end();
        assert_eq!(pause.current(31), None);
        pause.begin(31, 31, PauseKind::All);
        assert!(!pause.is_set());
    }
}
