//! The cache's faults by name: deviations that the explorer has to find out.

use farbank_pm::fault::NamedFault;

/// Those that the explorer finds, in one thread.
pub(crate) const ALL: [NamedFault; 7] = [
    NamedFault {
        name: "mdb.old_not_marked",
        what: "an update leaves the old item alive: when the new one is gone it comes back",
        source: "invariant W1 of worker.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.published_undrained",
        what: "a write is visible, and answered, before it is durable",
        source: "invariant W2 of worker.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.delete_undrained",
        what: "a delete is answered before the item's death is durable",
        source: "invariant W1 of worker.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.evicted_not_marked",
        what: "an evicted item stays alive on the medium: once its key was written and deleted it comes back",
        source: "invariant W1 of worker.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.clear_undrained",
        what: "an area counts as cleared before that is durable",
        source: "invariant L4 of layout.rs",
        shows_in: None,
    },
    NamedFault {
        name: "mdb.recovery_volatile",
        what: "an open serves what only caches hold after a kill",
        source: "invariant R2 of recover.rs",
        shows_in: None,
    },
    NamedFault {
        name: "pool.growth_unrecorded",
        what: "new pages are used, and no superblock tells of them: what is stored there is gone after a crash",
        source: "tend.rs, growth; invariant P3 of pm's pools",
        shows_in: None,
    },
];

/// Those that only threads can find.
pub(crate) const IN_THREADS: [NamedFault; 1] = [NamedFault {
    name: "mdb.reused_at_once",
    what: "a slot is used again while somebody may still read it",
    source: "invariant W3 of worker.rs",
    shows_in: None,
}];
