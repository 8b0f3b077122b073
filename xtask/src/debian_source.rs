//! Source packages of Debian: the tests of other projects, which suites run against our binary.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::run::{output, succeed};

/// Downloads the source of `package` with apt-get, which checks its signature, and unpacks it into `folder`. Does
/// nothing if `folder` has the folder `part` already. `sha256`: the archive's checksum, if it must be a certain version.
///
/// # Errors
/// The package cannot be downloaded, or it has another checksum.
pub(crate) fn unpack(
    package: &str,
    folder: &Path,
    part: &str,
    sha256: Option<&str>,
) -> Result<(), String> {
    if folder.join(part).is_dir() {
        return Ok(());
    }
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let lists = folder.join("lists");
    fs::create_dir_all(&lists).map_err(failed)?;
    let release = fs::read_to_string("/etc/os-release").map_err(failed)?;
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.ok_or("/etc/os-release has no line VERSION_CODENAME")?;
    let sources = folder.join("sources.list");
    let line = format!("deb-src http://deb.debian.org/debian {codename} main\n");
    fs::write(&sources, line).map_err(failed)?;
    let apt = || {
        let mut command = Command::new("apt-get");
        command.current_dir(folder).arg("-qq");
        command
            .arg("-o")
            .arg(format!("Dir::Etc::SourceList={}", sources.display()));
        command.args(["-o", "Dir::Etc::SourceParts=-"]);
        command
            .arg("-o")
            .arg(format!("Dir::State::Lists={}", lists.display()));
        command
    };
    succeed(apt().arg("update"))?;
    succeed(apt().args(["source", "--download-only", package]))?;
    if let Some(sha256) = sha256 {
        let sum = format!("sha256sum {package}_*.orig.tar.*");
        let found = output(Command::new("sh").args(["-c", &sum]).current_dir(folder))?;
        if !found.starts_with(sha256) {
            return Err(format!(
                "the source of {package} has the checksum {found:?}, expected {sha256}"
            ));
        }
    }
    let unpack = format!("tar --strip-components=1 -xf {package}_*.orig.tar.*");
    succeed(Command::new("sh").args(["-c", &unpack]).current_dir(folder))
}
