//! The engine's situations: thresholds of its sizes and branches that are rare, which the explorer must have come by.
//!
//! Each is one mark in the code, `situation!("kv.x")`. `check situations` explores until all were met.

use farbank_pm::situation::Situation;

const fn situation(name: &'static str, what: &'static str) -> Situation {
    Situation { name, what }
}

/// All of them, in the order of a record's life: written, published, recovered, cleaned.
pub(crate) const ALL: [Situation; 59] = [
    situation("kv.key_is_empty", "a write of the empty key"),
    situation(
        "kv.value_of_one_extent",
        "a write of a value that takes one extent",
    ),
    situation(
        "kv.value_of_several_extents",
        "a write of a value that takes several extents",
    ),
    situation(
        "kv.value_fills_extents",
        "a write of a value that fills its last extent",
    ),
    situation(
        "kv.replaced_in_batch",
        "a write replaces one of the same batch",
    ),
    situation("kv.update_keeps", "an update leaves its key as it is"),
    situation("kv.update_deletes", "an update deletes its key"),
    situation(
        "kv.update_on_staged",
        "an update builds on a write of its own batch",
    ),
    situation(
        "kv.update_on_drained",
        "an update builds on a write whose ticket has not turned",
    ),
    situation(
        "kv.change_joins_group",
        "a change of a key whose group is not durable becomes a group with the others (G6)",
    ),
    situation(
        "kv.change_waits_for_group",
        "a change of a key whose group is not durable waits, as its value is too long to be a member (G6)",
    ),
    situation(
        "kv.swept",
        "the sweep replaces what has expired by a tombstone",
    ),
    situation(
        "kv.abandoned",
        "a session ends with writes that it has staged",
    ),
    situation(
        "kv.extents_abandoned",
        "a session ends with large values that it has staged",
    ),
    situation(
        "kv.ticket_turns_later",
        "a batch is drained and its ticket has not turned",
    ),
    situation(
        "kv.answer_relies",
        "an answer relies on a write that is not durable",
    ),
    situation("kv.group_is_large", "a group takes extents"),
    situation("kv.group_in_pieces", "a group takes several extents"),
    situation("kv.group_is_small", "a group is one record"),
    situation("kv.group_deletes", "a group deletes a key that is there"),
    situation(
        "kv.group_replaces_staged",
        "a group replaces a write of its own batch",
    ),
    situation(
        "kv.group_carries",
        "a group carries a write that it was decided on and that is not durable (G3)",
    ),
    situation(
        "kv.group_takes_along",
        "a group takes along members of a group that is not durable (G6)",
    ),
    situation(
        "kv.group_published_for_another",
        "a session publishes what another session has drained",
    ),
    situation(
        "kv.overtaken",
        "a drained write is not published: a newer one of its key has been",
    ),
    situation(
        "kv.flushed_before_published",
        "a drained write is not published: FLUSHALL was faster",
    ),
    situation(
        "kv.relocated",
        "what a write replaces has moved before it is published",
    ),
    situation(
        "kv.drained_twice",
        "a write replaces a drained one of its key before that is published",
    ),
    situation("kv.flush_empties_extents", "FLUSHALL empties extents"),
    situation(
        "kv.head_lost",
        "a segment lost its opening, or its head is zeros",
    ),
    situation(
        "kv.segment_unborn",
        "an open finds a segment that was never born",
    ),
    situation(
        "kv.copy_of_header_damaged",
        "one of the two copies of a segment's header does not hold",
    ),
    situation(
        "kv.sealed_by_recovery",
        "an open seals a segment that was open",
    ),
    situation(
        "kv.large_value_made_durable",
        "an open makes a large value durable that it has accepted",
    ),
    situation(
        "kv.large_group_made_durable",
        "an open makes a large group durable that it has accepted",
    ),
    situation("kv.torn_padded", "an open pads torn bytes"),
    situation(
        "kv.torn_settled_padded",
        "an open pads a torn record that vouched for what was before it",
    ),
    situation("kv.two_copies", "an open finds two copies of a record (V6)"),
    situation(
        "kv.tombstone_is_newest",
        "the newest record of a key is a tombstone",
    ),
    situation(
        "kv.reborn_by_recovery",
        "an open gives a segment a new life",
    ),
    situation(
        "kv.snapshot_read",
        "an open reads the snapshot of a clean close",
    ),
    situation(
        "kv.map_used",
        "an open reads only what a segment's map marks",
    ),
    situation(
        "kv.sealed_without_map",
        "an open reads all of a sealed segment",
    ),
    situation("kv.body_torn", "a record is torn in its key or its value"),
    situation("kv.extents_torn", "a large value is torn in its extents"),
    situation(
        "kv.below_floor",
        "an open finds a record from before a FLUSHALL",
    ),
    situation("kv.large_group_recovered", "an open accepts a large group"),
    situation("kv.small_group_recovered", "an open accepts a small group"),
    situation("kv.value_moved", "the cleaner moves a value"),
    situation("kv.tombstone_moved", "the cleaner moves a tombstone"),
    situation(
        "kv.large_value_moved",
        "the cleaner moves the record of a large value",
    ),
    situation(
        "kv.tombstone_dropped",
        "the cleaner drops a tombstone that is not needed",
    ),
    situation(
        "kv.pass_ends_early",
        "a pass ends before it has walked all of its victims",
    ),
    situation("kv.segment_emptied", "the cleaner empties a segment"),
    situation(
        "kv.reborn",
        "a segment that readers have left gets a new life",
    ),
    situation(
        "kv.limbo_held",
        "sessions hold up what the cleaner has emptied",
    ),
    situation("kv.grown", "the pool grows"),
    situation("kv.map_written", "a segment gets a map"),
    situation("kv.map_rewritten", "a segment gets a newer map"),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use farbank_check::faults::names_in;

    use super::ALL;

    #[test]
    fn every_situation_is_listed_and_every_mark_is_in_one_place() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = names_in(&sources, "situation!(", "situations.rs");
        let mut listed: Vec<&str> = ALL.iter().map(|situation| situation.name).collect();
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(found, listed);
    }

    #[test]
    fn the_documents_list_every_situation() {
        let testing = include_str!("../../../docs/testing.md");
        for situation in ALL {
            let row = format!("| `{}` | {} |", situation.name, situation.what);
            assert!(testing.contains(&row), "docs/testing.md lacks {row}");
        }
    }
}
