//! The cache's named faults, which the crash explorer must detect.

use farbank_pm::fault::{NamedFault, ShowingRuns};

/// Faults that the explorer detects with one thread.
pub(crate) const ALL: [NamedFault; 7] = [
    NamedFault {
        name: "mdb.old_not_marked",
        description: "an update leaves the old item live: it comes back when the new one is gone",
        source: "invariant MDB-WORK-1 of worker/mod.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.published_undrained",
        description: "a write is visible, and answered, before it is durable",
        source: "invariant MDB-WORK-2 of worker/mod.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.delete_undrained",
        description: "a delete is answered before the item is durably dead",
        source: "invariant MDB-WORK-1 of worker/mod.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.evicted_not_marked",
        description: "an evicted item stays live on the medium: it comes back after its key was written and deleted",
        source: "invariant MDB-WORK-1 of worker/mod.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.clear_undrained",
        description: "an area counts as cleared before its `cleared` word is durable",
        source: "invariant MDB-ITEM-4 of layout.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.recovery_volatile",
        description: "an open after a kill serves items that are only in CPU caches",
        source: "invariant MDB-OPEN-2 of recover.rs",
        shows_in: None,
    },
    NamedFault {
        name: "pool.growth_unrecorded",
        description: "new pages are used without a superblock that includes them: their items are lost after a crash",
        source: "engine/growth.rs; invariant PM-POOL-3 of pm's pools",
        shows_in: None,
    },
];

/// Faults that only concurrent threads can show.
pub(crate) const IN_THREADS: [NamedFault; 1] = [NamedFault {
    name: "mdb.reused_at_once",
    description: "a slot is used again while a reader may still read it",
    source: "invariant MDB-WORK-3 of worker/mod.rs",
    shows_in: Some(ShowingRuns::schedules(0x1_0009)),
}];
