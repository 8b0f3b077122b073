//! The tree's named faults: deliberate bugs that the simulation tests must find.
//!
//! Each is one condition in the code, `fault!("tree.x")`. Some are what the published code does.

use farbank_pm::fault::NamedFault;

/// All faults of the tree.
pub const ALL: [NamedFault; 25] = [
    NamedFault {
        name: "tree.torn_is_absent",
        description: "a lookup that reads a torn entry reports that the key is absent",
        source: "Sherman's published code (thustorage/Sherman#27)",
        shows_in: None,
    },
    NamedFault {
        name: "tree.range_trusts_parent",
        description: "a range uses the leaves of a cached parent without checking for splits",
        source: "Sherman's published code (thustorage/Sherman#18)",
        shows_in: None,
    },
    NamedFault {
        name: "tree.swap_uncompared",
        description: "a compare-and-swap does not compare the value under the lock",
        source: "conditional.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.root_grown_twice",
        description: "a client that creates a new root does not check whether another client already has",
        source: "Sherman's published code (thustorage/Sherman#26)",
        shows_in: None,
    },
    NamedFault {
        name: "tree.owner_not_fenced",
        description: "a lock is taken from an owner that has held it too long, without fencing the owner",
        source: "invariant TREE-LOCK-3 of lock.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.read_before_lock",
        description: "a writer uses the read of its first attempt to take the lock, even if a later one takes it",
        source: "invariant TREE-LOCK-4 of lock.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.released_before_written",
        description: "the lock is released before what it protects is written",
        source: "invariant TREE-NODE-1 of the crate",
        shows_in: None,
    },
    NamedFault {
        name: "tree.node_unchecked",
        description: "a reader does not check whether its copy of a node is whole",
        source: "invariant TREE-NODE-1 of the crate; Ziegler et al., SIGMOD 2023",
        shows_in: None,
    },
    NamedFault {
        name: "tree.old_half_first",
        description: "a split writes the old node before the one it leads to",
        source: "invariant TREE-NODE-3 of the crate",
        shows_in: None,
    },
    NamedFault {
        name: "tree.moved_unannounced",
        description: "a merge does not mark the leaf whose entries it moves",
        source: "step (a) of merge.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.fences_unchecked",
        description: "a reader checks only the level of a node, not its fence keys",
        source: "invariant TREE-NODE-2 of the crate",
        shows_in: None,
    },
    NamedFault {
        name: "tree.empty_server_admitted",
        description: "a compute server uses a memory server that has restarted with empty memory",
        source: "invariant TREE-NODE-5 of the crate",
        shows_in: None,
    },
    NamedFault {
        name: "tree.entry_before_block",
        description: "an entry is written before the block that it refers to",
        source: "invariant TREE-VALUE-1 of value_blocks.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.block_unchecked",
        description: "a reader does not check whether its copy of a block is whole",
        source: "invariant TREE-VALUE-2 of value_blocks.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.read_joined_late",
        description: "a lookup shares the result of a read that was issued before the lookup began",
        source: "invariant TREE-SHARE-1 of key_sharing.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.write_joined_late",
        description: "a write joins one whose value is already chosen",
        source: "invariant TREE-SHARE-2 of key_sharing.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.part_fences_unchecked",
        description: "a client that reads a part of a leaf does not check the fence keys in its lines",
        source: "invariant TREE-HASH-2 of hashed_leaf.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.moved_without_version",
        description: "an insert that moves entries of a hashed leaf keeps the version of the node",
        source: "invariant TREE-HASH-3 of hashed_leaf.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.block_keeps_number",
        description: "a reused block keeps its number",
        source: "invariant TREE-VALUE-2 of value_blocks.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.drained_at_once",
        description: "a drain does not wait until no client uses an older list of servers",
        source: "invariant TREE-LIST-1 of server_list.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.moved_before_copied",
        description: "a node leads to its copy on another server, which is not written",
        source: "step (a) of drain.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.moved_sibling_kept",
        description: "a node still leads to a right sibling that has moved",
        source: "step (c) of drain.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.moved_child_kept",
        description: "a parent still leads to a child that has moved",
        source: "step (d) of drain.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.moved_values_kept",
        description: "the values of a leaf stay on the server that leaves",
        source: "drain.rs",
        shows_in: None,
    },
    NamedFault {
        name: "tree.drained_in_one_pass",
        description: "a drain ends although its last pass has changed something",
        source: "invariant TREE-DRAIN-3 of drain.rs",
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
