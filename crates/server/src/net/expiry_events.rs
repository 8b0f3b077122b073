//! The thread of expiries: publishes `expired` for each key when its time has come, and `evicted` for the keys that a
//! cache evicts, while these events have subscribers.
//!
//! Commands list the keys to which they give an expiry (`state::expiries`). A scan, which begins again every [`ROUND`],
//! finds the keys that have got theirs earlier. It must reach a key before the key expires: at [`STEP_KEYS`] per
//! [`STEP`], it visits 30 million keys in [`AHEAD_MS`].

use std::time::{Duration, Instant};

use farbank_store::{DATABASES, Error, Key, ReadView, Session};

use super::executor::ServerParts;
use crate::keyspace_events::KeyspaceEvents;
use crate::state::change_log::KeyChange;
use crate::state::expiries::{AHEAD_MS, holds_expired};
use crate::state::messages::Publication;
use crate::state::shared::ServerShared;
use crate::state::threads::ServerThreads;

/// Time from the begin of a scan to the begin of the next one.
const ROUND: Duration = Duration::from_secs(10);
/// Keys that one step of the scan visits.
const STEP_KEYS: usize = 512;
/// Pause between two steps.
const STEP: Duration = Duration::from_millis(1);
/// How often the thread checks whether the event has subscribers.
const IDLE: Duration = Duration::from_secs(1);
/// Time between the end of a commit and the sending of its events.
const SETTLE: Duration = Duration::from_millis(2);
/// Keys after which their events are sent.
const BATCH: usize = 256;

/// Position of the scan.
#[derive(Default)]
struct Scan {
    db: u8,
    cursor: u64,
    /// When the current or last round began.
    began: Option<Instant>,
    is_running: bool,
}

impl Scan {
    /// Begins a round if it is time. Returns whether one is running.
    fn runs(&mut self) -> bool {
        if !self.is_running && self.began.is_none_or(|began| began.elapsed() >= ROUND) {
            (self.is_running, self.began) = (true, Some(Instant::now()));
            (self.db, self.cursor) = (0, 0);
        }
        self.is_running
    }

    /// Visits the next keys, and lists those that expire soon.
    fn step(&mut self, parts: &ServerParts<'_>, session: &mut dyn Session) -> Result<(), Error> {
        let (db, now_ms) = (self.db, session.now_ms());
        let mut soon = Vec::new();
        self.cursor = session.scan(db, self.cursor, STEP_KEYS, &mut |key, meta| {
            if meta.expires_ms != 0 && meta.expires_ms <= now_ms.saturating_add(AHEAD_MS) {
                soon.push((key.to_vec(), meta.expires_ms));
            }
        })?;
        for (bytes, expires_ms) in soon {
            let key = parts.shared.stored_key(Key { db, bytes: &bytes });
            parts.pool.expiries.note(key, expires_ms, now_ms);
        }
        if self.cursor == 0 {
            self.db += 1;
            self.is_running = usize::from(self.db) < DATABASES;
        }
        Ok(())
    }
}

/// Publishes expiries until the server stops.
pub(super) fn run(parts: &ServerParts<'_>) {
    let (shared, pool) = (&parts.shared, parts.pool);
    let (mut session, mut scan) = (None, Scan::default());
    while !pool.is_stopping() {
        let events = shared.settings.keyspace_events();
        let has_subscribers = !shared.interests.subscriptions.is_empty();
        let has_caches = shared.interests.tracking.clients() > 0;
        let tells_evicted = events.tells(KeyspaceEvents::EVICTED) && has_subscribers || has_caches;
        pool.expiries.collect_evicted(tells_evicted);
        publish_evicted(parts);
        let tells_expired = events.tells(KeyspaceEvents::EXPIRED) && has_subscribers || has_caches;
        if !tells_expired {
            if session.take().is_some() {
                pool.expiries.clear();
                scan = Scan::default();
            }
            pool.expiries.wait(0, IDLE, || pool.is_stopping());
            continue;
        }
        let session = session.get_or_insert_with(|| shared.store.session());
        let mut pause = IDLE;
        if scan.runs() {
            pause = STEP;
            if let Err(error) = scan.step(parts, session.as_mut()) {
                tracing::debug!(%error, "cannot scan for keys that expire");
                scan.is_running = false;
            }
        }
        if has_caches && pool.expiries.take_lost(session.now_ms()) {
            let changes = [KeyChange::All { origin: 0 }];
            pool.publish(shared.announce(&changes), None);
        }
        // As in Redis, keys do not expire during a pause.
        if pool.expiries.is_active() && shared.clients.pause.current(shared.clock_ms()).is_none() {
            publish_due(parts, session.as_mut());
        }
        session.rest();
        let now_ms = session.now_ms();
        pool.expiries.wait(now_ms, pause, || pool.is_stopping());
    }
}

/// Publishes the events of keys that the store has evicted.
fn publish_evicted(parts: &ServerParts<'_>) {
    let mut messages = Vec::new();
    for (db, bytes) in parts.pool.expiries.take_evicted() {
        let key = Key { db, bytes: &bytes };
        messages.extend(messages_of(
            &parts.shared,
            KeyspaceEvents::EVICTED,
            "evicted",
            key,
        ));
    }
    if !messages.is_empty() {
        parts.pool.publish(messages, None);
    }
}

/// Returns the events, if there are events of `class`, and the invalidations of a key that has expired or was evicted.
fn messages_of(
    shared: &ServerShared<'_>,
    class: KeyspaceEvents,
    name: &str,
    key: Key<'_>,
) -> Vec<Publication> {
    let mut messages = match shared.settings.keyspace_events().tells(class) {
        true => shared.event(name, key),
        false => Vec::new(),
    };
    if shared.interests.tracking.clients() > 0 {
        let (key, origin) = (key.bytes.into(), 0);
        let changes = [KeyChange::Key { key, origin }];
        messages.extend(shared.announce(&changes));
    }
    messages
}

/// Publishes the events of keys that have expired.
fn publish_due(parts: &ServerParts<'_>, session: &mut dyn Session) {
    let (shared, pool) = (&parts.shared, parts.pool);
    let mut messages = Vec::new();
    while !pool.is_stopping() && !shared.interests.subscriptions.is_full() {
        let now_ms = session.now_ms();
        let Some((stored, bytes)) = pool.expiries.first_due(now_ms) else {
            break;
        };
        let listed = Key {
            db: stored,
            bytes: &bytes,
        };
        let key = Key {
            db: shared.database_map().shown(stored),
            ..listed
        };
        if !holds_expired(session, key, ReadView::Durable) {
            if !pool.expiries.postpone(listed, now_ms)
                && let Ok(Some(meta)) = session.meta(key, ReadView::Durable)
                && meta.expires_ms > now_ms
            {
                pool.expiries.note(listed, meta.expires_ms, now_ms);
            }
        } else if pool.expiries.claim(listed, now_ms) {
            // A command that replaces the value meanwhile may have claimed the entry first.
            messages.extend(messages_of(shared, KeyspaceEvents::EXPIRED, "expired", key));
        }
        if messages.len() >= BATCH {
            pool.publish(std::mem::take(&mut messages), None);
        }
    }
    if !messages.is_empty() {
        // The worker that has stored a value publishes the events of its write at this moment: they come first.
        std::thread::sleep(SETTLE);
        pool.publish(messages, None);
    }
}
