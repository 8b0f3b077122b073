//! MIGRATE: moves keys to another server.
//!
//! ```text
//!   here ── AUTH, SELECT ──▶ target    for each batch of keys:
//!        ── RESTORE key ttl payload ──▶      values are read, no lock is held
//!        ◀── OK ──                           the target has the value
//!        delete, if the key is unchanged     the reply to the client waits until this is durable
//! ```
//!
//! The command waits for another server, so only the thread of long requests executes it, and never inside a group
//! (`flag::ALONE`). Each wait ends after the request's timeout, and soon after the server begins to stop. Other long requests wait meanwhile.
//!
//! # Invariants
//! SRV-MIGRATE-1  A key is deleted only after the target has acknowledged its value, and only if its version is still the
//!     one that was sent. So a crash, or a write of another client, leaves the key here, or at both servers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use farbank_store::{Key, ReadView, UpdateDecision};

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX, WRONG_TYPE};
use super::text;
use super::values::STRING;
use crate::exec_context::StoreAccess;
use crate::protocol::resp::number::{DecimalText, parse_i64};
use crate::protocol::resp::{Args, reply, request};
use crate::rdb::dump_string;
use crate::state::threads::ServerThreads;

/// Milliseconds of the timeout if the request has none.
const DEFAULT_TIMEOUT_MS: i64 = 1000;
/// Longest wait before the thread checks whether the server stops.
const SLICE: Duration = Duration::from_millis(200);
/// Longest attempt to connect before the thread checks whether the server stops.
const CONNECT_SLICE: Duration = Duration::from_secs(3);
/// Keys, and bytes of their payloads, that are sent before their replies are read.
const BATCH_KEYS: usize = 64;
const BATCH_BYTES: usize = 1 << 20;
/// Most bytes of a line that the target sends.
const LINE_BYTES_MAX: usize = 1024;
/// Bytes that are written at once.
const CHUNK_BYTES: usize = 64 << 10;

const CANNOT_CONNECT: CommandError =
    CommandError::Fixed("IOERR error or timeout connecting to the client");
const CANNOT_WRITE: CommandError =
    CommandError::Fixed("IOERR error or timeout writing to target instance");
const CANNOT_READ: CommandError =
    CommandError::Fixed("IOERR error or timeout reading from target instance");

/// A parsed request.
struct Migration<'a> {
    host: &'a [u8],
    port: &'a [u8],
    db: i64,
    timeout: Duration,
    /// The keys stay here.
    copies: bool,
    /// Values of the target are replaced.
    replaces: bool,
    /// The arguments of AUTH.
    credentials: Vec<&'a [u8]>,
    keys: Vec<&'a [u8]>,
}

impl<'a> Migration<'a> {
    fn parse(args: Args<'a>) -> Result<Migration<'a>, CommandError> {
        let (mut copies, mut replaces) = (false, false);
        let (mut credentials, mut keys) = (Vec::new(), vec![args.at(3)]);
        let mut at = 6;
        while let Some(option) = args.get(at) {
            let values = args.len() - at - 1;
            match text::option(option).as_slice() {
                b"copy" => copies = true,
                b"replace" => replaces = true,
                b"auth" if values >= 1 => credentials = vec![args.at(at + 1)],
                b"auth2" if values >= 2 => credentials = vec![args.at(at + 1), args.at(at + 2)],
                b"keys" if !args.at(3).is_empty() => {
                    return Err(CommandError::Fixed(
                        "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
                    ));
                }
                b"keys" => {
                    keys = args.from(at + 1).collect();
                    break;
                }
                _ => return Err(SYNTAX),
            }
            let is_auth = text::is_option(option, "auth") || text::is_option(option, "auth2");
            at += 1 + if is_auth { credentials.len() } else { 0 };
        }
        let timeout_ms = parse_i64(args.at(5)).ok_or(NOT_INTEGER)?;
        let db = parse_i64(args.at(4)).ok_or(NOT_INTEGER)?;
        let timeout_ms = if timeout_ms > 0 {
            timeout_ms
        } else {
            DEFAULT_TIMEOUT_MS
        };
        Ok(Migration {
            host: args.at(1),
            port: args.at(2),
            db,
            timeout: Duration::from_millis(timeout_ms.unsigned_abs()),
            copies,
            replaces,
            credentials,
            keys,
        })
    }
}

/// The connection to the target.
struct TargetConnection<'a> {
    stream: TcpStream,
    timeout: Duration,
    threads: &'a dyn ServerThreads,
    received: Vec<u8>,
}

/// The first digits of `port`, as C's `atoi` reads them.
fn port_number(port: &[u8]) -> Option<u16> {
    let digits = port.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&port[..digits]).ok()?.parse().ok()
}

impl<'a> TargetConnection<'a> {
    fn open(
        migration: &Migration<'_>,
        threads: &'a dyn ServerThreads,
    ) -> Result<TargetConnection<'a>, CommandError> {
        let host = std::str::from_utf8(migration.host).map_err(|_| CANNOT_CONNECT)?;
        let port = port_number(migration.port).ok_or(CANNOT_CONNECT)?;
        let mut addresses = (host, port).to_socket_addrs().map_err(|_| CANNOT_CONNECT)?;
        let address = addresses.next().ok_or(CANNOT_CONNECT)?;
        let start = Instant::now();
        let stream = loop {
            let left = migration.timeout.saturating_sub(start.elapsed());
            if left.is_zero() || threads.is_stopping() {
                return Err(CANNOT_CONNECT);
            }
            match TcpStream::connect_timeout(&address, left.min(CONNECT_SLICE)) {
                Ok(stream) => break stream,
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                // Redis meets this error when it writes.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return Err(CANNOT_WRITE);
                }
                Err(_) => return Err(CANNOT_CONNECT),
            }
        };
        let configured = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(SLICE)))
            .and_then(|()| stream.set_write_timeout(Some(SLICE)));
        configured.map_err(|_| CANNOT_CONNECT)?;
        Ok(TargetConnection {
            stream,
            timeout: migration.timeout,
            threads,
            received: Vec::new(),
        })
    }

    /// Calls `step` until it succeeds, fails, or the timeout has passed.
    fn repeat<R>(
        &mut self,
        mut step: impl FnMut(&mut TcpStream) -> io::Result<R>,
    ) -> io::Result<R> {
        let start = Instant::now();
        loop {
            match step(&mut self.stream) {
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                other => return other,
            }
            if start.elapsed() >= self.timeout || self.threads.is_stopping() {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), CommandError> {
        while !bytes.is_empty() {
            let chunk = &bytes[..bytes.len().min(CHUNK_BYTES)];
            match self.repeat(|stream| stream.write(chunk)) {
                Ok(written) if written > 0 => bytes = &bytes[written..],
                _ => return Err(CANNOT_WRITE),
            }
        }
        Ok(())
    }

    /// Reads the line of a reply.
    fn line(&mut self) -> Result<Vec<u8>, CommandError> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.received.drain(..=end).collect();
                line.truncate(line.trim_ascii_end().len());
                return Ok(line);
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(CANNOT_READ);
            }
            let mut buffer = [0; LINE_BYTES_MAX];
            match self.repeat(|stream| stream.read(&mut buffer)) {
                Ok(count) if count > 0 => self.received.extend_from_slice(&buffer[..count]),
                _ => return Err(CANNOT_READ),
            }
        }
    }

    /// Reads a reply that must be no error.
    fn expect_no_error(&mut self) -> Result<(), CommandError> {
        let line = self.line()?;
        match line.strip_prefix(b"-") {
            None => Ok(()),
            Some(error) => Err(CommandError::Detailed(
                [b"ERR Target instance replied with error: ", error].concat(),
            )),
        }
    }

    /// Authenticates, and selects the database.
    fn prepare(&mut self, migration: &Migration<'_>) -> Result<(), CommandError> {
        let mut bytes = Vec::new();
        if !migration.credentials.is_empty() {
            let mut words: Vec<&[u8]> = vec![b"AUTH"];
            words.extend(&migration.credentials);
            request(&mut bytes, &words);
            self.send(&bytes)?;
            self.expect_no_error()?;
            bytes.clear();
        }
        let db = DecimalText::new(migration.db);
        request(&mut bytes, &[b"SELECT", db.as_bytes()]);
        self.send(&bytes)?;
        self.expect_no_error()
    }
}

/// A value that was sent, and its version here.
struct SentKey<'a> {
    key: Key<'a>,
    version: u64,
}

/// `MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH password|AUTH2 user password] [KEYS key ...]`
pub(super) fn migrate(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let migration = Migration::parse(args)?;
    if !matches!(ctx.store, StoreAccess::Session(_)) {
        return Err(CommandError::Fixed(
            "ERR MIGRATE waits for another server, so no script can call it",
        ));
    }
    if !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let mut present = Vec::new();
    for bytes in &migration.keys {
        let key = ctx.key(bytes);
        let is_there = ctx.ops().meta(key, ReadView::Pending)?.is_some();
        ctx.count_lookup(key, is_there);
        if is_there {
            present.push(key);
        }
    }
    if present.is_empty() {
        reply::simple(ctx.out, "NOKEY");
        return Ok(());
    }
    let mut target = TargetConnection::open(&migration, ctx.shared.threads)?;
    target.prepare(&migration)?;
    let (mut left, mut outcome) = (present.as_slice(), Ok(()));
    while !left.is_empty() {
        let sent = send_batch(ctx, &migration, &mut target, &mut left)?;
        for sent in sent {
            // As in Redis, the first error is the reply, and the other keys are moved.
            let moved = match target.expect_no_error() {
                Ok(()) if !migration.copies => delete_sent(ctx, &sent),
                Err(error @ CommandError::Fixed(_)) => return outcome.and(Err(error)),
                other => other,
            };
            outcome = outcome.and(moved);
        }
    }
    outcome?;
    reply::ok(ctx.out);
    Ok(())
}

/// Sends the first keys of `left`, and removes them there. Keys that have expired meanwhile are not sent.
fn send_batch<'k>(
    ctx: &mut CommandContext<'_>,
    migration: &Migration<'_>,
    target: &mut TargetConnection<'_>,
    left: &mut &[Key<'k>],
) -> Result<Vec<SentKey<'k>>, CommandError> {
    let (mut sent, mut bytes) = (Vec::new(), 0);
    while let Some((&key, rest)) = left.split_first() {
        if sent.len() >= BATCH_KEYS || bytes >= BATCH_BYTES {
            break;
        }
        *left = rest;
        let (mut value, mut found) = (Vec::new(), None);
        let view = ReadView::Pending;
        ctx.ops().get(key, view, &mut value, &mut |meta, out| {
            found = Some(*meta);
            out.reserve(meta.value_bytes);
            meta.type_of() == STRING
        })?;
        let Some(meta) = found else {
            continue;
        };
        if meta.type_of() != STRING {
            return Err(WRONG_TYPE);
        }
        let ttl = match meta.expires_ms {
            0 => 0,
            moment => moment.saturating_sub(ctx.ops().now_ms()).max(1),
        };
        let payload = dump_string(&value);
        drop(value);
        let ttl = DecimalText::unsigned(ttl);
        let mut words: Vec<&[u8]> = vec![b"RESTORE", key.bytes, ttl.as_bytes(), &payload];
        if migration.replaces {
            words.push(b"REPLACE");
        }
        let mut message = Vec::new();
        request(&mut message, &words);
        bytes += message.len();
        target.send(&message)?;
        let version = meta.version;
        sent.push(SentKey { key, version });
    }
    Ok(sent)
}

/// Deletes a key that the target has acknowledged (SRV-MIGRATE-1).
fn delete_sent(ctx: &mut CommandContext<'_>, sent: &SentKey<'_>) -> Result<(), CommandError> {
    let (mut deleted, mut is_changed) = (false, false);
    ctx.update(sent.key, &mut |item| {
        deleted = item.is_some_and(|item| item.meta.version == sent.version);
        is_changed = item.is_some() && !deleted;
        match deleted {
            true => UpdateDecision::Delete,
            false => UpdateDecision::Keep,
        }
    })?;
    if is_changed {
        return Err(CommandError::Detailed(
            b"ERR the key was written while it was moved: it is kept here, and the target has its earlier value".to_vec(),
        ));
    }
    if deleted {
        ctx.notify_generic("del", sent.key);
    }
    Ok(())
}
