//! What the kernel says of devices in `/sys`.
//!
//! The root is a parameter, so that tests can make up a tree of files for hardware that is not there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder that is `/sys`, or stands for it.
#[derive(Clone, Debug)]
pub(super) struct Sysfs(PathBuf);

/// Something under a file system that limits what it can promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// One line for people.
    pub(super) text: String,
    /// The device is memory: a restart empties it.
    pub(super) is_memory: bool,
}

impl Sysfs {
    /// The system's own.
    pub(super) fn system() -> Sysfs {
        Sysfs("/sys".into())
    }

    /// A made-up tree.
    #[cfg(test)]
    pub(super) fn at(root: &Path) -> Sysfs {
        Sysfs(root.into())
    }

    /// The folder of a device of `class`, "block" or "char".
    pub(super) fn device(&self, class: &str, device: u64) -> PathBuf {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        self.0.join(format!("dev/{class}/{major}:{minor}"))
    }

    /// Thinly provisioned and volatile devices under the block device, at any depth.
    pub(super) fn beneath(&self, device: u64) -> Vec<Layer> {
        let mut found = Vec::new();
        // A file system without a device of its own (btrfs, overlayfs) has no folder here.
        if let Ok(folder) = fs::canonicalize(self.device("block", device)) {
            layers(&folder, DEPTH_MAX, &mut found);
        }
        found.dedup();
        found
    }
}

/// More device-mapper devices on top of each other than anyone has.
const DEPTH_MAX: usize = 16;

fn layers(folder: &Path, depth: usize, found: &mut Vec<Layer>) {
    // A partition's folder is in its disk's.
    let disk = match folder.join("partition").exists() {
        true => folder.parent().unwrap_or(folder),
        false => folder,
    };
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let read = |file: &str| fs::read_to_string(disk.join(file)).ok();
    let uuid = read("dm/uuid").unwrap_or_default();
    let uuid = uuid.trim();
    if uuid.ends_with("-tpool") || uuid.ends_with("-vpool") || uuid.starts_with("VDO-") {
        found.push(Layer {
            text: format!(
                "the device is thinly provisioned, from the pool {}: if that runs full, writes fail",
                read("dm/name").unwrap_or_default().trim()
            ),
            is_memory: false,
        });
    }
    if name.starts_with("zram") || name.starts_with("ram") {
        found.push(Layer {
            text: format!("the device {name} is memory"),
            is_memory: true,
        });
    }
    if let Some(file) = read("loop/backing_file") {
        found.extend(backing(Path::new(file.trim_end_matches('\n'))));
    }
    let slaves = fs::read_dir(disk.join("slaves")).into_iter().flatten();
    for slave in slaves.flatten() {
        if let Ok(slave) = fs::canonicalize(slave.path())
            && depth > 0
        {
            layers(&slave, depth - 1, found);
        }
    }
}

/// What is wrong with the file behind a loop device.
fn backing(file: &Path) -> Option<Layer> {
    const SECTOR_BYTES: u64 = 512;
    const MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    let path = file.display();
    if rustix::fs::statfs(file).is_ok_and(|found| MEMORY.contains(&(found.f_type as u32))) {
        return Some(Layer {
            text: format!("the device is a loop device on {path}, which is in memory"),
            is_memory: true,
        });
    }
    let metadata = fs::metadata(file).ok()?;
    let sparse = metadata.blocks().saturating_mul(SECTOR_BYTES) < metadata.len();
    sparse.then(|| Layer {
        text: format!(
            "the device is a loop device on the sparse file {path}: if the disk under it runs full, \
             writes fail"
        ),
        is_memory: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// 253:2, as `st_dev` has it.
    const DEVICE: u64 = 253 << 8 | 2;

    /// A tree in which 253:2 is a volume, on `slave`.
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

    #[test]
    fn devices_that_name_each_other_end_the_search() {
        let (root, under) = tree("dm-1");
        symlink(
            under.parent().unwrap().join("dm-2"),
            under.join("slaves/dm-2"),
        )
        .unwrap();
        assert_eq!(Sysfs::at(root.path()).beneath(DEVICE), []);
    }
}
