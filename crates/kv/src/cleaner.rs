//! The cleaner: empties segments by moving what lives in them.
//!
//! A pass takes a few victims, copies their live records and needed tombstones to open segments of its
//! own (by expected lifetime, like sessions do), drains, swings the index, and puts the victims in
//! limbo. When no reader can be in them any more they are reborn under new generations, drained, and
//! are free.
//!
//! Victims are chosen by declining cost (Lomet and Luo, ICDE 2021, section 4): not the emptiest
//! segments first, but those whose emptiness will grow least by waiting.
//!
//! # Invariants
//! C1  A victim is reborn only after its moved records are durable and published, and no reader that
//!     could have found an old place is still pinned.
//! C2  A copy that loses the race to a newer write is never published; it stays on the medium, valid,
//!     until its segment dies. The segments a pass fills count as opened when the pass began, or when
//!     the oldest tombstone was written that was not published by then, so that tombstones published
//!     meanwhile wait for them too.
//! C3  A tombstone is dropped when every segment that was opened before it was written (C2) is gone:
//!     nothing it hides is left. One that a newer record of its key has replaced is dropped at once. A segment
//!     counts the bytes of its tombstones until it goes, be they copied or not: only one that has none is
//!     cleaned by the live map, which does not know them.
//! C4  The cleaner can always go on: `cleaner_reserve` segments are taken by nobody else. They are used up while
//!     readers are still in what it has emptied. A pass that ends for want of room keeps what it has copied by then, the
//!     rest stays where it is; what was copied is dead there, and tombstones are not copied again.
//! C5  A victim whose live records were not all found or fail their checksums is damaged: it is quarantined,
//!     never reborn. So is one that is read from end to end and holds bytes that are no record: what cannot be
//!     read may be a tombstone. One that is cleaned by the live map has none that is needed.
//!
//! # Crash argument
//! | crash between          | recovery sees                      | and does                           |
//! |------------------------|------------------------------------|------------------------------------|
//! | copied, drained        | old records, perhaps some copies   | keeps one: same key, same number (V6) |
//! | drained, reborn        | both                               | keeps one                          |
//! | head, tail reborn      | two generations                    | counts the later: the segment is empty |

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use farbank_pm::epoch::Slot;
use farbank_pm::fault;
use farbank_pm::model::Category;
use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed};
use farbank_pm::sync::thread;
use farbank_pm::{Drain, Lane, Medium, Off, Poisoned};

use crate::config::Cleaning;
use crate::engine::Engine;
use crate::log::{Heritage, Log};
use crate::publish::note_expiry;
use crate::read::FETCHED_VALUE;
use crate::record::{ALIGN, Extent, Header, Type, u64_at};
use crate::segment::{FIRST, Info, State};
use crate::store::Key;
use crate::unreadable;

/// Bytes of victims a pass takes where a drain is a fence; and segments, at most.
const PASS_BYTES: usize = 2 << 20;
const PASS_SEGMENTS: usize = 4;
/// How often the oldest segments are emptied in turn until tombstones are gone.
const PURGE_ROUNDS: u32 = 3;
/// Records that are met before what the index says of them is fetched.
const MET_MAX: usize = 64;
/// Live records that are fetched before they are looked at.
const PLACES_AHEAD: usize = 8;
/// How often a victim may keep live records nobody finds before it counts as damaged.
const FAILURES_MAX: u8 = 8;

/// Whoever waits for readers lets others run so often before it sleeps.
const YIELDS: u32 = 1_000;
/// And so long, each time.
const NAP: Duration = Duration::from_millis(1);

/// What waiting for readers has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limbo {
    /// Nothing waits for them.
    Empty,
    /// They have left something.
    Passing,
    /// They have not.
    Held,
}

/// What the cleaner keeps between passes.
pub(crate) struct Cleaner {
    lane: Lane,
    log: Log,
    slot: Slot,
    /// Of victims that had to be kept: where tombstones were met that have copies by now, and need no more.
    copied: HashMap<u32, HashSet<Off>>,
}

/// A record on its way to a new place.
struct Move {
    victim: u32,
    hash: u64,
    old: Off,
    new: Off,
    len: u32,
    expires_ms: u64,
    tomb: bool,
}

/// What a pass needs to know while it copies.
struct Pass {
    /// When the segments it fills count as opened: [`Engine::pass_stamp`].
    stamp: u64,
    /// The two oldest stamps of segments with records, and which segment has the oldest.
    oldest: (u64, u32, u64),
    moves: Vec<Move>,
    /// Key and value of the record that is being copied.
    body: Vec<u8>,
    /// Tables of large groups, and the victims their records lie in.
    tables: Vec<(u32, Vec<u8>)>,
    /// Victims in which something was damaged.
    damaged: Vec<u32>,
}

impl Cleaner {
    pub(crate) fn new(id: u32, slot: Slot) -> Cleaner {
        Cleaner {
            lane: Lane::new(id),
            log: Log::default(),
            slot,
            copied: HashMap::new(),
        }
    }

    /// Whether the tombstone at `at` was copied when `victim` was cleaned before, and had to be kept.
    fn has_copied(&self, victim: u32, at: Off) -> bool {
        let places = self.copied.get(&victim);
        places.is_some_and(|places| places.contains(&at))
    }

    /// What the cleaner's lane has asked of the medium.
    pub(crate) fn counters(&self) -> farbank_pm::Counters {
        self.lane.counters
    }
}

impl<M: Medium> Engine<M> {
    /// The class of a record that replaces the one at `old`: the longer the old one lived, the longer the new
    /// one is expected to. Ages are counted in appended bytes, relative to the live ones.
    pub(crate) fn lifetime(&self, old: Option<Off>) -> usize {
        let classes = self.classes();
        if classes == 1 {
            return 0;
        }
        match old {
            None => classes - 1,
            Some(old) => self.class_of_age(self.info_at(old).born.load(Relaxed)),
        }
    }

    fn class_of_age(&self, born: u64) -> usize {
        let age = self.written.load(Relaxed).saturating_sub(born);
        let live = self.occupied().max(1);
        let class = match age {
            _ if age * 4 < live => 0,
            _ if age < live => 1,
            _ if age < live * 4 => 2,
            _ => 3,
        };
        class.min(self.classes() - 1)
    }

    /// Cleans until `want` segments are free; false if there is nothing to gain. The caller is
    /// unpinned and holds no lock. The cleaner's lock is free between passes.
    pub(crate) fn clean_until(&self, want: u32) -> Result<bool, Poisoned> {
        let _spending = Category::Resize.spend();
        // Once round: what a run moves twice it does not gain.
        let mut budget = self.pool.segments();
        loop {
            self.check_poison()?;
            let mut cleaner = self.cleaner.lock().expect("no holder panics");
            self.rebirth(&mut cleaner.lane)?;
            if self.free_count() >= want {
                return Ok(true);
            }
            let victims = match budget {
                0 => Vec::new(),
                _ => self.choose(&mut cleaner),
            };
            budget = budget.saturating_sub(victims.len() as u32);
            let emptied = !victims.is_empty() && self.pass(&mut cleaner, &victims)? > 0;
            self.free.wake_waiters();
            drop(cleaner);
            if emptied {
                continue;
            }
            // Nothing to empty, or no room to empty it: others have to leave what was emptied before.
            match self.wait_for_limbo(want)? {
                Limbo::Passing => {}
                Limbo::Empty if !victims.is_empty() => thread::yield_now(),
                Limbo::Empty | Limbo::Held => return Ok(self.free_count() >= want),
            }
        }
    }

    /// Empties the oldest segments until tombstones that wait for them are gone and `len` bytes fit; false if that
    /// does not happen, at once if tombstones are not what is in the way. The caller is unpinned and holds no
    /// lock.
    pub(crate) fn make_tombstones_go(&self, len: usize) -> Result<bool, Poisoned> {
        self.empty_oldest(&|| self.fits_exactly(len) || !self.would_fit(len))?;
        Ok(self.fits_exactly(len))
    }

    /// Empties the oldest segments, one after the other, until `is_enough`, or all of them some times: what is
    /// copied in the first round, because a segment of the tombstone's time is still there, goes in the next.
    pub(crate) fn empty_oldest(&self, is_enough: &dyn Fn() -> bool) -> Result<(), Poisoned> {
        let low = self.stock_low();
        for _ in 0..PURGE_ROUNDS * self.pool.segments() {
            if is_enough() {
                return Ok(());
            }
            if self.config.cleaning == Cleaning::Background && self.free_count() < low {
                self.clean_until(low)?; // Writers that need no room of tombstones do not wait for all this.
            }
            let mut cleaner = self.cleaner.lock().expect("no holder panics");
            let oldest = (0..self.pool.segments())
                .filter(|s| self.is_candidate(*s))
                .min_by_key(|s| self.info(*s).opened.load(Relaxed));
            let limit = oldest.map_or(u64::MAX, |s| self.info(s).opened.load(Relaxed));
            if self.seal_parked(&mut cleaner.lane, &|opened| opened < limit) > 0 {
                continue;
            }
            let Some(victim) = oldest else {
                return Ok(());
            };
            self.pass(&mut cleaner, &[victim])?;
            let reborn = self.rebirth(&mut cleaner.lane)?;
            drop(cleaner);
            self.free.wake_waiters();
            if reborn == 0
                && self.free_count() <= 2
                && self.wait_for_limbo(self.cleaner_reserve())? == Limbo::Held
            {
                return Ok(());
            }
        }
        Ok(())
    }

    fn is_candidate(&self, segment: u32) -> bool {
        let info = self.info(segment);
        info.state() == State::Sealed && info.unsettled.load(Acquire) == 0
    }

    /// Seals parked segments that were opened at stamps `is_wanted`. Returns how many.
    fn seal_parked(&self, lane: &mut Lane, is_wanted: &dyn Fn(u64) -> bool) -> usize {
        let mut sealed = 0;
        for shared in self.enrolled().iter() {
            let mut parked = shared.parked.lock().expect("no holder panics");
            sealed += parked.seal(self, lane, is_wanted);
        }
        sealed
    }

    /// Bytes that emptying the parked segments would gain.
    fn gain_of_parked(&self) -> u64 {
        let sessions = self.enrolled();
        let parked = sessions
            .iter()
            .map(|s| s.parked.lock().expect("no holder panics"));
        parked.map(|parked| parked.gain(self)).sum()
    }

    /// Gives readers some time to leave limbo.
    fn wait_for_limbo(&self, want: u32) -> Result<Limbo, Poisoned> {
        for round in 0..self.config.patience {
            if self.limbo.lock().expect("no holder panics").is_empty() {
                return Ok(Limbo::Empty);
            }
            let mut cleaner = self.cleaner.lock().expect("no holder panics");
            let reborn = self.rebirth(&mut cleaner.lane)?;
            drop(cleaner);
            if reborn > 0 || self.free_count() >= want {
                return Ok(Limbo::Passing);
            }
            match round < YIELDS {
                true => thread::yield_now(),
                false => thread::sleep(NAP),
            }
        }
        Ok(Limbo::Held)
    }

    /// Victims for one pass, best first; none if the bytes that passes could gain make up no segment.
    fn choose(&self, cleaner: &mut Cleaner) -> Vec<u32> {
        let payload = self.geometry.payload() as u64;
        let now = self.written.load(Relaxed);
        let too_many_tombs = self.buried() > u64::from(self.pool.segments()) * payload / 12;
        let mut scored: Vec<(f64, u32)> = Vec::new();
        let mut oldest: Option<(u64, u32)> = None;
        let mut gain = cleaner.log.room_left(self);
        let parked = self.gain_of_parked();
        for segment in 0..self.pool.segments() {
            if !self.is_candidate(segment) {
                continue;
            }
            let info = self.info(segment);
            let dead = self.gain_of(info);
            gain += dead;
            let opened = info.opened.load(Relaxed);
            if oldest.is_none_or(|(o, _)| opened < o) {
                oldest = Some((opened, segment));
            }
            if dead * 64 >= payload {
                let age = now.saturating_sub(info.born.load(Relaxed)) + 1;
                let emptiness = dead as f64 / payload as f64;
                let cost = ((1.0 - emptiness) / emptiness).powi(2) / age as f64;
                scored.push((cost, segment));
            }
        }
        if gain < payload {
            if gain + parked >= payload {
                // What idle sessions have open is what is missing.
                self.seal_parked(&mut cleaner.lane, &|_| true);
                return self.choose(cleaner);
            }
            return Vec::new();
        }
        scored.sort_by(|a, b| a.0.total_cmp(&b.0));
        let most = (self.pass_bytes() / self.geometry.segment_bytes).clamp(1, PASS_SEGMENTS);
        let mut victims: Vec<u32> = scored.into_iter().take(most).map(|(_, s)| s).collect();
        // Tombstones wait for the oldest segment: when they are many, it goes whatever it holds.
        if let Some((_, segment)) = oldest.filter(|_| too_many_tombs)
            && !victims.contains(&segment)
        {
            victims.insert(0, segment);
            victims.truncate(most);
        }
        victims
    }

    /// Bytes of victims a pass takes: few where a drain is a fence, so that what waits for the pass waits for a
    /// millisecond; more where each pass waits for the device.
    fn pass_bytes(&self) -> usize {
        match self.caps().drain {
            Drain::Fence => PASS_BYTES,
            Drain::Sync | Drain::Relaxed => 4 * PASS_BYTES,
        }
    }

    /// Empties `victims` into limbo, or as many as there is room for. Returns how many.
    fn pass(&self, cleaner: &mut Cleaner, victims: &[u32]) -> Result<usize, Poisoned> {
        let victims: Vec<u32> = victims
            .iter()
            .copied()
            .filter(|v| self.info(*v).turn(State::Sealed, State::Cleaning))
            .collect();
        let mut pass = Pass {
            stamp: self.pass_stamp(),
            oldest: self.oldest_stamps(),
            moves: Vec::new(),
            body: Vec::new(),
            tables: Vec::new(),
            damaged: Vec::new(),
        };
        self.epochs.pin(&cleaner.slot);
        let mut emptied = Vec::new();
        for &victim in &victims {
            // No room: what was copied is published, the rest stays where it is.
            if !self.copy_out_of(cleaner, &mut pass, victim) {
                break;
            }
            emptied.push(victim);
        }
        let bytes = cleaner.log.copy_in(self, &mut cleaner.lane, None);
        let ticket = self.medium().drain(&mut cleaner.lane);
        cleaner.log.drained(self, ticket);
        cleaner.slot.unpin();
        if !fault!("kv.victims_before_copies") {
            self.settle(ticket)?;
        }
        self.tally.moved_bytes.fetch_add(bytes, Relaxed);
        self.publish_moves(&pass.moves);
        let holding = self.free_tables(&pass.tables);
        let retired = self.retire(&victims, &emptied, &pass.damaged, &holding);
        self.note_copied(cleaner, &pass.moves);
        cleaner.log.rotate(self);
        Ok(retired)
    }

    /// What a pass that begins now gives its segments as stamp (C2): no later than the fence of any
    /// tombstone that is listed now, or will be. What those delete may still be copied.
    fn pass_stamp(&self) -> u64 {
        let now = self.stamp.load(Relaxed);
        let fences = self.stripes.iter().map(|s| s.lock().lowest_fence());
        fences.min().map_or(now, |lowest| lowest.min(now))
    }

    fn oldest_stamps(&self) -> (u64, u32, u64) {
        let mut oldest = (u64::MAX, u32::MAX, u64::MAX);
        for segment in 0..self.pool.segments() {
            let info = self.info(segment);
            if matches!(info.state(), State::Free | State::Extent) {
                continue;
            }
            let opened = info.opened.load(Relaxed);
            if opened < oldest.0 {
                oldest = (opened, segment, oldest.0);
            } else {
                oldest.2 = oldest.2.min(opened);
            }
        }
        oldest
    }

    /// Copies what must be kept of `victim`; false if there is no room for all of it.
    fn copy_out_of(&self, cleaner: &mut Cleaner, pass: &mut Pass, victim: u32) -> bool {
        let info = self.info(victim);
        let groups = if fault!("kv.groups_cleaned_away") {
            &info.tombs
        } else {
            &info.groups
        };
        let kept = [&info.tombs, groups];
        let only_values = kept.iter().all(|count| count.load(Relaxed) == 0);
        let live = info.live_records();
        if only_values && live == 0 {
            return true;
        }
        let (from, bytes) = (self.geometry.base(victim), self.geometry.segment_bytes);
        let mapped = match only_values {
            true => self.live_map.all_of(from, bytes, live),
            false => None,
        };
        let mut fits = true;
        let mut met = Vec::with_capacity(MET_MAX);
        let mut key = Vec::new();
        let mut meet = |at: Off, header: &Header| {
            key.clear();
            let from = at.plus(header.len() as u64);
            self.medium().append_out(from, header.key_len, &mut key);
            met.push((at, *header, self.geometry.hash(header.db, &key)));
            if met.len() == MET_MAX {
                fits = fits && self.copy_met(cleaner, pass, victim, &met);
                met.clear();
            }
        };
        let whole = match mapped {
            Some(places) => self.walk_places(&places, &mut meet),
            None => self.walk(victim, info.used.load(Relaxed) as usize, &mut meet),
        };
        if !whole {
            pass.damaged.push(victim);
        }
        fits && self.copy_met(cleaner, pass, victim, &met)
    }

    /// Copies what must be kept of some records; false if there is no room. What the index says of
    /// them is fetched for all at once.
    fn copy_met(
        &self,
        cleaner: &mut Cleaner,
        pass: &mut Pass,
        victim: u32,
        met: &[(Off, Header, u64)],
    ) -> bool {
        for (_, _, hash) in met {
            self.index.touch(&self.index.spot(*hash));
        }
        met.iter()
            .all(|(at, header, hash)| self.copy_record(cleaner, pass, victim, *at, header, *hash))
    }

    /// Calls `each` for the record that begins at one of the two places, for each pair of `places`. Whether there was one
    /// for each.
    fn walk_places(&self, places: &[[Off; 2]], each: &mut dyn FnMut(Off, &Header)) -> bool {
        let mut whole = true;
        for (n, place) in places.iter().enumerate() {
            if let Some([ahead, _]) = places.get(n + PLACES_AHEAD) {
                self.medium().prefetch(*ahead, FETCHED_VALUE);
            }
            let mut begins = place.iter().map(|at| (*at, self.header(*at)));
            match begins.find_map(|(at, header)| Some((at, header?))) {
                Some((at, header)) => each(at, &header),
                None => whole = false,
            }
        }
        whole
    }

    /// Calls `each` for every record in a segment's first `end` bytes, members of groups included
    /// wherever they lie; large groups themselves come after their members. Whether the segment's own
    /// bytes were all records.
    pub(crate) fn walk(
        &self,
        segment: u32,
        end: usize,
        each: &mut dyn FnMut(Off, &Header),
    ) -> bool {
        self.walk_own(segment, end, &mut |at, header| {
            if header.what == Type::Group {
                for extent in Extent::decode_all(&self.table_of(at, header)) {
                    if extent.segment >= self.pool.segments() {
                        continue; // The table is damaged.
                    }
                    let info = self.info(extent.segment);
                    if info.generation.load(Relaxed) == extent.generation {
                        let end = info.used.load(Relaxed) as usize;
                        self.walk_own(extent.segment, end, each);
                    }
                }
            }
            each(at, header);
        })
    }

    /// Calls `each` for every record that lies in a segment's first `end` bytes, members of groups and
    /// large groups' records included. Whether those bytes were all records.
    pub(crate) fn walk_own(
        &self,
        segment: u32,
        end: usize,
        each: &mut dyn FnMut(Off, &Header),
    ) -> bool {
        let base = self.geometry.base(segment);
        let (mut within, mut whole) = (FIRST, true);
        while within < end {
            let at = base.plus(within as u64);
            let Some(header) = self.header(at) else {
                within += ALIGN;
                whole = false;
                continue;
            };
            if header.what == Type::Group && !header.large {
                // Its members follow its own header and are met next.
                within += header.len() + header.key_len;
            } else {
                each(at, &header);
                within += self.record_len(&header);
            }
        }
        whole
    }

    /// Copies one record if it must be kept; false if there is no room.
    fn copy_record(
        &self,
        cleaner: &mut Cleaner,
        pass: &mut Pass,
        victim: u32,
        at: Off,
        header: &Header,
        hash: u64,
    ) -> bool {
        match header.what {
            Type::Put if !self.index.names(hash, at) => return true,
            Type::Tomb if cleaner.has_copied(victim, at) => return true,
            Type::Pad => return true,
            Type::Group if self.body_holds(at, header) => {
                pass.tables.push((victim, self.table_of(at, header)));
                return true;
            }
            Type::Group => {
                pass.damaged.push(victim);
                return true;
            }
            Type::Put | Type::Tomb => {}
        }
        pass.body.clear();
        let from = at.plus(header.len() as u64);
        self.medium()
            .append_out(from, self.body_len(header), &mut pass.body);
        let body = &pass.body[..];
        let key = Key {
            db: header.db,
            bytes: &body[..header.key_len],
        };
        let tomb = header.what == Type::Tomb;
        // A tombstone whose key cannot be trusted may be needed.
        let sound = Engine::<M>::body_matches(header, key.bytes, &body[header.key_len..]);
        let keep = !tomb || !sound || self.tomb_is_needed(pass, victim, hash, key, header, body);
        if keep && !sound {
            pass.damaged.push(victim);
        }
        if !keep || !sound {
            return true;
        }
        let born = self.info_at(at).born.load(Relaxed);
        let class = self.class_of_age(born);
        let len = self.record_len(header);
        let heritage = Heritage {
            opened: pass.stamp,
            born,
        };
        if cleaner
            .log
            .make_room(self, class, len, 0, Some(heritage))
            .is_err()
        {
            return false;
        }
        let new = cleaner.log.next(class);
        cleaner.log.stage(
            self,
            class,
            &Header {
                member: false,
                moved: true,
                ..*header
            },
            &[body],
        );
        let expires_ms = match self.clock.is_set_back(header.expires_ms, header.seq) {
            true => 1, // It has expired, whatever the time is.
            false => header.expires_ms,
        };
        let len = len as u32;
        pass.moves.push(Move {
            victim,
            hash,
            old: at,
            new,
            len,
            expires_ms,
            tomb,
        });
        true
    }

    /// C3.
    fn tomb_is_needed(
        &self,
        pass: &Pass,
        victim: u32,
        hash: u64,
        key: Key<'_>,
        header: &Header,
        body: &[u8],
    ) -> bool {
        let (oldest, whose, second) = pass.oldest;
        let oldest = if whose == victim { second } else { oldest };
        let fence = body
            .get(header.key_len..)
            .map_or(u64::MAX, |rest| u64_at(rest, 0));
        // A fence of an earlier opening of the pool waits for everything this one found.
        let boot_stamp = if fault!("kv.tombstone_of_earlier_opening") {
            0
        } else {
            self.boot_stamp
        };
        if fence.max(boot_stamp) < oldest {
            return false;
        }
        let newer = self.locate(hash, key).found.and_then(|found| found.header);
        newer.is_none_or(|newer| newer.seq() < header.seq)
    }

    fn publish_moves(&self, moves: &[Move]) {
        for moved in moves {
            let to = self.info_at(moved.new);
            if moved.tomb {
                if !fault!("kv.copied_tombstone_uncounted") {
                    to.tombs.fetch_add(moved.len, Relaxed);
                }
                self.tombs.fetch_add(i64::from(moved.len), Relaxed);
            } else {
                let _locked = self.stripe(moved.hash).lock();
                self.read_cache.take(moved.hash); // H2
                if self.index.replace(moved.hash, moved.old, moved.new) {
                    self.kill(moved.old, moved.len);
                    self.enliven(moved.new, moved.len);
                    note_expiry(&to.expires_ms, moved.expires_ms);
                }
            }
        }
    }

    /// Frees the extents of large groups whose members have all been moved. Returns the victims whose
    /// groups still have some.
    fn free_tables(&self, tables: &[(u32, Vec<u8>)]) -> Vec<u32> {
        let mut holding = Vec::new();
        for (victim, table) in tables {
            let has_members = |extent: Extent| {
                self.is_alive(&extent) && self.info(extent.segment).live_records() != 0
            };
            if Extent::decode_all(table).any(has_members) {
                holding.push(*victim);
            } else {
                self.free_table(table);
            }
        }
        holding
    }

    /// Puts emptied victims in limbo, gives the others back, quarantines the damaged (C5). Returns how many are in
    /// limbo now.
    fn retire(&self, victims: &[u32], emptied: &[u32], damaged: &[u32], holding: &[u32]) -> usize {
        let epoch = self.epochs.retire();
        let mut retired = 0;
        for &victim in victims {
            let info = self.info(victim);
            if !emptied.contains(&victim) {
                info.set_state(State::Sealed);
                continue;
            }
            let left = info.live_records();
            if left != 0 || damaged.contains(&victim) || holding.contains(&victim) {
                // Someone may have swung the index and not counted yet: it is looked at again.
                let again = info.failures.fetch_add(1, Relaxed) < FAILURES_MAX;
                let damaged = damaged.contains(&victim) || !again;
                info.set_state(if damaged {
                    State::Quarantined
                } else {
                    State::Sealed
                });
                if damaged {
                    self.note_emptied(victim);
                    self.tally.damaged.fetch_add(u64::from(left), Relaxed);
                }
                continue;
            }
            // Its tombstones, copied or not needed, go with it, and so does what damage hid.
            self.forget_tombs(info);
            let hidden = info.forget_live();
            self.live.fetch_sub(i64::from(hidden), Relaxed);
            info.set_state(State::Limbo);
            self.note_emptied(victim);
            self.tally.cleaned.fetch_add(1, Relaxed);
            self.limbo
                .lock()
                .expect("no holder panics")
                .push_back((epoch, victim));
            retired += 1;
        }
        retired
    }

    /// Counts no tombstone of a segment any more.
    pub(crate) fn forget_tombs(&self, info: &Info) {
        let tombs = info.tombs.swap(0, Relaxed);
        self.tombs.fetch_sub(i64::from(tombs), Relaxed);
    }

    /// Notes which tombstones have copies, as long as their victims are still to be cleaned.
    fn note_copied(&self, cleaner: &mut Cleaner, moves: &[Move]) {
        let is_kept = |victim: u32| self.info(victim).state() == State::Sealed;
        cleaner.copied.retain(|victim, _| is_kept(*victim));
        for moved in moves.iter().filter(|m| m.tomb && is_kept(m.victim)) {
            let places = cleaner.copied.entry(moved.victim).or_default();
            places.insert(moved.old);
        }
    }

    /// Gives a new life to the segments in limbo that no reader can be in (C1). Returns how many.
    pub(crate) fn rebirth(&self, lane: &mut Lane) -> Result<usize, Poisoned> {
        let oldest = self.epochs.oldest();
        let mut reborn = Vec::new();
        {
            let mut limbo = self.limbo.lock().expect("no holder panics");
            while let Some(&(epoch, segment)) = limbo.front()
                && epoch < oldest
            {
                limbo.pop_front();
                reborn.push(segment);
            }
        }
        unreadable::keep_out(self, &mut reborn);
        if reborn.is_empty() {
            return Ok(0);
        }
        self.bear(lane, &reborn)?;
        for &segment in &reborn {
            self.give_segment(segment);
        }
        Ok(reborn.len())
    }

    /// Closes the cleaner's open segments.
    pub(crate) fn close_cleaner(&self) {
        let mut cleaner = self.cleaner.lock().expect("no holder panics");
        let Cleaner { lane, log, .. } = &mut *cleaner;
        log.close(self, lane);
    }
}
