//! The cache's situations: rare branches that explorations must reach.
//!
//! Each is one mark in the code, `situation!("mdb.x")`. `check situations` explores until all are reached.

use farbank_pm::situation::Situation;

/// All situations, in the order of an item's history: written, evicted, moved, found by an open.
pub(crate) const ALL: [Situation; 20] = [
    Situation::new(
        "mdb.replaced_in_batch",
        "a write replaces one of the same batch",
    ),
    Situation::new(
        "mdb.deleted_in_batch",
        "a delete takes the place of a write of the same batch",
    ),
    Situation::new("mdb.update_keeps", "an update leaves its key as it is"),
    Situation::new("mdb.update_deletes", "an update deletes its key"),
    Situation::new(
        "mdb.batch_written_for_room",
        "a batch is written early, because the next write has no free slot",
    ),
    Situation::new("mdb.evicted", "items are evicted"),
    Situation::new(
        "mdb.removed",
        "items that have expired or were cleared are removed",
    ),
    Situation::new("mdb.grown", "the pool grows"),
    Situation::new("mdb.moved", "items are moved to other pages"),
    Situation::new("mdb.page_merged", "a page is emptied into others"),
    Situation::new("mdb.page_stolen", "a page is emptied for another class"),
    Situation::new(
        "mdb.clear_torn",
        "an open finds only one of the two words of a clear",
    ),
    Situation::new(
        "mdb.page_free_at_open",
        "an open finds a page without a class",
    ),
    Situation::new(
        "mdb.item_after_close",
        "an open after a close finds an item",
    ),
    Situation::new(
        "mdb.item_after_crash",
        "an open after a crash finds an item",
    ),
    Situation::new("mdb.item_torn", "an open finds an item that is not whole"),
    Situation::new(
        "mdb.expired_at_open",
        "an open finds an item that has expired",
    ),
    Situation::new(
        "mdb.cleared_at_open",
        "an open finds an item that was cleared",
    ),
    Situation::new("mdb.older_at_open", "an open finds an older item of a key"),
    Situation::new(
        "mdb.moved_twice_at_open",
        "an open finds both copies of a moved item",
    ),
];

#[cfg(test)]
mod tests {
    use farbank_check::marks::{assert_documented, assert_marked};

    use super::ALL;

    #[test]
    fn every_situation_is_listed_and_every_mark_is_in_one_place() {
        assert_marked(env!("CARGO_MANIFEST_DIR"), &ALL);
    }

    #[test]
    fn the_documents_list_every_situation() {
        assert_documented(&ALL);
    }
}
