//! Reads the commands of an append-only file of Redis, and executes them on a pool.
//!
//! The commands are executed by a server inside this process, on a socket that no other process can reach. So each has
//! the effect that it has for a client, and a command that the server does not have is found by its name.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farbank::Db;
use farbank_server::resp::request;
use farbank_server::{Server, ServerOptions, UnixSocket, WireProtocol, has_command};

use crate::common::Failure;

/// Longest argument of a command, and most arguments.
const ARGUMENT_BYTES_MAX: u64 = 512 << 20;
const ARGUMENTS_MAX: u64 = 1 << 20;
/// Longest line.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Bytes of an argument that are read at a time.
const PIECE_BYTES: usize = 64 << 10;
/// How long the server inside this process may take to start.
const START_MAX: Duration = Duration::from_secs(30);
/// Replies that are errors and are shown.
const ERRORS_SHOWN: usize = 5;

/// Reads commands from `R`.
pub(super) struct CommandReader<R> {
    input: R,
    at: u64,
    line: Vec<u8>,
}

/// What follows in an append-only file.
pub(super) enum NextCommand {
    /// A command, with its name and its arguments.
    Words(Vec<Vec<u8>>),
    /// The file ends between two commands.
    End,
    /// The file ends within a command.
    Truncated,
}

impl<R: BufRead> CommandReader<R> {
    pub(super) fn new(input: R) -> CommandReader<R> {
        CommandReader {
            input,
            at: 0,
            line: Vec::new(),
        }
    }

    /// Bytes that were read so far.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    fn malformed<T>(&self, expected: &str) -> Result<T, Failure> {
        Err(Failure::failed(format!(
            "the append-only file is damaged near byte {}: expected {expected}",
            self.at
        )))
    }

    /// Reads a line without its end. Returns false at the end of the file.
    fn read_line(&mut self) -> Result<bool, Failure> {
        self.line.clear();
        let mut limited = io::Read::take(&mut self.input, LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut self.line);
        let read = read.map_err(Failure::failed)?;
        self.at += read as u64;
        if self.line.ends_with(b"\r\n") {
            self.line.truncate(read - 2);
            return Ok(true);
        }
        match read as u64 == LINE_BYTES_MAX || self.line.ends_with(b"\n") {
            true => self.malformed("the end of a line"),
            false => Ok(false),
        }
    }

    /// Returns the number in the line behind `mark`.
    fn number(&self, mark: u8, most: u64) -> Result<u64, Failure> {
        let digits = self.line.strip_prefix(&[mark]);
        let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        match number.filter(|number| *number <= most) {
            Some(number) => Ok(number),
            None => self.malformed("the length of a command or an argument"),
        }
    }

    /// Returns the next command.
    pub(super) fn next(&mut self) -> Result<NextCommand, Failure> {
        loop {
            if !self.read_line()? {
                return Ok(match self.line.is_empty() {
                    true => NextCommand::End,
                    false => NextCommand::Truncated,
                });
            }
            if !self.line.starts_with(b"#") {
                break; // Lines with # are notes, for example the time.
            }
        }
        let count = self.number(b'*', ARGUMENTS_MAX)?;
        let mut words = Vec::new();
        for _ in 0..count {
            if !self.read_line()? {
                return Ok(NextCommand::Truncated);
            }
            let len = self.number(b'$', ARGUMENT_BYTES_MAX)? as usize;
            let Some(word) = self.read_word(len)? else {
                return Ok(NextCommand::Truncated);
            };
            words.push(word);
        }
        match words.is_empty() {
            true => self.malformed("a command with a name"),
            false => Ok(NextCommand::Words(words)),
        }
    }

    /// Reads an argument and the end of its line. `None`: the file ends within them.
    fn read_word(&mut self, len: usize) -> Result<Option<Vec<u8>>, Failure> {
        let mut word = Vec::new();
        let total = len + 2;
        while word.len() < total {
            let from = word.len();
            word.resize(total.min(from + PIECE_BYTES), 0);
            match self.input.read_exact(&mut word[from..]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(Failure::failed(error)),
            }
            self.at += (word.len() - from) as u64;
        }
        if !word.ends_with(b"\r\n") {
            return self.malformed("the end of an argument");
        }
        word.truncate(len);
        Ok(Some(word))
    }
}

/// What a pass over the commands of a file has found.
#[derive(Default)]
pub(super) struct CommandCounts {
    pub(super) commands: u64,
    /// Commands that the server does not have, by name.
    pub(super) unsupported: BTreeMap<String, u64>,
    pub(super) is_truncated: bool,
}

/// Counts the commands of `input`.
pub(super) fn count(input: impl BufRead, counts: &mut CommandCounts) -> Result<(), Failure> {
    let mut reader = CommandReader::new(input);
    loop {
        match reader.next()? {
            NextCommand::Words(words) if has_command(&words[0]) => counts.commands += 1,
            NextCommand::Words(words) => {
                let name = words[0].escape_ascii().to_string().to_uppercase();
                *counts.unsupported.entry(name).or_default() += 1;
            }
            NextCommand::End => return Ok(()),
            NextCommand::Truncated => {
                counts.is_truncated = true;
                return Ok(());
            }
        }
    }
}

/// What the execution of commands has come to.
#[derive(Default)]
pub(super) struct ExecutedCommands {
    pub(super) commands: u64,
    /// Commands that the server has refused.
    pub(super) refused: u64,
}

/// Executes commands on a pool, on one connection.
pub(super) struct CommandExecutor<'a> {
    stream: &'a UnixStream,
    out: Vec<u8>,
    sent: u64,
}

impl CommandExecutor<'_> {
    /// Executes the commands of `input` that the server has.
    pub(super) fn execute(
        &mut self,
        input: impl BufRead,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        let mut reader = CommandReader::new(input);
        while let NextCommand::Words(words) = reader.next()? {
            if has_command(&words[0]) {
                request(&mut self.out, &words);
                self.sent += 1;
            }
            if self.out.len() >= PIECE_BYTES {
                self.flush()?;
                progress(reader.position());
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let written = self.stream.write_all(&self.out);
        self.out.clear();
        written.map_err(|e| Failure::failed(format!("the server inside this process: {e}")))
    }
}

/// Runs `body` with an executor of commands on `db`.
pub(super) fn with_executor(
    db: &Db,
    functions_file: Option<PathBuf>,
    body: impl FnOnce(&mut CommandExecutor<'_>) -> Result<(), Failure>,
) -> Result<ExecutedCommands, Failure> {
    let folder = std::env::temp_dir().join(format!("farbank-import-{}", std::process::id()));
    let of = |error: io::Error| Failure::failed(format!("{}: {error}", folder.display()));
    std::fs::DirBuilder::new().create(&folder).map_err(of)?;
    let _removed = RemovedFolder(&folder);
    let path = folder.join("socket");
    let options = ServerOptions {
        workers: 1,
        functions_file,
        unix_sockets: vec![UnixSocket {
            path: path.clone(),
            mode: 0o600,
            protocol: WireProtocol::Resp,
        }],
        ..ServerOptions::default()
    };
    let server = Server::bind(&[], options).map_err(Failure::failed)?;
    let handle = server.handle();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.run(db.store()));
        let executed = connect(&path).and_then(|stream| drive(&stream, body));
        handle.stop();
        match running.join() {
            Ok(ran) => ran.map_err(Failure::failed)?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        executed
    })
}

/// Removes the folder of the socket.
struct RemovedFolder<'a>(&'a Path);

impl Drop for RemovedFolder<'_> {
    fn drop(&mut self) {
        std::fs::remove_dir_all(self.0).ok(); // It is in the folder of temporary files.
    }
}

fn connect(path: &Path) -> Result<UnixStream, Failure> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if begun.elapsed() > START_MAX => return Err(Failure::failed(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Sends the commands of `body`, and reads the replies at the same time.
fn drive(
    stream: &UnixStream,
    body: impl FnOnce(&mut CommandExecutor<'_>) -> Result<(), Failure>,
) -> Result<ExecutedCommands, Failure> {
    std::thread::scope(|scope| {
        let replies = scope.spawn(|| read_replies(BufReader::new(stream)));
        let mut executor = CommandExecutor {
            stream,
            out: Vec::new(),
            sent: 0,
        };
        let sent = body(&mut executor);
        let ended = stream.shutdown(std::net::Shutdown::Write);
        let replies = replies.join();
        sent?;
        ended.map_err(Failure::failed)?;
        let replies = match replies {
            Ok(replies) => replies.map_err(Failure::failed)?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        if replies.commands != executor.sent {
            return Err(Failure::failed(format!(
                "the server inside this process has executed {} of {} commands",
                replies.commands, executor.sent
            )));
        }
        Ok(replies)
    })
}

/// Reads replies until the end of the stream. Prints the first errors.
fn read_replies(mut input: impl BufRead) -> io::Result<ExecutedCommands> {
    let mut executed = ExecutedCommands::default();
    loop {
        let (mut values, mut refused) = (1_u64, None);
        while values > 0 {
            let mut line = Vec::new();
            if input.read_until(b'\n', &mut line)? == 0 {
                return Ok(executed);
            }
            values -= 1;
            let number = std::str::from_utf8(&line[1..])
                .map_or("", str::trim_end)
                .parse();
            let number: i64 = number.unwrap_or(0);
            match line[0] {
                b'-' => refused = Some(line),
                b'$' if number >= 0 => {
                    let bytes = number as u64 + 2;
                    io::copy(&mut io::Read::take(&mut input, bytes), &mut io::sink())?;
                }
                b'*' => values += u64::try_from(number).unwrap_or(0),
                _ => {}
            }
        }
        executed.commands += 1;
        if let Some(line) = refused {
            if executed.refused < ERRORS_SHOWN as u64 {
                let text = line.strip_suffix(b"\r\n").unwrap_or(&line);
                let number = executed.commands;
                eprintln!("warning: command {number}: {}", text.escape_ascii());
            }
            executed.refused += 1;
        }
    }
}
