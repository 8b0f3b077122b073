//! The cache's situations: branches that are rare, which the explorer must have come by.
//!
//! Each is one mark in the code, `situation!("mdb.x")`. `check situations` explores until all were met.

use farbank_pm::situation::Situation;

const fn situation(name: &'static str, what: &'static str) -> Situation {
    Situation { name, what }
}

/// All of them, in the order of an item's life: written, evicted, moved, found by an open.
pub(crate) const ALL: [Situation; 20] = [
    situation(
        "mdb.replaced_in_batch",
        "a write replaces one of the same batch",
    ),
    situation(
        "mdb.deleted_in_batch",
        "a delete takes the place of a write of the same batch",
    ),
    situation("mdb.update_keeps", "an update leaves its key as it is"),
    situation("mdb.update_deletes", "an update deletes its key"),
    situation(
        "mdb.batch_written_for_room",
        "a batch is written before its time: the next write has no slot",
    ),
    situation("mdb.evicted", "items are evicted"),
    situation(
        "mdb.removed",
        "items that have expired or were cleared are removed",
    ),
    situation("mdb.grown", "the pool grows"),
    situation("mdb.moved", "items are moved to other pages"),
    situation("mdb.page_merged", "a page is emptied into others"),
    situation("mdb.page_stolen", "a page is emptied for another class"),
    situation(
        "mdb.clear_torn",
        "an open finds one of the two words of a clear",
    ),
    situation(
        "mdb.page_free_at_open",
        "an open finds a page that is no class's",
    ),
    situation(
        "mdb.item_after_close",
        "an open after a close finds an item",
    ),
    situation(
        "mdb.item_after_crash",
        "an open after a crash finds an item",
    ),
    situation("mdb.item_torn", "an open finds an item that is not whole"),
    situation(
        "mdb.expired_at_open",
        "an open finds an item that has expired",
    ),
    situation(
        "mdb.cleared_at_open",
        "an open finds an item that was cleared",
    ),
    situation("mdb.older_at_open", "an open finds an older item of a key"),
    situation(
        "mdb.moved_twice_at_open",
        "an open finds an item where it was and where it was moved",
    ),
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
