//! What an import reads: an RDB file, an append-only file, or the folder of append-only files of Redis 7.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use farbank::store::{DATABASES, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use farbank_server::rdb::reader::{RdbEntry, RdbReader};

use super::aof::{CommandCounts, count};
use crate::common::Failure;
use crate::common::progress::CommandProgress;

/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes of the store's metadata that a key costs, about.
const KEY_COST: u64 = 64;

/// What a file has that this store does not keep: the number of such values, and the first key.
pub(super) type OtherValues = BTreeMap<String, (u64, String)>;

/// The files of a source, in the order in which they are loaded.
pub(super) struct Source {
    pub(super) files: Vec<PathBuf>,
    /// Bytes of all files.
    pub(super) bytes: u64,
}

/// What a source has.
#[derive(Default)]
pub(super) struct Inspection {
    /// Strings of RDB files that have not expired.
    pub(super) keys: u64,
    pub(super) expired: u64,
    /// Bytes that they take in a pool, about.
    pub(super) pool_bytes: u64,
    pub(super) others: OtherValues,
    pub(super) libraries: Vec<Vec<u8>>,
    pub(super) commands: CommandCounts,
}

pub(super) fn unreadable(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("{}: {error}", path.display()))
}

pub(super) fn open(path: &Path) -> Result<BufReader<File>, Failure> {
    let file = File::open(path).map_err(|e| unreadable(path, e))?;
    Ok(BufReader::with_capacity(BUFFER_BYTES, file))
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Whether the input begins with an RDB file.
pub(super) fn is_rdb(path: &Path, input: &mut impl BufRead) -> Result<bool, Failure> {
    let begin = input.fill_buf().map_err(|e| unreadable(path, e))?;
    Ok(begin.starts_with(b"REDIS"))
}

impl Source {
    /// Finds the files of `path`.
    pub(super) fn find(path: &Path) -> Result<Source, Failure> {
        let files = match path.is_dir() {
            true => files_of(&manifest_in(path)?)?,
            false if path.extension().is_some_and(|ext| ext == "manifest") => files_of(path)?,
            false => vec![path.to_owned()],
        };
        let mut bytes = 0;
        for file in &files {
            bytes += std::fs::metadata(file)
                .map_err(|e| unreadable(file, e))?
                .len();
        }
        Ok(Source { files, bytes })
    }

    /// Reads everything once, and checks it.
    pub(super) fn inspect(&self) -> Result<Inspection, Failure> {
        let mut inspection = Inspection::default();
        let mut progress = CommandProgress::new("checking");
        let mut done = 0;
        for file in &self.files {
            let mut input = open(file)?;
            if is_rdb(file, &mut input)? {
                let mut show = |bytes| progress.show(done + bytes, self.bytes);
                input = inspection.add_rdb(file, input, &mut show)?;
            }
            count(&mut input, &mut inspection.commands)?;
            done += std::fs::metadata(file).map_or(0, |meta| meta.len());
            progress.show(done, self.bytes);
        }
        progress.clear();
        Ok(inspection)
    }
}

impl Inspection {
    fn add_rdb(
        &mut self,
        path: &Path,
        input: BufReader<File>,
        show: &mut dyn FnMut(u64),
    ) -> Result<BufReader<File>, Failure> {
        let mut reader = RdbReader::new(input, VALUE_BYTES_MAX).map_err(|e| unreadable(path, e))?;
        let now_ms = now_ms();
        loop {
            if self.keys.is_multiple_of(1024) {
                show(reader.position());
            }
            match reader.next_entry().map_err(|e| unreadable(path, e))? {
                None => return Ok(reader.into_input()),
                Some(RdbEntry::Aux(..)) => {}
                Some(RdbEntry::Library(code)) => self.libraries.push(code.to_vec()),
                Some(RdbEntry::Other { key, type_name, .. }) => {
                    self.note_other(&format!("values of type {type_name}"), key);
                }
                Some(RdbEntry::String(found)) if found.db as usize >= DATABASES => {
                    self.note_other(
                        &format!("keys in databases above {}", DATABASES - 1),
                        found.key,
                    );
                }
                Some(RdbEntry::String(found)) if found.key.len() > KEY_BYTES_MAX => {
                    self.note_other("keys longer than 64 KiB", &found.key[..64]);
                }
                Some(RdbEntry::String(found)) => {
                    if found.expires_ms != 0 && found.expires_ms <= now_ms {
                        self.expired += 1;
                        continue;
                    }
                    self.keys += 1;
                    self.pool_bytes += (found.key.len() + found.value.len()) as u64 + KEY_COST;
                }
            }
        }
    }

    fn note_other(&mut self, what: &str, key: &[u8]) {
        let first = || (0, key.escape_ascii().to_string());
        self.others.entry(what.to_owned()).or_insert_with(first).0 += 1;
    }

    /// Describes what the store does not keep; `None` if it keeps everything.
    pub(super) fn unsupported(&self) -> Option<String> {
        let values = self.others.iter();
        let values = values.map(|(what, (n, key))| format!("{n} {what} (first key: \"{key}\")"));
        let commands = self.commands.unsupported.iter();
        let commands = commands.map(|(name, n)| format!("commands {name} ({n})"));
        let all: Vec<String> = values.chain(commands).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// Returns the one manifest in a folder.
fn manifest_in(folder: &Path) -> Result<PathBuf, Failure> {
    let entries = std::fs::read_dir(folder).map_err(|e| unreadable(folder, e))?;
    let mut manifests = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| unreadable(folder, e))?.path();
        if path.extension().is_some_and(|ext| ext == "manifest") {
            manifests.push(path);
        }
    }
    match manifests.len() {
        1 => Ok(manifests.remove(0)),
        n => Err(unreadable(
            folder,
            format!("has {n} files *.manifest; name the one to import"),
        )),
    }
}

/// Returns the files that a manifest names: the base, then the increments in their order. Files of its history were
/// replaced by the base.
fn files_of(manifest: &Path) -> Result<Vec<PathBuf>, Failure> {
    let text = std::fs::read_to_string(manifest).map_err(|e| match e.kind() {
        ErrorKind::InvalidData => unreadable(manifest, "not a manifest: it is not text"),
        _ => unreadable(manifest, e),
    })?;
    let folder = manifest.parent().unwrap_or(Path::new("."));
    let (mut base, mut increments) = (Vec::new(), Vec::new());
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let malformed = || unreadable(manifest, format!("not a line of a manifest: {line:?}"));
        let value = |name: &str| {
            let at = words.iter().step_by(2).position(|word| *word == name)?;
            words.get(2 * at + 1).copied()
        };
        let (Some(file), Some(seq), Some(kind)) = (value("file"), value("seq"), value("type"))
        else {
            return Err(malformed());
        };
        let seq: u64 = seq.parse().map_err(|_| malformed())?;
        if file.contains('/') || file.contains('"') {
            return Err(malformed());
        }
        match kind {
            "b" => base.push(folder.join(file)),
            "i" => increments.push((seq, folder.join(file))),
            "h" => {}
            _ => return Err(malformed()),
        }
    }
    increments.sort();
    base.extend(increments.into_iter().map(|(_, file)| file));
    match base.is_empty() {
        true => Err(unreadable(manifest, "the manifest names no files")),
        false => Ok(base),
    }
}
