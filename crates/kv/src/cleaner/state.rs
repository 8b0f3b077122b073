//! State of the cleaner: between passes, and of a pass between two slices.

use std::collections::{HashMap, HashSet, VecDeque};

use farbank_pm::epoch::EpochSlot;
use farbank_pm::{Off, PersistCounters, PersistCtx};

use crate::format::record::RecordHeader;
use crate::segments::record_walk::RecordWalk;
use crate::session_log::SessionLog;

/// State of the cleaner between slices and passes.
pub(crate) struct Cleaner {
    pub ctx: PersistCtx,
    pub log: SessionLog,
    pub slot: EpochSlot,
    /// For each victim that was kept: offsets of its tombstones that have copies and need no other.
    pub copied: HashMap<u32, HashSet<Off>>,
    /// The current pass.
    pub pass: Option<Box<CleaningPass>>,
    /// Number of passes begun so far.
    pub passes: u64,
}

impl Cleaner {
    pub(crate) fn new(id: u32, slot: EpochSlot) -> Cleaner {
        Cleaner {
            ctx: PersistCtx::new(id),
            log: SessionLog::default(),
            slot,
            copied: HashMap::new(),
            pass: None,
            passes: 0,
        }
    }

    /// Whether an earlier pass copied the tombstone at `at` and kept `victim`.
    pub(crate) fn has_copied(&self, victim: u32, at: Off) -> bool {
        let places = self.copied.get(&victim);
        places.is_some_and(|places| places.contains(&at))
    }

    /// Counters of the cleaner's operations on the medium.
    pub(crate) fn counters(&self) -> PersistCounters {
        self.ctx.counters
    }
}

/// A record that was copied, and whose move is not published yet.
pub(crate) struct Relocation {
    pub hash: u64,
    pub old: Off,
    pub new: Off,
    pub len: u32,
    pub expires_ms: u64,
    pub tomb: bool,
}

/// A victim whose walk has begun.
pub(crate) struct PassVictim {
    pub segment: u32,
    pub walk: RecordWalk,
    /// Extent tables of the large groups in it.
    pub tables: Vec<Vec<u8>>,
    /// Whether the walk found damage.
    pub damaged: bool,
}

/// A record that the walk has returned and that is not examined yet.
pub(crate) struct WalkedRecord {
    pub at: Off,
    pub header: RecordHeader,
    pub hash: u64,
}

/// Stamps at the begin of a pass (KV-PASS-2).
#[derive(Clone, Copy)]
pub(crate) struct PassStamps {
    /// Opening stamp of the segments that the pass fills (KV-CLEAN-2).
    pub filled: u64,
    /// The lowest opening stamp of a segment with records, that segment, and the second lowest stamp.
    pub oldest: (u64, u32, u64),
}

/// State of a pass.
pub(crate) struct CleaningPass {
    pub stamps: PassStamps,
    /// Whether the records of the victims are durable (KV-PASS-5).
    pub sources_durable: bool,
    /// Victims whose walk has not begun.
    pub waiting: VecDeque<u32>,
    /// The victim that is being walked.
    pub current: Option<PassVictim>,
    /// Victims whose walk has ended and that are not retired yet.
    pub walked: Vec<PassVictim>,
    /// Records of the current victim that are to be examined.
    pub read_ahead: VecDeque<WalkedRecord>,
    /// Moves that are copied and not published.
    pub moves: VecDeque<Relocation>,
    /// Whether `moves` are durable.
    pub drained: bool,
    /// Whether there was no free segment for a copy.
    pub is_out_of_room: bool,
    /// Tombstones that have copies, with their victims. Needed if a victim is kept.
    pub tombs: Vec<(u32, Off)>,
    /// Number of victims retired so far.
    pub retired: usize,
    /// Buffer for key and value of the record that is being copied.
    pub body: Vec<u8>,
}

impl CleaningPass {
    /// Whether the pass copies no more records.
    pub(crate) fn is_copied(&self) -> bool {
        self.is_out_of_room
            || (self.current.is_none() && self.waiting.is_empty() && self.read_ahead.is_empty())
    }
}
