//! The structures that can be checked, and the persistency modes in which they are.

use clap::builder::TypedValueParser;
use farbank_cache::target::MdbTarget;
use farbank_check::Target;
use farbank_contest::kid::KidConfig;
use farbank_contest::target::EngineTarget;
use farbank_contest::v1::{V1Config, V1Tuning};
use farbank_contest::v2::{V2Config, V2Tuning};
use farbank_index::hash::Hashing;
use farbank_index::registry::TableKind;
use farbank_index::target::TableTarget;
use farbank_kv::target::KvTarget;
use farbank_pm::sim::Persistency;

use crate::common::Failure;
use crate::common::choice::{AnyOr, named};

/// A structure that `--target` selects: a target of the crash explorer, or the tree, whose memory never loses power.
#[derive(Clone, Copy)]
pub(super) struct CheckedStructure(Option<&'static dyn Target>);

impl CheckedStructure {
    /// Returns the target that the crash explorer runs. `None` for the tree.
    pub(super) fn target(self) -> Option<&'static dyn Target> {
        self.0
    }
}

/// Targets of the crash explorer, with their descriptions on the command line. Their names are those of their reports.
const TARGETS: [(&dyn Target, &str); 17] = [
    (&KvTarget::Plain, "The key-value engine"),
    (
        &KvTarget::Alone,
        "The key-value engine, with each operation in a batch of its own",
    ),
    (
        &KvTarget::Large,
        "The key-value engine with values of several extents",
    ),
    (
        &KvTarget::Classes,
        "The key-value engine with as many size classes as on a large pool, and a reader that stays open",
    ),
    (
        &KvTarget::Slices,
        "The key-value engine with a cleaner that moves two records at a time",
    ),
    (
        &KvTarget::Checkpoint,
        "The key-value engine with a checkpoint of its index after every few writes",
    ),
    (&MdbTarget, "The Tair MDB cache"),
    (
        &EngineTarget(KidConfig),
        "The engine described in the contest slides. It has known defects and fails",
    ),
    (
        &EngineTarget(V1Config(V1Tuning::PUBLISHED)),
        "The contest's `v1` engine, as published. Readers see the writes of a killed process, which a later power cut \
         may lose",
    ),
    (
        &EngineTarget(V2Config(V2Tuning::PUBLISHED)),
        "The contest's `v2` engine, as published. It is known to lose and to corrupt data",
    ),
    (
        &TableTarget(TableKind::Cceh, Hashing::Published),
        "Cacheline-conscious extendible hashing",
    ),
    (
        &TableTarget(TableKind::Clht, Hashing::Published),
        "CLHT, the cache-line hash table, made persistent",
    ),
    (
        &TableTarget(TableKind::Soft, Hashing::Published),
        "SOFT: sets with an optimal flushing technique",
    ),
    (
        &TableTarget(TableKind::Level, Hashing::Published),
        "Level hashing",
    ),
    (
        &TableTarget(TableKind::Clevel, Hashing::Published),
        "Clevel hashing: level hashing with lock-free searches",
    ),
    (
        &TableTarget(TableKind::DashEh, Hashing::Published),
        "Dash with extendible hashing",
    ),
    (
        &TableTarget(TableKind::DashLh, Hashing::Published),
        "Dash with linear hashing",
    ),
];

const TREE: &str =
    "The tree on memory servers of a simulated cluster. Only for schedules and faults";

/// Returns the parser of `--target`.
pub(super) fn structure() -> impl TypedValueParser<Value = CheckedStructure> {
    let row = |(target, about): &(&'static dyn Target, &'static str)| {
        (target.name(), *about, CheckedStructure(Some(*target)))
    };
    let tree = ("tree", TREE, CheckedStructure(None));
    named(TARGETS.iter().map(row).chain([tree]))
}

/// Returns the parser of `--persistency`: a mode, or `all`.
pub(super) fn persistency() -> impl TypedValueParser<Value = AnyOr<Persistency>> {
    let row = |mode: Persistency| {
        let help = match mode {
            Persistency::Relaxed => {
                "A file under `--sync everysec` or `never`: a power cut may lose everything written since the last \
                 sync"
            }
            _ => "",
        };
        (mode.name(), help, AnyOr::One(mode))
    };
    let all = ("all", "", AnyOr::Any);
    named(Persistency::EVERY.map(row).into_iter().chain([all]))
}

/// Returns the selected modes. Fails if `target` does not support the selected mode.
pub(super) fn modes(
    choice: AnyOr<Persistency>,
    target: &dyn Target,
) -> Result<Vec<Persistency>, Failure> {
    let mode = match choice {
        AnyOr::Any => return Ok(target.modes().to_vec()),
        AnyOr::One(mode) => mode,
    };
    if target.modes().contains(&mode) {
        return Ok(vec![mode]);
    }
    let made_for: Vec<_> = target.modes().iter().map(ToString::to_string).collect();
    Err(Failure::Usage(format!(
        "{} does not support the mode {mode}; it supports {}",
        target.name(),
        made_for.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_can_be_checked() {
        for table in TableKind::ALL {
            let mut targets = TARGETS.iter();
            assert!(
                targets.any(|(target, _)| target.name() == table.name()),
                "{table}"
            );
        }
    }
}
