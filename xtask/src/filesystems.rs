//! Suite `file-systems`: creates pools on several file systems, on loop devices and as mounts.
//!
//! Each file system must be accepted silently, warned about, or refused, as `docs/durability.md` says. A pool copied by
//! reference must get blocks of its own. Needs root and loop devices.

mod huge_pages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use huge_pages::ReservedPages;

use crate::RunSize;
use crate::run::{farbank, install, succeed, works};

/// Expected outcome of creating a pool.
enum ExpectedOutcome {
    Silent,
    Warned(&'static str),
    Refused(&'static str),
}

pub(crate) fn run(_size: RunSize) -> Result<(), String> {
    packages()?;
    let folder = tempfile_folder()?;
    let mut stage = MountStage {
        folder: folder.clone(),
        mounts: Vec::new(),
    };
    let done = stage.try_all();
    drop(stage);
    let removed = fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()));
    done.and(removed)
}

fn packages() -> Result<(), String> {
    let needed = [
        ("mkfs.xfs", "xfsprogs"),
        ("mkfs.btrfs", "btrfs-progs"),
        ("bindfs", "bindfs"),
    ];
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(program, _)| !works(program, &["-V"]))
        .map(|(_, package)| *package)
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => install(&missing),
    }
}

fn tempfile_folder() -> Result<PathBuf, String> {
    let folder = std::env::temp_dir().join(format!("farbank-file-systems-{}", std::process::id()));
    fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// A folder in which file systems are mounted. Dropping this value unmounts them.
struct MountStage {
    folder: PathBuf,
    mounts: Vec<PathBuf>,
}

impl Drop for MountStage {
    fn drop(&mut self) {
        for mount in self.mounts.iter().rev() {
            // If a mount stays, the later removal of the folder fails and reports it.
            let _ = succeed(Command::new("umount").arg(mount));
        }
    }
}

impl MountStage {
    fn try_all(&mut self) -> Result<(), String> {
        let sparse = "loop device on the sparse file";
        let xfs = self.device(
            "xfs",
            &["mkfs.xfs", "-q", "-m", "reflink=1"],
            400 << 20,
            true,
        )?;
        create(&xfs, &ExpectedOutcome::Silent)?;
        reflinked(&xfs)?;
        full_and_reflinked(&xfs)?;
        let btrfs = self.device("btrfs", &["mkfs.btrfs", "-q"], 300 << 20, true)?;
        create(&btrfs, &ExpectedOutcome::Silent)?;
        copied_on_write(&btrfs)?;
        let thin = self.device("ext4", &["mkfs.ext4", "-q"], 100 << 20, false)?;
        create(&thin, &ExpectedOutcome::Warned(sparse))?;
        self.overlays(&thin, sparse)?;
        self.huge_pages()?;
        let behind_fuse = self.make("fuse")?;
        let source = self.make("source")?;
        self.mount(Command::new("bindfs").arg(source), &behind_fuse)?;
        create(
            &behind_fuse,
            &ExpectedOutcome::Warned("serves this file system"),
        )
    }

    fn make(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(folder)
    }

    fn mount(&mut self, command: &mut Command, at: &Path) -> Result<(), String> {
        succeed(command.arg(at))?;
        self.mounts.push(at.to_owned());
        Ok(())
    }

    /// Creates a file system on a loop device. All blocks of its file are allocated if `whole`, otherwise the file is
    /// sparse.
    fn device(
        &mut self,
        name: &str,
        make: &[&str],
        bytes: u64,
        whole: bool,
    ) -> Result<PathBuf, String> {
        let (image, at) = (self.folder.join(format!("{name}.image")), self.make(name)?);
        let file = fs::File::create(&image).map_err(|e| e.to_string())?;
        file.set_len(bytes).map_err(|e| e.to_string())?;
        succeed(Command::new(make[0]).args(&make[1..]).arg(&image))?;
        if whole {
            let bytes = bytes.to_string();
            succeed(Command::new("fallocate").args(["-l", &bytes]).arg(&image))?;
        }
        self.mount(Command::new("mount").args(["-o", "loop"]).arg(&image), &at)?;
        Ok(at)
    }

    fn huge_pages(&mut self) -> Result<(), String> {
        let Some(_pages) = ReservedPages::reserve() else {
            println!("skipped: this machine has too few huge pages");
            return Ok(());
        };
        let at = self.make("hugetlbfs")?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "hugetlbfs", "-o", "pagesize=2M", "none"]);
        self.mount(&mut mount, &at)?;
        create(&at, &ExpectedOutcome::Silent)?;
        huge_pages::check(&at)
    }

    fn overlays(&mut self, upper: &Path, over: &'static str) -> Result<(), String> {
        for (name, more, expected) in [
            ("overlay", "", ExpectedOutcome::Warned(over)),
            (
                "volatile",
                ",volatile",
                ExpectedOutcome::Refused("volatile"),
            ),
        ] {
            let (at, lower) = (self.make(name)?, self.make(&format!("{name}-lower"))?);
            let (up, work) = (upper.join(name), upper.join(format!("{name}-work")));
            for folder in [&up, &work] {
                fs::create_dir(folder).map_err(|e| e.to_string())?;
            }
            let options = format!(
                "lowerdir={},upperdir={},workdir={}{more}",
                lower.display(),
                up.display(),
                work.display()
            );
            let mut command = Command::new("mount");
            command.args(["-t", "overlay", "-o", &options, "overlay"]);
            self.mount(&mut command, &at)?;
            create(&at, &expected)?;
        }
        Ok(())
    }
}

fn pool(arguments: &[&str], path: &Path) -> Result<Output, String> {
    let mut command = farbank();
    command.arg("pool").args(arguments).arg(path);
    println!("$ {command:?}");
    let output = command.output().map_err(|e| e.to_string())?;
    print!("{}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

/// Creates a pool in `folder` and checks the outcome and the messages.
fn create(folder: &Path, expected: &ExpectedOutcome) -> Result<(), String> {
    let path = folder.join("pool");
    let made = pool(&["create", "--size", "16mb"], &path)?;
    let said = String::from_utf8_lossy(&made.stderr);
    let right = match expected {
        ExpectedOutcome::Silent => made.status.success() && said.is_empty(),
        ExpectedOutcome::Warned(what) => made.status.success() && said.contains(what),
        ExpectedOutcome::Refused(what) => !made.status.success() && said.contains(what),
    };
    if !right {
        return Err(format!(
            "{}: unexpected outcome, with the messages {said:?}",
            path.display()
        ));
    }
    if made.status.success() {
        return check(&path);
    }
    let accepted = ["create", "--size", "16mb", "--accept-file-system"];
    if path.exists() || !pool(&accepted, &path)?.status.success() {
        return Err(format!(
            "{}: a file is left, or --accept-file-system is refused",
            path.display()
        ));
    }
    Ok(())
}

fn check(path: &Path) -> Result<(), String> {
    match pool(&["check"], path)?.status.success() {
        true => Ok(()),
        false => Err(format!("{}: pool check failed", path.display())),
    }
}

fn copy_by_reference(from: &Path, to: &Path) -> Result<(), String> {
    succeed(Command::new("cp").arg("--reflink=always").args([from, to]))
}

fn shares_blocks(path: &Path) -> Result<bool, String> {
    let listed = Command::new("filefrag").arg("-v").arg(path).output();
    let listed = listed.map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(&listed.stdout).contains("shared"))
}

/// Checks that a pool copied by reference has blocks of its own after it has been opened.
fn reflinked(folder: &Path) -> Result<(), String> {
    let copy = folder.join("copy");
    copy_by_reference(&folder.join("pool"), &copy)?;
    if !shares_blocks(&copy)? {
        return Err("cp --reflink did not share any blocks".into());
    }
    check(&copy)?;
    match shares_blocks(&copy)? {
        true => Err("the opened pool still shares blocks with its copy".into()),
        false => Ok(()),
    }
}

/// Checks that such a pool is refused if the file system has no space for its own blocks.
fn full_and_reflinked(folder: &Path) -> Result<(), String> {
    let (first, copy) = (folder.join("first"), folder.join("second"));
    pool(&["create", "--size", "150mb"], &first)?;
    copy_by_reference(&first, &copy)?;
    let filler = folder.join("filler");
    let mut fill = Command::new("dd");
    fill.args(["if=/dev/zero", "bs=1M", "status=none"]);
    // dd ends with an error when the disk is full.
    let _ = succeed(fill.arg(format!("of={}", filler.display())));
    let refused = pool(&["check"], &copy)?;
    let said = String::from_utf8_lossy(&refused.stderr);
    if refused.status.success() || !said.contains("No space left") {
        return Err(format!(
            "a pool with shared blocks on a full disk: expected \"No space left\", found {said:?}"
        ));
    }
    Ok(())
}

/// Checks that a pool file that btrfs copies on write causes a warning.
fn copied_on_write(folder: &Path) -> Result<(), String> {
    let copy = folder.join("copied");
    let mut command = Command::new("cp");
    command.arg("--reflink=never");
    succeed(command.args([&folder.join("pool"), &copy]))?;
    let opened = pool(&["check"], &copy)?;
    let said = String::from_utf8_lossy(&opened.stderr);
    match opened.status.success() && said.contains("nodatacow") {
        true => Ok(()),
        false => Err(format!(
            "a file with copy on write: expected a warning about nodatacow, found {said:?}"
        )),
    }
}
