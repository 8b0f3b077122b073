//! `farbank pool backup`, `restore` and `import`.
//!
//! * This file: `backup`, of a running server over its protocol, or of a closed pool.
//! * `load`: `restore` and `import`. `source`: what they read. `aof`: append-only files.
//! * `output_file`: a file that gets its name when it is complete.

mod aof;
mod load;
mod output_file;
mod source;

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use farbank::store::VALUE_BYTES_MAX;
use farbank_server::rdb::library_codes;
use farbank_server::rdb::reader::{RdbEntry, RdbReader};
use farbank_server::rdb::writer::{RdbString, RdbWriter};
use farbank_server::resp::request;

pub(crate) use self::load::{ImportArgs, RestoreArgs};
use self::output_file::OutputFile;
use self::source::unreadable;
use crate::common::existing::{close, open_existing};
use crate::common::place::{ReadArgs, functions_file};
use crate::common::progress::CommandProgress;
use crate::common::{Failure, size};

/// How long a connection to a server may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Keys that one step of a backup scans.
const STEP_KEYS: usize = 512;
/// Length of the mark behind a copy of unknown length.
const MARK_BYTES: usize = 40;
/// Variable with the password of the server; redis-cli reads it, too.
const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";

/// Options of `pool backup`.
#[derive(Args)]
pub(crate) struct BackupArgs {
    /// What to back up: HOST:PORT of a running server (its password, if it has one, is in the environment variable
    /// REDISCLI_AUTH), or the path of a pool that no server has open.
    #[arg(value_name = "POOL|HOST:PORT")]
    from: String,
    /// The new backup: an RDB file, which Redis 7.0 can load, too.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace FILE if it exists, once the backup is complete.
    #[arg(long)]
    force: bool,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Accept a file system that is unsafe for pools: a shared one, or one that does not sync.
    #[arg(long)]
    accept_file_system: bool,
    #[command(flatten)]
    reading: ReadArgs,
}

/// What a backup has.
#[derive(Default)]
struct BackupFigures {
    keys: u64,
    bytes: u64,
    libraries: u64,
    /// Values that are no strings. Only a server that is not Farbank has some.
    others: u64,
    /// Damaged records that the backup lacks.
    damaged: u64,
}

impl BackupArgs {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let began = Instant::now();
        let output = OutputFile::create(&self.file, self.force)?;
        let pool = Path::new(&self.from);
        let figures = match is_server(&self.from) && !pool.exists() {
            true => self.copy_server(&output)?,
            false => self.copy_pool(pool, &output)?,
        };
        output.publish()?;
        let BackupFigures {
            keys,
            bytes,
            libraries,
            others,
            damaged,
        } = figures;
        let ms = began.elapsed().as_millis() as u64;
        if self.json {
            let object = serde_json::json!({
                "from": self.from, "file": self.file, "keys": keys, "file_bytes": bytes, "libraries": libraries,
                "other_values": others, "damaged": damaged, "ms": ms,
            });
            println!("{object}");
        } else {
            let (file, bytes, secs) = (self.file.display(), size::human(bytes), ms as f64 / 1000.0);
            println!("{file}: {keys} keys, {bytes}, in {secs:.1} s");
        }
        match damaged {
            0 => Ok(()),
            n => Err(Failure::failed(format!(
                "{n} values are damaged and are not in the backup"
            ))),
        }
    }

    /// Writes a backup of a closed pool.
    fn copy_pool(&self, path: &Path, output: &OutputFile) -> Result<BackupFigures, Failure> {
        let db = open_existing(path, self.accept_file_system, &self.reading)?;
        let written = self.write_pool(&db, path, output);
        close(db)?;
        written
    }

    fn write_pool(
        &self,
        db: &farbank::Db,
        path: &Path,
        output: &OutputFile,
    ) -> Result<BackupFigures, Failure> {
        let mut figures = BackupFigures::default();
        let of = |e: io::Error| unreadable(&self.file, e);
        let mut backup = db.store().backup().map_err(Failure::failed)?;
        let aux = [
            ("redis-bits", "64"),
            ("farbank-ver", env!("CARGO_PKG_VERSION")),
        ];
        let mut writer = RdbWriter::new(&output.file, true, &aux).map_err(of)?;
        for code in libraries_of(path)? {
            writer.library(&code).map_err(of)?;
            figures.libraries += 1;
        }
        let keys = backup.keys();
        for (db, count) in (0_u32..).zip(keys).filter(|(_, count)| *count > 0) {
            writer.database(db, count, 0).map_err(of)?;
        }
        let live_bytes = db.store().stats().pool.live_bytes;
        let mut progress = CommandProgress::new("backing up");
        let (mut read, mut failure, mut goes_on) = (0, None, true);
        while goes_on {
            let step = backup.step(STEP_KEYS, &mut |key, item| {
                figures.keys += 1;
                read += (key.bytes.len() + item.bytes.len()) as u64;
                if failure.is_some() {
                    return;
                }
                failure = writer.string(&RdbString::of(key, item)).err();
            });
            goes_on = step.map_err(Failure::failed)?;
            if let Some(error) = failure.take() {
                return Err(of(error));
            }
            progress.show(read, live_bytes.max(read));
        }
        progress.clear();
        figures.damaged = backup.damaged();
        figures.bytes = writer.finish().map_err(of)?.1;
        Ok(figures)
    }

    /// Receives a copy from a running server, and checks it.
    fn copy_server(&self, output: &OutputFile) -> Result<BackupFigures, Failure> {
        let of = |e: io::Error| Failure::failed(format!("{}: {e}", self.from));
        let stream = connect(&self.from)?;
        let mut input = BufReader::with_capacity(256 << 10, &stream);
        if let Some(password) = std::env::var_os(PASSWORD_VARIABLE) {
            let password = password.into_encoded_bytes();
            self.ask(&mut input, &[b"AUTH", &password])?;
        }
        self.ask(&mut input, &[b"REPLCONF", b"rdb-only", b"1"])?;
        send(&stream, &[b"SYNC"]).map_err(of)?;
        let line = self.line(&mut input)?;
        let mut progress = CommandProgress::new("receiving");
        let mut out = &output.file;
        if let Some(mark) = line.strip_prefix("$EOF:") {
            receive_marked(&mut input, mark.as_bytes(), &mut out).map_err(of)?;
        } else {
            let bytes = line.strip_prefix('$').and_then(|bytes| bytes.parse().ok());
            let Some(bytes) = bytes else {
                return Err(self.unexpected(&line));
            };
            receive(&mut input, bytes, &mut out, &mut progress).map_err(of)?;
        }
        progress.clear();
        self.verify(output)
    }

    /// Sends a command that must succeed.
    fn ask(&self, input: &mut BufReader<&TcpStream>, words: &[&[u8]]) -> Result<(), Failure> {
        let of = |e: io::Error| Failure::failed(format!("{}: {e}", self.from));
        send(input.get_ref(), words).map_err(of)?;
        let line = self.line(input)?;
        match line.starts_with('+') {
            true => Ok(()),
            false => Err(self.unexpected(&line)),
        }
    }

    /// Reads a line. A server sends empty lines while the client waits for a copy.
    fn line(&self, input: &mut BufReader<&TcpStream>) -> Result<String, Failure> {
        loop {
            let mut line = Vec::new();
            let mut limited = input.by_ref().take(64 << 10);
            let read = limited.read_until(b'\n', &mut line);
            read.map_err(|e| Failure::failed(format!("{}: {e}", self.from)))?;
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if line.is_empty() {
                return Err(self.unexpected("the end of the connection"));
            }
            if !text.is_empty() {
                return Ok(text);
            }
        }
    }

    fn unexpected(&self, line: &str) -> Failure {
        let what: String = line.chars().take(200).collect();
        let needs_password = what.starts_with("-NOAUTH") || what.starts_with("-WRONGPASS");
        Failure::Failed {
            error: format!("{}: the server replies: {what}", self.from),
            hint: needs_password.then(|| {
                format!("set the environment variable {PASSWORD_VARIABLE} to its password")
            }),
        }
    }

    /// Reads the received file from its beginning and verifies its checksum.
    fn verify(&self, output: &OutputFile) -> Result<BackupFigures, Failure> {
        let mut file = &output.file;
        let mut figures = BackupFigures::default();
        file.seek(SeekFrom::Start(0))
            .map_err(|e| unreadable(&self.file, e))?;
        let of = |e| unreadable(&self.file, e);
        let mut reader = RdbReader::new(BufReader::new(file), VALUE_BYTES_MAX).map_err(of)?;
        while let Some(entry) = reader.next_entry().map_err(of)? {
            match entry {
                RdbEntry::String(_) => figures.keys += 1,
                RdbEntry::Other { .. } => figures.others += 1,
                RdbEntry::Library(_) => figures.libraries += 1,
                RdbEntry::Aux(..) => {}
            }
        }
        figures.bytes = reader.position();
        Ok(figures)
    }
}

/// Returns whether `text` looks like HOST:PORT.
fn is_server(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    !text.contains('/')
        && parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

fn connect(address: &str) -> Result<TcpStream, Failure> {
    let of = |e: io::Error| Failure::failed(format!("{address}: cannot connect: {e}"));
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in address.to_socket_addrs().map_err(of)? {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(of(last))
}

fn send(mut stream: &TcpStream, words: &[&[u8]]) -> io::Result<()> {
    let mut out = Vec::new();
    request(&mut out, words);
    stream.write_all(&out)
}

/// Receives `bytes` bytes.
fn receive(
    input: &mut impl BufRead,
    bytes: u64,
    out: &mut impl Write,
    progress: &mut CommandProgress,
) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let found = input.fill_buf()?;
        if found.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let count = found.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        out.write_all(&found[..count])?;
        input.consume(count);
        left -= count as u64;
        progress.show(bytes - left, bytes);
    }
    Ok(())
}

/// Receives bytes until `mark`, which is not written.
fn receive_marked(input: &mut impl BufRead, mark: &[u8], out: &mut impl Write) -> io::Result<()> {
    if mark.len() != MARK_BYTES {
        return Err(io::Error::other(
            "the mark behind the copy has not 40 bytes",
        ));
    }
    let mut tail: Vec<u8> = Vec::new();
    loop {
        let found = input.fill_buf()?;
        let count = found.len();
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        tail.extend_from_slice(found);
        input.consume(count);
        if tail.ends_with(mark) {
            return out.write_all(&tail[..tail.len() - MARK_BYTES]);
        }
        let ready = tail.len().saturating_sub(MARK_BYTES);
        out.write_all(&tail[..ready])?;
        tail.drain(..ready);
    }
}

/// Returns the code of the libraries of a pool.
fn libraries_of(pool: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let file = functions_file(pool);
    match std::fs::read(&file) {
        Ok(payload) => library_codes(&payload)
            .ok_or_else(|| unreadable(&file, "the file of libraries is damaged")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(unreadable(&file, error)),
    }
}
