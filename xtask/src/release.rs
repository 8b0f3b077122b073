//! `cargo xtask release`: builds the program for distribution, and a list of its components.
//!
//! ```text
//!   target/dist/farbank-VERSION-x86_64-linux-gnu/
//!     farbank             stripped; contains no path of the build machine
//!     farbank.cdx.json    its components, as CycloneDX
//!     man/                manual pages
//!     completions/        of bash, fish and zsh
//!     SHA256SUMS
//! ```
//!
//! `cargo xtask deb` builds the Debian package `target/dist/farbank_VERSION_amd64.deb` of the same program.
//!
//! The same sources, toolchain and `Cargo.lock` give the same bytes in any folder:
//! `cargo xtask release-check` builds in two folders and compares.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dependencies;
use crate::run::{cargo_command, root, succeed, target, works};

/// Builds a release into `target/dist`.
pub(crate) fn run() -> Result<(), String> {
    let name = format!("farbank-{}-x86_64-linux-gnu", env!("CARGO_PKG_VERSION"));
    let folder = target().join("dist").join(name);
    let failed = |e| format!("{}: {e}", folder.display());
    write_program(&folder)?;
    let list = dependencies::sbom()?;
    fs::write(folder.join("farbank.cdx.json"), list).map_err(failed)?;
    let mut sums = Command::new("sha256sum");
    sums.args(["farbank", "farbank.cdx.json"])
        .current_dir(&folder);
    let sums = sums.output().map_err(|e| format!("sha256sum: {e}"))?;
    fs::write(folder.join("SHA256SUMS"), &sums.stdout).map_err(failed)?;
    print!("{}", String::from_utf8_lossy(&sums.stdout));
    println!("{}", folder.display());
    Ok(())
}

/// Builds a Debian package into `target/dist`.
pub(crate) fn deb() -> Result<(), String> {
    if !works("cargo", &["deb", "--version"]) {
        succeed(cargo_command().args(["install", "--locked", "cargo-deb"]))?;
    }
    // `package.metadata.deb` of the program's crate takes the files from here.
    write_program(&target().join("release/deb"))?;
    let mut package = cargo_command();
    package.args([
        "deb",
        "--no-build",
        "--no-strip",
        "--package",
        "farbank-cli",
    ]);
    succeed(package.arg("--output").arg(target().join("dist/")))
}

/// Builds the program, and writes it with its manual pages and completions into `folder`.
fn write_program(folder: &Path) -> Result<(), String> {
    let built = build(&root(), &target().join("dist-build"))?;
    let failed = |e| format!("{}: {e}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    fs::copy(&built, folder.join("farbank")).map_err(failed)?;
    write_documents(folder)
}

/// Writes the manual pages and the completions, as the released program prints them.
fn write_documents(folder: &Path) -> Result<(), String> {
    let program = folder.join("farbank");
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for made in [&man, &completions] {
        fs::create_dir_all(made).map_err(|e| format!("{}: {e}", made.display()))?;
    }
    succeed(Command::new(&program).arg("man").arg(&man))?;
    for (shell, name) in [
        ("bash", "farbank.bash"),
        ("fish", "farbank.fish"),
        ("zsh", "_farbank"),
    ] {
        let printed = Command::new(&program).args(["completions", shell]).output();
        let printed = printed.map_err(|e| format!("{}: {e}", program.display()))?;
        if !printed.status.success() {
            return Err(format!("farbank completions {shell} has failed"));
        }
        let file = completions.join(name);
        fs::write(&file, printed.stdout).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

/// Builds the sources in two folders and compares the programs.
pub(crate) fn check() -> Result<(), String> {
    let temporary = std::env::temp_dir().join(format!("farbank-release-{}", std::process::id()));
    let checked = check_in(&temporary);
    let removed = fs::remove_dir_all(&temporary);
    checked.and(removed.map_err(|e| format!("{}: {e}", temporary.display())))
}

fn check_in(temporary: &Path) -> Result<(), String> {
    let mut built = Vec::new();
    let folders = ["one", "another/folder"].map(|name| temporary.join(name));
    // Both copies are made before the first build, so that a later change of the sources is in neither.
    folders
        .iter()
        .try_for_each(|folder| copy(&root(), folder))?;
    for folder in &folders {
        let program = build(folder, &folder.join("target"))?;
        let bytes = fs::read(&program).map_err(|e| format!("{}: {e}", program.display()))?;
        for path in [folder.clone(), cargo_home(), home()] {
            if leaks(&bytes, &path) {
                return Err(format!("the program contains the path {}", path.display()));
            }
        }
        built.push(bytes);
        // The second build needs the space.
        fs::remove_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let (one, another) = (&built[0], &built[1]);
    if one != another {
        let same = one.iter().zip(another).take_while(|(a, b)| a == b).count();
        let (a, b) = (one.len(), another.len());
        return Err(format!(
            "two builds of the same sources differ, from byte {same} on; they have {a} and {b} bytes"
        ));
    }
    println!("two builds are the same {} bytes", one.len());
    Ok(())
}

/// Returns whether the program contains `path`.
fn leaks(program: &[u8], path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    // Very short paths such as "/" occur in every program.
    path.len() > 3 && program.windows(path.len()).any(|window| window == path)
}

fn home() -> PathBuf {
    std::env::var_os("HOME").unwrap_or_default().into()
}

fn cargo_home() -> PathBuf {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    named.unwrap_or_else(|| home().join(".cargo"))
}

/// Returns the folder of the compiler's own libraries.
fn sysroot() -> Result<PathBuf, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output();
    let output = output.map_err(|e| format!("rustc: {e}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

/// Builds the sources in `folder` and returns the path of the program.
fn build(folder: &Path, target: &Path) -> Result<PathBuf, String> {
    let renamed = [
        (cargo_home(), "/cargo"),
        (sysroot()?, "/rust"),
        (folder.to_path_buf(), "/farbank"),
    ];
    let flags: Vec<String> = renamed
        .iter()
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .collect();
    let mut command = cargo_command();
    command.args([
        "build",
        "--locked",
        "--profile",
        "dist",
        "--package",
        "farbank-cli",
    ]);
    command.arg("--target-dir").arg(target).current_dir(folder);
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    command.env("CARGO_INCREMENTAL", "0");
    command.env_remove("RUSTFLAGS");
    succeed(&mut command)?;
    Ok(target.join("dist/farbank"))
}

/// Copies the sources, without build folders.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |e| format!("{}: {e}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (name, kind) = (entry.file_name(), entry.file_type().map_err(failed)?);
        if kind.is_dir() && name != "target" && name != ".git" {
            copy(&entry.path(), &to.join(name))?;
        } else if kind.is_file() {
            fs::copy(entry.path(), to.join(name)).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_program_is_found() {
        let program = b"...\0/home/builder/farbank/src/main.rs\0...";
        assert!(leaks(program, Path::new("/home/builder")));
        assert!(!leaks(program, Path::new("/home/another")));
        assert!(!leaks(program, Path::new("/")));
    }
}
