//! Eviction order S3-FIFO (Yang et al., SOSP '23): two queues of items, and a list of the keys evicted last.
//!
//! ```text
//!   new key ──▶ small ── read twice ──▶ main ── read since ──▶ main again, with one use less
//!                 │                      │
//!                 └─ evicted ─▶ ghosts   └─ evicted
//!   new key among the ghosts ──────────▶ main
//! ```
//!
//! An item has a byte in DRAM that counts its reads, up to [`USES_MAX`]. A read increments it without the lock, and writes
//! nothing once the count is at its maximum. Each class and area has the two queues. The small one has a tenth of their
//! items, and more only while the main one has few.
//!
//! # Invariants
//! MDB-S3-1  The link of an item says which queue it is on.
//! MDB-S3-2  One choice of victims moves at most [`MOVES_MAX`] items within or between queues. After that it takes items at the
//!     old ends whatever their counts are. So the time under the lock is bounded.
//!
//! # Deviations from the paper
//! The ghosts are a table of tags, not a queue: a ghost may be overwritten early, and two keys may share one. A ghost counts
//! while at most as many items were evicted after it as the cache has. A write of a present key counts as a read, and its
//! new item takes the newest place of the old one's queue. Victims are chosen a few at a time ([`slots_per_refill`]).
//! An open puts all items on the main queues.
//!
//! [`slots_per_refill`]: crate::Config::slots_per_refill

use farbank_pm::Medium;
use farbank_pm::sync::atomic::{AtomicU8, Ordering};

use super::LockedState;
use super::victims::EvictionVictim;
use crate::key_locks::KeyLocks;
use crate::metadata::SlotId;

/// Highest count of uses.
const USES_MAX: u8 = 3;
/// Uses with which an item moves from the small queue to the main one.
const USES_TO_MOVE: u8 = 2;
/// The small queue has one in this many items.
const SMALL_ONE_IN: u32 = 10;
/// Most items that one choice of victims moves.
const MOVES_MAX: u32 = 256;
/// The main queue, and the small queue.
const MAIN: usize = 0;
const SMALL: usize = 1;

/// Counts of uses, by slot.
pub(crate) struct SlotUses(Box<[AtomicU8]>);

impl SlotUses {
    pub(super) fn new(slots: u64) -> SlotUses {
        SlotUses((0..slots).map(|_| AtomicU8::new(0)).collect())
    }

    /// Counts a use of the item in `slot`. Concurrent uses may count as one.
    #[inline]
    pub(crate) fn note(&self, slot: SlotId) {
        let uses = &self.0[slot.0 as usize];
        let count = uses.load(Ordering::Relaxed);
        if count < USES_MAX {
            uses.store(count + 1, Ordering::Relaxed);
        }
    }

    pub(super) fn of(&self, slot: SlotId) -> u8 {
        self.0[slot.0 as usize].load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, slot: SlotId, count: u8) {
        self.0[slot.0 as usize].store(count.min(USES_MAX), Ordering::Relaxed);
    }

    /// Returns the bytes of DRAM.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

/// Tags of keys that were evicted from small queues, each with the number of its eviction.
pub(super) struct GhostTable {
    /// Eviction number in the lower half, 0 if there is no ghost; tag in the upper half.
    ghosts: Box<[u64]>,
    evictions: u32,
}

impl GhostTable {
    /// Creates a table for about `keys` keys.
    pub(super) fn new(keys: u64) -> GhostTable {
        let len = keys.next_power_of_two().clamp(64, 1 << 31) as usize;
        GhostTable {
            ghosts: vec![0; len].into(),
            evictions: 0,
        }
    }

    fn index(&self, tag: u32) -> usize {
        let mixed = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.ghosts.len() - 1)
    }

    fn add(&mut self, tag: u32) {
        self.evictions = self.evictions.checked_add(1).unwrap_or(1);
        let at = self.index(tag);
        self.ghosts[at] = u64::from(tag) << 32 | u64::from(self.evictions);
    }

    /// Removes the ghost of `tag`. Returns whether it was evicted within the last `window` evictions.
    fn take(&mut self, tag: u32, window: u64) -> bool {
        let at = self.index(tag);
        let (found, number) = ((self.ghosts[at] >> 32) as u32, self.ghosts[at] as u32);
        if number == 0 || found != tag {
            return false;
        }
        self.ghosts[at] = 0;
        u64::from(self.evictions.wrapping_sub(number)) < window
    }
}

impl<N: Medium> LockedState<'_, N> {
    /// Returns whether a new item of a key with this tag begins on the small queue, and sets its count of uses. `old` is the
    /// item that it replaces.
    pub(super) fn begins_small(&mut self, slot: SlotId, tag: u32, old: Option<SlotId>) -> bool {
        let Some(uses) = self.uses else {
            return false;
        };
        let Some(old) = old else {
            uses.set(slot, 0);
            let window = self.state.items;
            let ghosts = self.state.ghosts.as_mut();
            return !ghosts.is_some_and(|ghosts| ghosts.take(tag, window));
        };
        uses.set(slot, uses.of(old) + 1);
        self.near.link(old).is_small
    }

    /// Notes the eviction of an item, before it is unlinked.
    pub(super) fn note_ghost(&mut self, slot: SlotId) {
        let link = self.near.link(slot);
        if let Some(ghosts) = self.state.ghosts.as_mut().filter(|_| link.is_small) {
            ghosts.add(link.tag);
        }
    }

    /// Copies the count of uses of a moved item.
    pub(super) fn copy_uses(&self, from: SlotId, to: SlotId) {
        if let Some(uses) = self.uses {
            uses.set(to, uses.of(from));
        }
    }

    /// Chooses victims on the two queues of a class and an area, whose main queue is `main`.
    pub(super) fn choose_from_queues(
        &mut self,
        main: u32,
        most: usize,
        claims: &KeyLocks,
        victims: &mut Vec<EvictionVictim>,
    ) {
        let mut moves_left = MOVES_MAX;
        self.choose_with_moves(main, most, claims, victims, &mut moves_left);
        if victims.is_empty() {
            // All items were moved.
            self.choose_with_moves(main, most, claims, victims, &mut 0);
        }
    }

    /// As [`LockedState::choose_from_queues`], with at most `moves_left` moves. An item that is moved is behind the end of
    /// the walk.
    fn choose_with_moves(
        &mut self,
        main: u32,
        most: usize,
        claims: &KeyLocks,
        victims: &mut Vec<EvictionVictim>,
        moves_left: &mut u32,
    ) {
        let numbers = [main, self.small_list(main)];
        let lists = numbers.map(|number| self.near.list(number));
        let (mut ends, mut items) = (lists.map(|l| l.tail), lists.map(|l| l.items));
        while victims.len() < most {
            let is_small_full = items[SMALL] * SMALL_ONE_IN >= items[SMALL] + items[MAIN];
            let queue = match ends {
                [0, 0] => return,
                [_, 0] => MAIN,
                [0, _] => SMALL,
                _ if is_small_full => SMALL,
                _ => MAIN,
            };
            let slot = SlotId(ends[queue] - 1);
            let link = self.near.link(slot);
            ends[queue] = link.prev;
            if victims.iter().any(|victim| victim.slot == slot) {
                continue;
            }
            let uses = self.uses.map_or(0, |uses| uses.of(slot));
            let stays = match queue {
                SMALL => uses >= USES_TO_MOVE,
                _ => uses > 0,
            };
            if stays && *moves_left > 0 {
                *moves_left -= 1;
                self.move_to_main(numbers, slot);
                items[queue] -= 1;
                items[MAIN] += 1;
            } else if let Some(victim) = EvictionVictim::claim(slot, &link, claims) {
                victims.push(victim);
                items[queue] -= 1;
            }
        }
    }

    /// Makes an item the newest of the main queue. Its count of uses starts at 0, or loses one if it was there before.
    fn move_to_main(&mut self, numbers: [u32; 2], slot: SlotId) {
        let mut link = self.near.link(slot);
        let from = if link.is_small { SMALL } else { MAIN };
        self.remove(numbers[from], slot);
        if let Some(uses) = self.uses {
            let left = uses.of(slot).saturating_sub(1);
            uses.set(slot, if link.is_small { 0 } else { left });
        }
        link.is_small = false;
        let LockedState { near, state, .. } = self;
        near.set_link(&mut state.ctx, slot, &link); // MDB-S3-1
        self.push_newest(numbers[MAIN], slot);
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::media::Mapped;
    use farbank_store::{Key, Ops, ReadView, Session, Value};

    use super::*;
    use crate::{Cache, Config, EvictionOrder};

    #[test]
    fn uses_are_counted_up_to_the_maximum() {
        let uses = SlotUses::new(2);
        for expected in [1, 2, 3, 3] {
            uses.note(SlotId(1));
            assert_eq!((uses.of(SlotId(0)), uses.of(SlotId(1))), (0, expected));
        }
        uses.set(SlotId(0), 9);
        assert_eq!(uses.of(SlotId(0)), 3);
    }

    #[test]
    fn one_choice_of_victims_moves_a_bounded_number_of_items() {
        let config = Config {
            background_maintenance: false,
            eviction: EvictionOrder::S3Fifo,
            ..Config::default()
        };
        let medium = Mapped::anonymous(6 << 20).unwrap();
        let cache = Cache::create(medium, 1 << 20, config).unwrap();
        let mut session = cache.new_session();
        for number in 0..1_000_u32 {
            let (bytes, value) = (&number.to_le_bytes(), Value::default());
            let key = Key { db: 0, bytes };
            session.put_durable(key, value).unwrap();
            // As often as an item must be read that is to move.
            for _ in 0..2 {
                let mut out = Vec::new();
                let found = session.get(key, ReadView::Durable, &mut out, &mut |_, _| true);
                assert!(found.unwrap());
            }
        }
        let engine = cache.engine();
        let mut locked = engine.lock();
        let (class, area) = *locked.state.lists.keys().next().unwrap();
        let claims = engine.key_locks();
        for choice in 1..=3 {
            let victims = locked.choose_victims(class, area, false, 1, 0, claims);
            assert_eq!(victims.len(), 1);
            claims.release(KeyLocks::stripe(victims[0].tag));
            let main = locked.main_list(class, area);
            assert_eq!(locked.near.list(main).items, 256 * choice);
        }
    }

    #[test]
    fn a_ghost_counts_once_and_for_as_many_evictions_as_the_window_has() {
        let mut ghosts = GhostTable::new(1 << 10);
        assert!(!ghosts.take(7, 10));
        ghosts.add(7);
        assert!(ghosts.take(7, 10));
        assert!(!ghosts.take(7, 10));
        for (later, counts) in [(9, true), (10, false)] {
            ghosts.add(7);
            for tag in 100..100 + later {
                ghosts.add(tag);
            }
            assert_eq!(ghosts.take(7, 10), counts, "{later} evictions later");
        }
    }
}
