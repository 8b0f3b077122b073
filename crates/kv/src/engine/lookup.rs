//! Lookup: from a key's hash to its record.
//!
//! ```text
//!   hash ──▶ spot: group, line of the index ──▶ hit: an entry whose tag matches ──▶ found: the record, by its header
//! ```
//!
//! An entry whose tag matches is most likely the key's. The record itself decides: the checksum of its header, its
//! database, the length of its key, its key. A record that fails its checksum may have been the key's before it was
//! damaged.
//!
//! The usual path, one matching entry and a valid record, is inlined into its callers: passing headers through memory
//! between functions would cost more than all the checks.

use farbank_pm::{Medium, Off};

use crate::engine::Engine;
use crate::index::{BucketRef, Candidate};
use crate::segments::records::{EntryLocation, FETCHED_HEAD, FoundRecord};
use farbank_store::Key;

impl<M: Medium> Engine<M> {
    /// Looks `key` up in the index. A valid record of the key wins over damaged ones.
    #[inline]
    pub(crate) fn locate(&self, hash: u64, key: Key<'_>) -> EntryLocation {
        let mut collisions = Vec::new();
        let found = self.seek(hash, key, 0, |at| collisions.push(at));
        EntryLocation {
            found,
            tag_collisions: collisions,
        }
    }

    /// As [`Engine::locate`], for callers that need only the record. Prefetches its first `fetched` bytes, so that
    /// all their cache lines arrive together. Calls `pass` with every other entry whose tag matches.
    #[inline(always)]
    pub(crate) fn seek(
        &self,
        hash: u64,
        key: Key<'_>,
        fetched: usize,
        pass: impl FnMut(Off),
    ) -> Option<FoundRecord> {
        let sought = self.seek_at(&self.index.spot(hash), key, fetched, pass);
        sought.map(|(_, found)| found)
    }

    /// As [`Engine::seek`], at a known location in the index. Also returns the entry.
    #[inline(always)]
    pub(crate) fn seek_at(
        &self,
        spot: &BucketRef,
        key: Key<'_>,
        fetched: usize,
        pass: impl FnMut(Off),
    ) -> Option<(Candidate, FoundRecord)> {
        let first = self.index.first(spot)?;
        self.medium().prefetch(first.at(), fetched);
        match self.follow(first, key) {
            Some(sought) => Some(sought),
            None => self.seek_among(spot, key, pass),
        }
    }

    /// The slow path of [`Engine::seek_at`]: several matching entries, or damaged records.
    #[cold]
    fn seek_among(
        &self,
        spot: &BucketRef,
        key: Key<'_>,
        mut pass: impl FnMut(Off),
    ) -> Option<(Candidate, FoundRecord)> {
        let mut damaged: Option<(Candidate, FoundRecord)> = None;
        let sound = self.index.search_at(spot, |hit| {
            let at = hit.at();
            match self.segments.classify(at, key) {
                Some(found) if found.header.is_some() => Some((hit, found)),
                Some(found) => {
                    if let Some((before, _)) = damaged.replace((hit, found)) {
                        pass(before.at());
                    }
                    None
                }
                None => {
                    pass(at);
                    None
                }
            }
        });
        match (sound, damaged) {
            (None, damaged) => damaged,
            (sound, Some((other, _))) => {
                pass(other.at());
                sound
            }
            (sound, None) => sound,
        }
    }

    /// Returns the first entry whose tag matches the key, and prefetches its record and the counters of its segment.
    /// The caller holds the stripe's lock.
    #[inline(always)]
    pub(crate) fn likely(&self, spot: &BucketRef) -> Option<Candidate> {
        let hit = self.index.first(spot)?;
        self.medium().prefetch(hit.at(), FETCHED_HEAD);
        self.segments.fetch_for_count(hit.at());
        Some(hit)
    }

    /// Returns the record to which an entry refers, if that is a record of `key` with a valid header.
    #[inline(always)]
    pub(crate) fn follow(&self, hit: Candidate, key: Key<'_>) -> Option<(Candidate, FoundRecord)> {
        let at = hit.at();
        let raw = self.segments.raw(at)?;
        self.segments
            .is_of(at, &raw, key)
            .then(|| (hit, self.segments.found(at, raw)))
    }

    /// Returns whether `located` is still current: the entry that was found still exists (a key has only one), or, if
    /// none was found, no new matching entry has been added. The caller holds the stripe's lock.
    pub(crate) fn confirm(&self, hash: u64, located: &EntryLocation) -> bool {
        if let Some(found) = located.found {
            return self.index.names(hash, found.at);
        }
        let is_new = |at: Off| (!located.tag_collisions.contains(&at)).then_some(());
        self.index.search(hash, is_new).is_none()
    }
}
