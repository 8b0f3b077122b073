//! Properties of devices, read from `/sys`.
//!
//! The root is a parameter, so that tests can simulate hardware by a tree of files.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The `/sys` tree, or a test's substitute, by its root directory.
#[derive(Clone, Debug)]
pub(super) struct Sysfs(PathBuf);

/// Stores to mapped memory that survive a power cut, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum DevicePersistence {
    /// Possibly none: the kernel does not report the memory as persistent.
    Unknown,
    /// Stores that were written back.
    Memory,
    /// All visible stores: the caches are persistent (eADR).
    Caches,
}

/// Block device under a file system that limits its durability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockLayer {
    /// Warning for the operator, one line.
    pub(super) text: String,
    /// Whether the device is in memory, so that a restart empties it.
    pub(super) is_memory: bool,
}

impl Sysfs {
    /// Returns the tree of this system, `/sys`.
    pub(super) fn system() -> Sysfs {
        Sysfs("/sys".into())
    }

    /// Returns a test's tree.
    #[cfg(test)]
    pub(super) fn at(root: &Path) -> Sysfs {
        Sysfs(root.into())
    }

    /// Returns the directory of a device of `class`, "block" or "char".
    pub(super) fn device(&self, class: &str, device: u64) -> PathBuf {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        self.0.join(format!("dev/{class}/{major}:{minor}"))
    }

    /// Returns the length of a devdax device in bytes.
    ///
    /// # Errors
    /// It is another kind of character device, or the kernel does not report its length.
    pub(super) fn dax_bytes(&self, device: u64) -> io::Result<u64> {
        let folder = self.device("char", device);
        if !fs::canonicalize(folder.join("subsystem")).is_ok_and(|s| s.ends_with("dax")) {
            return Err(io::Error::other(
                "a character device, but not a devdax device",
            ));
        }
        let bytes = fs::read_to_string(folder.join("size"))?;
        bytes.trim().parse().map_err(io::Error::other)
    }

    /// Returns whether the memory of a device is persistent, as far as the kernel reports it. The class is "char"
    /// (devdax) or "block" (under a file system).
    ///
    /// * Persistent memory belongs to a region, a parent directory of the device. The region's
    ///   `persistence_domain` is the point from which stores survive a power cut.
    /// * If firmware does not report the domain, the file is empty. Memory listed in the firmware's NFIT table
    ///   is persistent nevertheless. Other memory with an empty domain is DRAM reserved by `memmap=` (its provider is
    ///   `e820`), or unknown.
    /// * Memory without a region is reserved DRAM or CXL memory (`hmem`, `dax_region`): volatile.
    /// * A device-mapper device is as persistent as the least persistent device under it.
    pub(super) fn persistence(&self, class: &str, device: u64) -> DevicePersistence {
        fs::canonicalize(self.device(class, device)).map_or(DevicePersistence::Unknown, |folder| {
            evidence(&folder, DEPTH_MAX)
        })
    }

    /// Returns the thinly provisioned and volatile devices under a block device, at any depth.
    pub(super) fn beneath(&self, device: u64) -> Vec<BlockLayer> {
        let mut found = Vec::new();
        // A file system without a single device (btrfs, overlayfs) has no directory here.
        if let Ok(folder) = fs::canonicalize(self.device("block", device)) {
            layers(&folder, DEPTH_MAX, &mut found);
        }
        found.dedup();
        found
    }
}

/// Maximum depth of stacked device-mapper devices. Ends the search if devices form a cycle.
const DEPTH_MAX: usize = 16;

/// Returns the directories of the devices under a device-mapper device.
fn slaves(folder: &Path) -> Vec<PathBuf> {
    let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten();
    slaves
        .flatten()
        .filter_map(|slave| fs::canonicalize(slave.path()).ok())
        .collect()
}

/// Implements [`Sysfs::persistence`] for the device with this directory.
fn evidence(folder: &Path, depth: usize) -> DevicePersistence {
    const FIRMWARE: &str = "ACPI.NFIT";
    let read = |file: &str| {
        let mut found = folder
            .ancestors()
            .map(|above| fs::read_to_string(above.join(file)));
        found.find_map(Result::ok)
    };
    match read("persistence_domain").as_deref().map(str::trim) {
        Some("cpu_cache") => DevicePersistence::Caches,
        Some("memory_controller") => DevicePersistence::Memory,
        Some("") if read("provider").is_some_and(|bus| bus.trim() == FIRMWARE) => {
            DevicePersistence::Memory
        }
        None if depth > 0 => {
            let under = slaves(folder);
            let under = under.iter().map(|slave| evidence(slave, depth - 1));
            under.min().unwrap_or(DevicePersistence::Unknown)
        }
        _ => DevicePersistence::Unknown,
    }
}

/// Implements [`Sysfs::beneath`] for the device with this directory.
fn layers(folder: &Path, depth: usize, found: &mut Vec<BlockLayer>) {
    // A partition's directory is in that of its disk.
    let disk = match folder.join("partition").exists() {
        true => folder.parent().unwrap_or(folder),
        false => folder,
    };
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let read = |file: &str| fs::read_to_string(disk.join(file)).ok();
    let uuid = read("dm/uuid").unwrap_or_default();
    let uuid = uuid.trim();
    if uuid.ends_with("-tpool") || uuid.ends_with("-vpool") || uuid.starts_with("VDO-") {
        found.push(BlockLayer {
            text: format!(
                "the device is thinly provisioned from the pool {}: if that pool is full, writes fail",
                read("dm/name").unwrap_or_default().trim()
            ),
            is_memory: false,
        });
    }
    if name.starts_with("zram") || name.starts_with("ram") {
        found.push(BlockLayer {
            text: format!("the device {name} is in memory: a restart empties it"),
            is_memory: true,
        });
    }
    if let Some(file) = read("loop/backing_file") {
        found.extend(backing(Path::new(file.trim_end_matches('\n'))));
    }
    if depth > 0 {
        for slave in slaves(disk) {
            layers(&slave, depth - 1, found);
        }
    }
}

/// Returns the limit of a loop device's backing file: it is in memory, or sparse.
fn backing(file: &Path) -> Option<BlockLayer> {
    const SECTOR_BYTES: u64 = 512;
    const MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    let path = file.display();
    if rustix::fs::statfs(file).is_ok_and(|found| MEMORY.contains(&(found.f_type as u32))) {
        return Some(BlockLayer {
            text: format!("the device is a loop device on {path}, which is in memory"),
            is_memory: true,
        });
    }
    let metadata = fs::metadata(file).ok()?;
    let sparse = metadata.blocks().saturating_mul(SECTOR_BYTES) < metadata.len();
    sparse.then(|| BlockLayer {
        text: format!(
            "the device is a loop device on the sparse file {path}: if the file system of that file is full, \
             writes fail"
        ),
        is_memory: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Device number 253:2, as in `st_dev`.
    const DEVICE: u64 = 253 << 8 | 2;

    /// Makes a tree in which 253:2 is a device-mapper volume on `slave`.
    fn tree(slave: &str) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let blocks = root.path().join("devices/virtual/block");
        for name in ["dm-2", slave] {
            fs::create_dir_all(blocks.join(name).join("slaves")).unwrap();
        }
        let under = blocks.join(slave);
        symlink(&under, blocks.join("dm-2/slaves").join(slave)).unwrap();
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        symlink(blocks.join("dm-2"), root.path().join("dev/block/253:2")).unwrap();
        (root, under)
    }

    #[test]
    fn a_thin_pool_under_a_volume_is_found() {
        let (root, under) = tree("dm-1");
        assert_eq!(Sysfs::at(root.path()).beneath(DEVICE), []);
        fs::create_dir_all(under.join("dm")).unwrap();
        fs::write(under.join("dm/uuid"), "LVM-abc-tpool\n").unwrap();
        fs::write(under.join("dm/name"), "vg-thin-tpool\n").unwrap();
        let found = Sysfs::at(root.path()).beneath(DEVICE);
        assert_eq!(found.len(), 1);
        assert!(found[0].text.contains("vg-thin-tpool"), "{found:?}");
    }

    #[test]
    fn a_device_in_memory_under_a_volume_is_found() {
        let (root, _) = tree("zram0");
        let found = Sysfs::at(root.path()).beneath(DEVICE);
        assert!(found[0].is_memory, "{found:?}");
    }

    #[test]
    fn a_loop_device_on_a_sparse_file_is_found_and_one_on_a_whole_file_is_not() {
        let (root, under) = tree("loop0");
        let image = root.path().join("image");
        fs::create_dir_all(under.join("loop")).unwrap();
        let named = format!("{}\n", image.display());
        fs::write(under.join("loop/backing_file"), named).unwrap();
        let sparse = fs::File::create(&image).unwrap();
        sparse.set_len(1 << 20).unwrap();
        let found = Sysfs::at(root.path()).beneath(DEVICE);
        assert!(found[0].text.contains("image"), "{found:?}");
        fs::write(&image, vec![1; 1 << 20]).unwrap();
        sparse.sync_all().unwrap();
        let found = Sysfs::at(root.path()).beneath(DEVICE);
        let in_memory = found.iter().all(|layer| layer.is_memory);
        assert!(in_memory, "{found:?}");
    }

    /// Makes a tree in which the devdax device 253:2 has the directory `path`.
    fn dax(path: &str) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("devices").join(path);
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(root.path().join("bus/dax")).unwrap();
        fs::create_dir_all(root.path().join("dev/char")).unwrap();
        symlink(&device, root.path().join("dev/char/253:2")).unwrap();
        symlink(root.path().join("bus/dax"), device.join("subsystem")).unwrap();
        fs::write(device.join("size"), "1073741824\n").unwrap();
        (root, device)
    }

    const REGION: &str = "LNXSYSTM:00/ACPI0012:00/ndbus0/region0";
    const NODE: &str = "dax0.1/dax/dax0.0";

    #[test]
    fn memory_is_persistent_only_if_the_kernel_or_firmware_reports_it() {
        use DevicePersistence::{Caches, Memory, Unknown};
        for (domain, provider, expected) in [
            ("cpu_cache\n", "ACPI.NFIT\n", Caches),
            ("memory_controller\n", "ACPI.NFIT\n", Memory),
            ("memory_controller\n", "CXL\n", Memory),
            ("\n", "ACPI.NFIT\n", Memory),
            ("\n", "e820\n", Unknown),
            ("\n", "of_pmem\n", Unknown),
            ("something new\n", "ACPI.NFIT\n", Unknown),
        ] {
            let (root, device) = dax(&format!("{REGION}/{NODE}"));
            let region = device.ancestors().nth(3).unwrap();
            fs::write(region.join("persistence_domain"), domain).unwrap();
            fs::write(region.parent().unwrap().join("provider"), provider).unwrap();
            let sysfs = Sysfs::at(root.path());
            assert_eq!(
                sysfs.persistence("char", DEVICE),
                expected,
                "{domain} {provider}"
            );
            assert_eq!(sysfs.dax_bytes(DEVICE).unwrap(), 1 << 30);
        }
    }

    #[test]
    fn memory_without_a_region_is_not_persistent() {
        for path in [
            "platform/hmem.0/dax0.0",
            "pci0000:00/root0/decoder0.0/region0/dax_region0/dax0.0",
        ] {
            let (root, _) = dax(path);
            let found = Sysfs::at(root.path()).persistence("char", DEVICE);
            assert_eq!(found, DevicePersistence::Unknown, "{path}");
        }
        let nothing = tempfile::tempdir().unwrap();
        let found = Sysfs::at(nothing.path()).persistence("char", DEVICE);
        assert_eq!(found, DevicePersistence::Unknown);
    }

    #[test]
    fn a_volume_is_as_persistent_as_its_least_persistent_device() {
        let (root, under) = tree("pmem0");
        let sysfs = Sysfs::at(root.path());
        assert_eq!(
            sysfs.persistence("block", DEVICE),
            DevicePersistence::Unknown
        );
        fs::write(under.join("persistence_domain"), "memory_controller\n").unwrap();
        assert_eq!(
            sysfs.persistence("block", DEVICE),
            DevicePersistence::Memory
        );
        let other = under.parent().unwrap().join("pmem1");
        fs::create_dir(&other).unwrap();
        symlink(&other, under.parent().unwrap().join("dm-2/slaves/pmem1")).unwrap();
        assert_eq!(
            sysfs.persistence("block", DEVICE),
            DevicePersistence::Unknown
        );
    }

    #[test]
    fn other_character_devices_are_not_devdax_devices() {
        let (root, device) = dax("virtual/mem/null");
        fs::remove_file(device.join("subsystem")).unwrap();
        let refused = Sysfs::at(root.path()).dax_bytes(DEVICE).unwrap_err();
        assert!(refused.to_string().contains("not a devdax"), "{refused}");
    }

    #[test]
    fn the_search_ends_if_devices_form_a_cycle() {
        let (root, under) = tree("dm-1");
        symlink(
            under.parent().unwrap().join("dm-2"),
            under.join("slaves/dm-2"),
        )
        .unwrap();
        assert_eq!(Sysfs::at(root.path()).beneath(DEVICE), []);
    }
}
