//! The removal of expired values, by the background thread.

use farbank_pm::situation;
use farbank_pm::sync::Arc;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off};
use farbank_store::{Error, Key};

use super::{KvSession, NewRecord, NewestValue};
use crate::format::record::RecordType;
use crate::pending::stripe::LockedStripe;
use crate::segments::records::EntryLocation;

impl<M: Medium> KvSession<M> {
    /// Replaces expired values by tombstones.
    pub(crate) fn sweep(&mut self) -> Result<(), Error> {
        self.engine.follow_clock()?;
        for segment in self.engine.clone().take_due(self.engine.now_ms()) {
            self.sweep_segment(segment)?;
        }
        Ok(())
    }

    /// Replaces the expired values in `segment` by tombstones.
    fn sweep_segment(&mut self, segment: u32) -> Result<(), Error> {
        self.pin();
        let engine = Arc::clone(&self.engine);
        let info = engine.info(segment);
        let (mut due, mut next) = (Vec::new(), 0);
        engine.segments.walk(
            segment,
            info.used.load(Relaxed) as usize,
            &mut |at, header| {
                if header.what != RecordType::Put || header.expires_ms == 0 {
                    return;
                }
                if engine.is_expired(header.expires_ms, header.seq) {
                    due.push((at, header.db, engine.segments.key_of(at, header)));
                } else if next == 0 || next > header.expires_ms {
                    next = header.expires_ms;
                }
            },
        );
        let mut due = due.into_iter();
        let reaped =
            due.try_for_each(|(at, db, bytes)| self.delete_expired(at, Key { db, bytes: &bytes }));
        self.commit_batch()?; // Also after an error: staged writes block their keys until drained.
        reaped?;
        info.expires_ms.store(next, Relaxed);
        Ok(())
    }

    /// Deletes the stored key `key` if its newest record is still the expired one at `at`.
    fn delete_expired(&mut self, at: Off, key: Key<'_>) -> Result<(), Error> {
        let hash = self.engine.geometry().hash(key.db, key.bytes);
        loop {
            self.view = self.engine.databases.map.view();
            self.pin();
            let located = self.engine.locate(hash, key);
            if located.found.is_none_or(|found| found.at != at) {
                return Ok(());
            }
            let mut was_replaced = false;
            let mut still =
                |worker: &KvSession<M>, locked: &LockedStripe<'_>, located: &EntryLocation| {
                    let published = NewestValue::Published;
                    was_replaced = !worker.is_still(&published, locked, hash, key, located);
                    !was_replaced
                };
            let draft = NewRecord { key, value: None };
            let written = self.write(hash, &draft, located, &mut still)?.is_some();
            situation!("kv.swept", written);
            if written || was_replaced {
                return Ok(());
            }
            // A swap of databases has held the write back.
        }
    }
}
