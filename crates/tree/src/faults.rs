//! The tree's faults by name: deviations that a trial has to find out.
//!
//! Each is one condition in the code, `fault!("tree.x")`. Some are what the published code does.

use farbank_pm::fault::NamedFault;

/// All of them.
pub const ALL: [NamedFault; 13] = [
    NamedFault {
        name: "tree.torn_is_absent",
        what: "a lookup that meets an entry which is being written says that the key is absent",
        source: "Sherman's published code (thustorage/Sherman#27)",
        shows_in: None,
    },
    NamedFault {
        name: "tree.range_trusts_parent",
        what: "a range takes the leaves that a kept parent names, split or not",
        source: "Sherman's published code (thustorage/Sherman#18)",
        shows_in: None,
    },
    NamedFault {
        name: "tree.root_grown_twice",
        what: "who puts a new root over the old one does not look whether somebody else has meanwhile",
        source: "Sherman's published code (thustorage/Sherman#26)",
        shows_in: None,
    },
    NamedFault {
        name: "tree.owner_not_fenced",
        what: "a lock is taken from an owner who has had it too long, without fencing him",
        source: "invariant H3 of lock.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.released_before_written",
        what: "the lock is released before what it protects is written",
        source: "invariant B1 of the crate",
        shows_in: None,
    },
    NamedFault {
        name: "tree.node_unchecked",
        what: "a node is taken as it is read, whole or not",
        source: "invariant B1 of the crate; Ziegler et al., SIGMOD 2023",
        shows_in: None,
    },
    NamedFault {
        name: "tree.old_half_first",
        what: "a split writes the old node before the one it leads to",
        source: "invariant B3 of the crate",
        shows_in: None,
    },
    NamedFault {
        name: "tree.moved_unannounced",
        what: "a merge does not mark the leaf whose entries it moves",
        source: "step (a) of merge.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.fences_unchecked",
        what: "a node is taken for the right one if its level is",
        source: "invariant B2 of the crate",
        shows_in: None,
    },
    NamedFault {
        name: "tree.empty_server_admitted",
        what: "a memory server is taken for what it was, though it came back with nothing in its memory",
        source: "invariant B5 of the crate",
        shows_in: None,
    },
    NamedFault {
        name: "tree.entry_before_block",
        what: "an entry is written before the block which it names",
        source: "invariant V1 of blocks.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.block_unchecked",
        what: "a block's bytes are taken as they are read",
        source: "invariant V2 of blocks.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.block_keeps_number",
        what: "a block that is used again has the number it had",
        source: "invariant V2 of blocks.rs",
        shows_in: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_listed_and_is_in_one_place() {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && !path.ends_with("faults.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let names = text.split("fault!(\"").skip(1);
                found.extend(names.filter_map(|rest| rest.split('"').next().map(str::to_owned)));
            }
        }
        let mut listed: Vec<&str> = ALL.iter().map(|fault| fault.name).collect();
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(found, listed);
    }
}
