//! The tables are alike: the same files in each table's folder, and one place that handles the reserved key.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use farbank_index::PoolPlan;
use farbank_index::hash::Hashing;
use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_pm::Off;
use farbank_pm::pool::PoolLayout;
use farbank_pm::sim::{Persistency, PoolImage, Sim};

/// The files of every table, and of the parts that several tables share: the directory of extendible hashing, and the
/// segments of the Dash tables.
///
/// * `mod`: description, invariants, crash argument, configuration, and the table itself
/// * `layout`: the bytes, and the use of hash bits
/// * `ops`: insert, get, update, remove; for the Dash tables, the selection of a segment
/// * `resize`: the first parts of a table, and its growth
/// * `recover`: recovery by the open, and at the first access to a part
/// * `check`: the consistency check of the whole table
const FILES: [&str; 6] = ["mod", "layout", "ops", "resize", "recover", "check"];

/// Further files of a folder.
const MORE: [(&str, &[&str]); 3] = [
    // Several workers copy an array together.
    ("clht", &["copy"]),
    // The trait that a table of Dash segments implements.
    ("dash", &["table"]),
    // The table is a list in DRAM, with an allocator of its nodes.
    ("soft", &["list", "nodes", "tagged_ptr"]),
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns the folders of all tables and of the parts that they share.
fn folders() -> Vec<String> {
    let tables = TableKind::ALL.map(|kind| kind.name().replace('-', "_"));
    let shared = ["dash", "extendible"].map(String::from);
    tables.into_iter().chain(shared).collect()
}

#[test]
fn the_folder_of_each_table_has_the_same_files() {
    for folder in folders() {
        let more = MORE.into_iter().find(|(name, _)| *name == folder);
        let more = more.map_or(&[] as &[&str], |(_, files)| files);
        let expected: BTreeSet<String> = FILES
            .iter()
            .chain(more)
            .map(|f| format!("{f}.rs"))
            .collect();
        let path = src().join(&folder);
        let found: BTreeSet<String> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(found, expected, "{folder}");
        for file in found {
            let text = fs::read_to_string(path.join(&file)).unwrap();
            assert!(
                text.starts_with("//! "),
                "{folder}/{file} does not say what it is for"
            );
            assert!(text.contains("fn "), "{folder}/{file} has no code");
        }
    }
}

/// Returns the source files below `folder`, with their texts.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
}

#[test]
fn one_module_handles_the_reserved_key_of_every_table() {
    let mut all = Vec::new();
    sources(&src(), &mut all);
    let that = |what: &str| -> Vec<String> {
        let with = all.iter().filter(|(_, text)| text.contains(what));
        let names = with.map(|(path, _)| path.strip_prefix(src()).unwrap().display().to_string());
        names.collect()
    };
    assert_eq!(
        that("> Index for "),
        ["reserved_key.rs"],
        "implementations of `Index`"
    );
    let tables = that("> HashTable for ").len();
    assert_eq!(
        tables + 1,
        TableKind::ALL.len(),
        "the two Dash tables share one implementation"
    );
    assert_eq!(
        that("reserved_key_line()"),
        ["reserved_key.rs"],
        "uses of the key's line"
    );
}

/// The line of the reserved key follows the root.
#[test]
fn only_the_reserved_key_of_a_table_is_stored_outside_of_it() {
    const LAYOUT: PoolLayout = PoolLayout {
        segment_bytes: 4 << 10,
    };
    const ROOT_BYTES: u64 = 128;
    let plan = PoolPlan {
        chunk_bytes: LAYOUT.segment_bytes,
        contexts: 2,
        identity: None,
        hashing: Hashing::Published,
    };
    let line = Off(LAYOUT.first_segment() + ROOT_BYTES);
    for kind in TableKind::ALL {
        for key in [0, 1, u64::MAX] {
            let image = PoolImage::zeroed(LAYOUT.pool_bytes(16));
            let sim = Sim::from_image(image, Persistency::Adr);
            let table = kind
                .create(sim.clone(), &plan, TableSize::Small, TablePreset::Farbank)
                .unwrap();
            let mut worker = table.worker().unwrap();
            let is_reserved = key == 0 && matches!(kind, TableKind::Cceh | TableKind::Clht);
            let outside = || [0, 8].map(|at| sim.visible().word(line.plus(at)));
            let expected = |value: u64| if is_reserved { [1, value] } else { [0, 0] };
            assert_eq!(table.insert(&mut worker, key, 7), Ok(None));
            assert_eq!(outside(), expected(7), "{kind}, key {key:#x}");
            assert_eq!(table.insert(&mut worker, key, 8), Ok(Some(7)));
            assert_eq!(table.update(&mut worker, key, 9), Ok(Some(7)));
            assert_eq!(outside(), expected(9), "{kind}, key {key:#x}");
            assert_eq!(table.get(&mut worker, key), Ok(Some(9)));
            let mut pairs = Vec::new();
            table
                .each(&mut worker, &mut |key, value| pairs.push((key, value)))
                .unwrap();
            assert_eq!((pairs, table.len(&mut worker)), (vec![(key, 9)], Ok(1)));
            table.check().unwrap();
            assert_eq!(table.remove(&mut worker, key), Ok(Some(9)));
            assert_eq!(outside()[0], 0, "{kind}, key {key:#x}");
            assert_eq!(table.get(&mut worker, key), Ok(None));
        }
    }
}
