//! `farbank pool restore` and `farbank pool import`: load a file into a pool.
//!
//! The source is read twice: first to check it, so that an error in it is found before anything is written. A new pool
//! is filled under another name, and gets its own when it is complete.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use farbank::store::{DATABASES, Error, KEY_BYTES_MAX, Key, Session, VALUE_BYTES_MAX, Value};
use farbank::{Db, Options, open as open_pool};
use farbank_pm::media::sync_folder;
use farbank_server::rdb::library_payload;
use farbank_server::rdb::reader::{RdbEntry, RdbReader};
use farbank_server::rdb::writer::RdbString;

use super::aof::{ExecutedCommands, with_executor};
use super::output_file::OutputFile;
use super::source::{Inspection, Source, is_rdb, now_ms, open, unreadable};
use crate::common::existing::{close, open_existing};
use crate::common::place::{ReadArgs, functions_file, not_opened, refused};
use crate::common::progress::CommandProgress;
use crate::common::{Failure, size};

/// Values that are written between two commits, and their bytes.
const BATCH_KEYS: usize = 1000;
const BATCH_BYTES: usize = 4 << 20;
/// Smallest size of a new pool if `--size` is not given.
const SIZE_MIN: u64 = 64 << 20;

/// Options that `pool restore` and `pool import` share.
#[derive(Args)]
pub(crate) struct FillArgs {
    /// Size of a new pool. Default: twice the size of the data, at least 64mb.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Accept a file system that is unsafe for pools: a shared one, or one that does not sync.
    #[arg(long)]
    accept_file_system: bool,
    #[command(flatten)]
    reading: ReadArgs,
}

/// Options of `pool restore`.
#[derive(Args)]
pub(crate) struct RestoreArgs {
    /// The backup: an RDB file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The new pool.
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// If the pool exists, remove all its keys and libraries first.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    how: FillArgs,
}

/// Options of `pool import`.
#[derive(Args)]
pub(crate) struct ImportArgs {
    /// Data of Redis: an RDB file, an append-only file, or the folder or the manifest of append-only files.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The pool, usually a new one.
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// If the pool exists, keep its keys; those of the file replace keys with the same name.
    #[arg(long)]
    force: bool,
    /// Leave out what this store does not keep: values that are no strings, and commands about them.
    #[arg(long)]
    skip_unsupported: bool,
    #[command(flatten)]
    how: FillArgs,
}

/// What is loaded, and where.
struct Load<'a> {
    file: &'a Path,
    pool: &'a Path,
    how: &'a FillArgs,
    force: bool,
    /// Whether an existing pool is emptied first.
    empties: bool,
    skips_unsupported: bool,
}

impl RestoreArgs {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let load = Load {
            file: &self.file,
            pool: &self.pool,
            how: &self.how,
            force: self.force,
            empties: true,
            skips_unsupported: false,
        };
        load.run()
    }
}

impl ImportArgs {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let load = Load {
            file: &self.file,
            pool: &self.pool,
            how: &self.how,
            force: self.force,
            empties: false,
            skips_unsupported: self.skip_unsupported,
        };
        load.run()
    }
}

/// A new pool under another name, removed when dropped.
struct UnfinishedPool {
    path: PathBuf,
    is_complete: bool,
}

impl UnfinishedPool {
    fn of(pool: &Path) -> UnfinishedPool {
        let mut path = pool.as_os_str().to_owned();
        path.push(format!(".{}.loading", std::process::id()));
        UnfinishedPool {
            path: path.into(),
            is_complete: false,
        }
    }

    /// Gives the pool and its libraries their names. The libraries come first: a pool without them would be incomplete.
    fn publish(mut self, pool: &Path) -> Result<(), Failure> {
        let of = |e| unreadable(pool, e);
        let libraries = functions_file(&self.path);
        if libraries.exists() {
            std::fs::rename(&libraries, functions_file(pool)).map_err(of)?;
        }
        std::fs::rename(&self.path, pool).map_err(of)?;
        self.is_complete = true;
        sync_folder(pool).map_err(of)
    }
}

impl Drop for UnfinishedPool {
    fn drop(&mut self) {
        if !self.is_complete {
            for path in [&self.path, &functions_file(&self.path)] {
                std::fs::remove_file(path).ok(); // It may not exist yet.
            }
        }
    }
}

impl Load<'_> {
    fn run(&self) -> Result<(), Failure> {
        let began = Instant::now();
        let exists = self.pool.exists();
        if exists && !self.force {
            let what = match self.empties {
                true => "--force removes its keys first",
                false => "--force adds the keys to those of the pool",
            };
            return Err(Failure::Failed {
                error: format!("{}: the pool exists", self.pool.display()),
                hint: Some(what.into()),
            });
        }
        let source = Source::find(self.file)?;
        let inspection = source.inspect()?;
        self.check(&source, &inspection)?;
        let executed = match exists {
            true => {
                let (accept, reading) = (self.how.accept_file_system, &self.how.reading);
                let db = open_existing(self.pool, accept, reading)?;
                self.fill(db, self.pool, &source, &inspection)?
            }
            false => {
                let unfinished = UnfinishedPool::of(self.pool);
                let db = self.create(&unfinished.path, &source, &inspection)?;
                let executed = self.fill(db, &unfinished.path, &source, &inspection)?;
                unfinished.publish(self.pool)?;
                executed
            }
        };
        self.print(&source, &inspection, &executed, began);
        Ok(())
    }

    /// Refuses a source with parts that cannot be loaded.
    fn check(&self, source: &Source, inspection: &Inspection) -> Result<(), Failure> {
        let name = self.file.display();
        let is_rdb_only = inspection.commands.commands == 0;
        if self.empties && !(is_rdb_only && source.files.len() == 1) {
            return Err(Failure::Failed {
                error: format!("{name}: not a backup: it has commands behind the RDB file"),
                hint: Some("`farbank pool import` reads append-only files".into()),
            });
        }
        if let Some(what) = inspection.unsupported() {
            if !self.skips_unsupported {
                let hint = "`farbank pool import --skip-unsupported` leaves them out";
                return Err(Failure::Failed {
                    error: format!(
                        "{name}: this store keeps strings only, and found {what}; nothing was written"
                    ),
                    hint: Some(hint.into()),
                });
            }
            eprintln!("warning: {name}: left out {what}");
        }
        if inspection.commands.is_truncated {
            eprintln!(
                "warning: {name}: the last command is incomplete and was left out, as Redis does"
            );
        }
        Ok(())
    }

    fn create(&self, path: &Path, source: &Source, inspection: &Inspection) -> Result<Db, Failure> {
        let data = inspection.pool_bytes.max(source.bytes);
        let size = self.how.size.unwrap_or_else(|| {
            let size = data.saturating_mul(2).max(SIZE_MIN);
            size.next_multiple_of(1 << 20)
        });
        let options = Options {
            pool_bytes: size,
            read_by: self.how.reading.read_by,
            accept_file_system: self.how.accept_file_system,
            ..Options::default()
        };
        open_pool(path, &options).map_err(|error| match &error {
            farbank::OpenError::Medium(error) => refused(error),
            _ => not_opened(self.pool, &error, false),
        })
    }

    /// Loads the source into `db`, and closes it.
    fn fill(
        &self,
        db: Db,
        path: &Path,
        source: &Source,
        inspection: &Inspection,
    ) -> Result<ExecutedCommands, Failure> {
        let libraries = functions_file(path);
        let loaded = (|| {
            if self.empties {
                db.store().session().flush_all().map_err(Failure::failed)?;
            }
            self.load_libraries(&libraries, inspection)?;
            let mut progress = CommandProgress::new("loading");
            let mut done = 0;
            let mut executed = ExecutedCommands::default();
            for file in &source.files {
                let mut input = open(file)?;
                let mut show = |bytes| progress.show(done + bytes, source.bytes);
                if is_rdb(file, &mut input)? {
                    let reader = RdbReader::new(input, VALUE_BYTES_MAX);
                    let reader = reader.map_err(|e| unreadable(file, e))?;
                    input = load_rdb(&db, file, reader, &mut show)?;
                }
                let functions = path.is_file().then(|| libraries.clone());
                let more = with_executor(&db, functions, |executor| {
                    executor.execute(&mut input, &mut show)
                })?;
                executed.commands += more.commands;
                executed.refused += more.refused;
                done += std::fs::metadata(file).map_or(0, |meta| meta.len());
            }
            progress.clear();
            Ok(executed)
        })();
        close(db)?;
        loaded
    }

    fn load_libraries(&self, file: &Path, inspection: &Inspection) -> Result<(), Failure> {
        let has_some = !inspection.libraries.is_empty();
        if file.exists() && !self.empties {
            if has_some {
                let name = file.display();
                eprintln!(
                    "warning: {name}: the pool has libraries; those of the file were left out"
                );
            }
            return Ok(());
        }
        if !has_some {
            if file.exists() {
                std::fs::remove_file(file).map_err(|e| unreadable(file, e))?;
            }
            return Ok(());
        }
        let codes = inspection.libraries.iter().map(Vec::as_slice);
        let output = OutputFile::create(file, true)?;
        let written = std::io::Write::write_all(&mut &output.file, &library_payload(codes));
        written.map_err(|e| unreadable(file, e))?;
        output.publish()
    }

    fn print(
        &self,
        source: &Source,
        inspection: &Inspection,
        executed: &ExecutedCommands,
        began: Instant,
    ) {
        let Inspection {
            keys,
            expired,
            others,
            libraries,
            commands,
            ..
        } = inspection;
        let ms = began.elapsed().as_millis() as u64;
        let (pool, file) = (self.pool.display(), self.file.display());
        if self.how.json {
            let others: serde_json::Map<_, _> = others
                .iter()
                .map(|(what, (n, _))| (what.clone(), (*n).into()))
                .collect();
            let object = serde_json::json!({
                "pool": self.pool, "file": self.file, "file_bytes": source.bytes, "keys": keys,
                "expired": expired, "libraries": libraries.len(), "skipped": others,
                "commands": executed.commands, "commands_refused": executed.refused,
                "commands_skipped": commands.unsupported, "truncated": commands.is_truncated, "ms": ms,
            });
            println!("{object}");
            return;
        }
        let mut parts = vec![format!("{keys} keys")];
        for (count, what) in [
            (*expired, "expired keys left out"),
            (libraries.len() as u64, "libraries"),
            (executed.commands, "commands executed"),
            (executed.refused, "of them refused"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        let secs = ms as f64 / 1000.0;
        println!("{pool}: {} from {file}, in {secs:.1} s", parts.join(", "));
    }
}

/// Writes the strings of an RDB file. Returns the input behind it.
fn load_rdb<R: std::io::BufRead>(
    db: &Db,
    path: &Path,
    mut reader: RdbReader<R>,
    show: &mut dyn FnMut(u64),
) -> Result<R, Failure> {
    let mut session = db.store().session();
    let (mut keys, mut bytes) = (0, 0);
    let now_ms = now_ms();
    while let Some(entry) = reader.next_entry().map_err(|e| unreadable(path, e))? {
        let RdbEntry::String(found) = entry else {
            continue;
        };
        let is_expired = found.expires_ms != 0 && found.expires_ms <= now_ms;
        if is_expired || found.db as usize >= DATABASES || found.key.len() > KEY_BYTES_MAX {
            continue;
        }
        put(&mut *session, &found)?;
        keys += 1;
        bytes += found.key.len() + found.value.len();
        if keys >= BATCH_KEYS || bytes >= BATCH_BYTES {
            session.commit().map_err(not_stored)?;
            (keys, bytes) = (0, 0);
            show(reader.position());
        }
    }
    let ticket = session.commit().map_err(not_stored)?;
    session.wait(ticket).map_err(Failure::failed)?;
    Ok(reader.into_input())
}

fn put(session: &mut dyn Session, found: &RdbString<'_>) -> Result<(), Failure> {
    let key = Key {
        db: found.db as u8,
        bytes: found.key,
    };
    let value = Value {
        bytes: found.value,
        expires_ms: found.expires_ms,
        flags: found.flags,
        kind: found.kind,
    };
    session.put(key, value).map(drop).map_err(not_stored)
}

fn not_stored(error: Error) -> Failure {
    let hint = matches!(
        error,
        Error::Full | Error::ValueTooLong { .. } | Error::KeyTooLong { .. }
    );
    Failure::Failed {
        error: error.to_string(),
        hint: hint.then(|| "choose a larger pool with --size".into()),
    }
}
