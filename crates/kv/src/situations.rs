//! The engine's situations: size thresholds and rare branches that the explorer must reach.
//!
//! Each is one mark in the code, `situation!("kv.x")`. `check situations` explores until each was reached.

use farbank_pm::situation::Situation;

/// All situations but those of checkpoints, in the order of a record's states: written, published, recovered, cleaned.
pub(crate) const ALL: [Situation; 64] = [
    Situation::new("kv.key_is_empty", "a write of the empty key"),
    Situation::new(
        "kv.value_of_one_extent",
        "a write of a value that takes one extent",
    ),
    Situation::new(
        "kv.value_of_several_extents",
        "a write of a value that takes several extents",
    ),
    Situation::new(
        "kv.value_fills_extents",
        "a write of a value that fills its last extent",
    ),
    Situation::new(
        "kv.replaced_in_batch",
        "a write replaces one of the same batch",
    ),
    Situation::new("kv.update_keeps", "an update leaves its key as it is"),
    Situation::new("kv.update_deletes", "an update deletes its key"),
    Situation::new(
        "kv.update_on_staged",
        "an update builds on a write of its own batch",
    ),
    Situation::new(
        "kv.update_on_drained",
        "an update builds on a write whose ticket is not durable",
    ),
    Situation::new(
        "kv.change_joins_group",
        "a change of a key whose group is not durable becomes a group with the others (KV-GROUP-6)",
    ),
    Situation::new(
        "kv.change_waits_for_group",
        "a change of a key whose group is not durable waits, because its value is too long to be a member (KV-GROUP-6)",
    ),
    Situation::new(
        "kv.swept",
        "the background sweep replaces an expired value by a tombstone",
    ),
    Situation::new(
        "kv.swap_publishes",
        "SWAPDB publishes a drained write of another session",
    ),
    Situation::new(
        "kv.run_copied",
        "a long value is copied to the medium when it is staged",
    ),
    Situation::new(
        "kv.run_read",
        "a session reads a staged value that has been copied to the medium",
    ),
    Situation::new("kv.abandoned", "a session is dropped with staged writes"),
    Situation::new(
        "kv.run_abandoned",
        "a session is dropped with a staged value that has been copied to the medium",
    ),
    Situation::new(
        "kv.extents_abandoned",
        "a session is dropped with staged large values",
    ),
    Situation::new(
        "kv.ticket_turns_later",
        "a batch is drained and its ticket is not durable yet",
    ),
    Situation::new(
        "kv.answer_relies",
        "a reply depends on a write that is not durable",
    ),
    Situation::new("kv.group_is_large", "a group takes extents"),
    Situation::new("kv.group_in_pieces", "a group takes several extents"),
    Situation::new("kv.group_is_small", "a group is one record"),
    Situation::new("kv.group_deletes", "a group deletes a key that exists"),
    Situation::new(
        "kv.group_replaces_staged",
        "a group replaces a write of its own batch",
    ),
    Situation::new(
        "kv.group_carries",
        "a group includes a write that its body has read and that is not durable (KV-GROUP-3)",
    ),
    Situation::new(
        "kv.group_guards",
        "a staged group keeps other sessions from writing a key that it has read (KV-GROUP-7)",
    ),
    Situation::new(
        "kv.group_takes_along",
        "a group includes members of a group that is not durable (KV-GROUP-6)",
    ),
    Situation::new(
        "kv.group_published_for_another",
        "a session publishes a write that another session has drained",
    ),
    Situation::new(
        "kv.overtaken",
        "a drained write is not published, because a newer write of its key was published before",
    ),
    Situation::new(
        "kv.flushed_before_published",
        "a drained write is not published, because FLUSHALL has deleted it",
    ),
    Situation::new(
        "kv.relocated",
        "the record that a write replaces has moved before the write is published",
    ),
    Situation::new(
        "kv.drained_twice",
        "a write replaces a drained write of its key before that is published",
    ),
    Situation::new("kv.flush_empties_extents", "FLUSHALL frees extents"),
    Situation::new(
        "kv.head_lost",
        "a segment has lost its open epoch, or its head is zeros",
    ),
    Situation::new(
        "kv.segment_uninitialised",
        "an open finds a segment that was never initialised",
    ),
    Situation::new(
        "kv.copy_of_header_damaged",
        "the head or the tail of a segment is invalid, and the other is valid",
    ),
    Situation::new(
        "kv.sealed_by_recovery",
        "an open seals a segment that was not sealed",
    ),
    Situation::new(
        "kv.large_value_made_durable",
        "an open makes a large value durable that it has accepted",
    ),
    Situation::new(
        "kv.large_group_made_durable",
        "an open makes a large group durable that it has accepted",
    ),
    Situation::new("kv.torn_padded", "an open pads torn bytes"),
    Situation::new(
        "kv.torn_settled_padded",
        "an open pads a torn record whose header is SETTLED",
    ),
    Situation::new(
        "kv.two_copies",
        "an open finds two copies of a record (KV-OPEN-6)",
    ),
    Situation::new(
        "kv.tombstone_is_newest",
        "the newest record of a key is a tombstone",
    ),
    Situation::new("kv.reborn_by_recovery", "an open recycles a segment"),
    Situation::new(
        "kv.snapshot_read",
        "an open reads the snapshot of a clean close",
    ),
    Situation::new(
        "kv.map_used",
        "an open reads only the records that a segment's map marks",
    ),
    Situation::new(
        "kv.sealed_without_map",
        "an open scans a sealed segment from end to end",
    ),
    Situation::new("kv.body_torn", "a record is torn in its key or its value"),
    Situation::new("kv.extents_torn", "a large value is torn in its extents"),
    Situation::new(
        "kv.below_floor",
        "an open finds a record from before a FLUSHALL",
    ),
    Situation::new("kv.large_group_recovered", "an open accepts a large group"),
    Situation::new("kv.small_group_recovered", "an open accepts a small group"),
    Situation::new("kv.value_moved", "the cleaner moves a value"),
    Situation::new("kv.tombstone_moved", "the cleaner moves a tombstone"),
    Situation::new(
        "kv.large_value_moved",
        "the cleaner moves the record of a large value",
    ),
    Situation::new(
        "kv.tombstone_dropped",
        "the cleaner drops a tombstone that is not needed",
    ),
    Situation::new(
        "kv.pass_ends_early",
        "a pass ends before it has walked all of its victims",
    ),
    Situation::new("kv.segment_emptied", "the cleaner empties a segment"),
    Situation::new(
        "kv.segment_recycled",
        "the cleaner recycles a segment that readers have left",
    ),
    Situation::new(
        "kv.retired_held",
        "readers pin the retired segments until the cleaner stops waiting",
    ),
    Situation::new("kv.grown", "the pool grows"),
    Situation::new("kv.map_written", "a segment gets a map"),
    Situation::new("kv.map_rewritten", "a segment gets a newer map"),
];

/// The situations of checkpoints, which only the target `kv-checkpoint` reaches.
pub(crate) const IN_CHECKPOINTS: [Situation; 12] = [
    Situation::new(
        "kv.checkpoint_written",
        "a checkpoint of the index is named",
    ),
    Situation::new("kv.checkpoint_replaced", "a checkpoint replaces another"),
    Situation::new(
        "kv.checkpoint_in_place",
        "a checkpoint takes the segments of the one before it",
    ),
    Situation::new(
        "kv.checkpoint_given_up",
        "a checkpoint is given up for its space, or because of FLUSHALL",
    ),
    Situation::new("kv.checkpoint_read", "an open uses a checkpoint"),
    Situation::new(
        "kv.checkpoint_flushed",
        "an open ignores a checkpoint from before FLUSHALL",
    ),
    Situation::new(
        "kv.checkpoint_counted",
        "an open takes the numbers of live records from a checkpoint",
    ),
    Situation::new(
        "kv.checkpoint_entry_is_stale",
        "an open ignores an entry of a checkpoint, because its segment was recycled",
    ),
    Situation::new(
        "kv.checkpoint_tombstone_read",
        "an open reads a tombstone that a checkpoint lists",
    ),
    Situation::new(
        "kv.checkpoint_entry_is_newest",
        "an open finds an older record of a key than the checkpoint's",
    ),
    Situation::new(
        "kv.checkpoint_entry_is_copied",
        "an open finds the cleaner's copy of a checkpoint's record",
    ),
    Situation::new(
        "kv.checkpoint_entry_is_deleted",
        "an open finds a tombstone of a checkpoint's record",
    ),
];

#[cfg(test)]
mod tests {
    use farbank_check::marks::{assert_documented, assert_marked};

    use farbank_pm::situation::Situation;

    use super::{ALL, IN_CHECKPOINTS};

    fn all() -> Vec<Situation> {
        [&ALL[..], &IN_CHECKPOINTS].concat()
    }

    #[test]
    fn every_situation_is_listed_and_every_mark_is_in_one_place() {
        assert_marked(env!("CARGO_MANIFEST_DIR"), &all());
    }

    #[test]
    fn the_documents_list_every_situation() {
        assert_documented(&all());
    }
}
