//! Latency at a fixed rate: the time from when a request was due until its reply.
//!
//! ```text
//!   due      |    |    |    |    |    |    |        1 / rate apart, whatever the server does
//!   sent     |    |              | |  |    |
//!   answered  |    |              | |  |    |
//!   latency  -    -    -------------  -    -        a stall counts for every request that was due during it
//! ```
//!
//! A client that waits for a reply before it sends the next request omits the requests that it would have sent during
//! a stall ("coordinated omission"). Its percentiles hide stalls. Here requests are due at fixed times. One thread
//! sends them on a few connections in turn, as fast as the sockets accept them, and reads the replies.
//!
//! Both servers hold the same keys and get the same rate. The rate is a share of the saturation: what the slower
//! server answers when each connection has one request in flight. The servers take turns.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use farbank_check::child::append_command;
use farbank_pm::rng::Rng;
use hdrhistogram::Histogram;

use super::process::{MeasuredServer, ask_version};
use crate::figure::{Error, Figure, ProgressFn, Report, report_progress};
use crate::temp::TempFile;

pub use super::process::WriteDurability;

/// Longest latency that the histogram records. Longer latencies count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Significant digits of a recorded latency.
const DIGITS: u8 = 3;
/// One of this many requests is a SET.
const SET_ONE_IN: u64 = 10;
/// Requests in flight on a connection while keys are loaded.
const LOAD_DEPTH: u64 = 64;
/// Longest time a server may take for the outstanding replies after the last request was due.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a record in addition to key and value.
const RECORD_OVERHEAD: u64 = 28;
/// Alignment of records in bytes.
const RECORD_ALIGN: u64 = 16;
const KEY_BYTES: usize = 16;
/// Smallest pool in bytes.
const POOL_BYTES_MIN: u64 = 16 << 20;
/// Live share in percent of a pool that is not aged.
const LIVE_PERCENT: u64 = 20;
/// How many times each key is overwritten before an aged pool is measured.
const OVERWRITES: u64 = 3;
/// Reported percentiles, and whether Farbank's must be at most redis-server's.
const PERCENTILES: [(f64, &str, bool); 5] = [
    (50.0, "p50", false),
    (99.0, "p99", true),
    (99.9, "p99.9", true),
    (99.99, "p99.99", true),
    (100.0, "max", false),
];

/// Options of a measurement.
#[derive(Clone, Debug)]
pub struct OpenLoopOptions {
    /// Path of the `farbank` binary.
    pub farbank: PathBuf,
    /// Path of redis-server.
    pub redis: PathBuf,
    /// Number of keys. All are stored before the measurement.
    pub keys: u64,
    /// Size of a value in bytes.
    pub value_bytes: usize,
    /// Durability of writes.
    pub sync: WriteDurability,
    /// Rates in percent of the saturation.
    pub loads: Vec<u64>,
    /// Number of connections.
    pub connections: u64,
    /// Seconds at each rate, for each server.
    pub seconds: u64,
    /// Number of rounds that these seconds are divided into.
    pub rounds: u64,
    /// Live share of the pool in percent, after each key was overwritten three times. `None` measures a fresh pool.
    pub aged: Option<u64>,
    /// Path of Farbank's pool, which is created and removed. `None` places it on tmpfs, or in the directory for
    /// temporary files if it is synced.
    pub pool: Option<PathBuf>,
}

impl OpenLoopOptions {
    /// Returns the size of a pool of which the keys take the live share.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        let record = (RECORD_OVERHEAD + (KEY_BYTES + self.value_bytes) as u64)
            .next_multiple_of(RECORD_ALIGN);
        let percent = self.aged.unwrap_or(LIVE_PERCENT).max(1);
        let bytes = self.keys * record * 100 / percent;
        bytes.next_multiple_of(1 << 20).max(POOL_BYTES_MIN)
    }
}

/// Starts both servers, measures them in turns, and ends them.
///
/// # Errors
/// A server is missing, does not start, refuses a request or stops answering, or `watch` stopped the run.
pub fn run(options: &OpenLoopOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    ask_version(&options.redis, "redis-server")?;
    let folder = tempfile::tempdir().map_err(Error::doing("make a folder for the servers"))?;
    let pool = match (&options.pool, options.sync) {
        (Some(path), _) => path.clone(),
        (None, WriteDurability::None) => TempFile::on_tmpfs("open-loop")?,
        (None, WriteDurability::Everysec | WriteDurability::Always) => {
            folder.path().join("farbank.pool")
        }
    };
    let mut bench = OpenLoopBench {
        options,
        watch,
        done: 0,
    };
    bench.report_progress("starting the servers")?;
    let servers = [
        MeasuredServer::redis(&options.redis, options.sync, folder.path())?,
        MeasuredServer::farbank_for_open_loop(
            &options.farbank,
            &pool,
            options.pool_bytes(),
            options.sync,
        )?,
    ];
    let mut sides = Vec::new();
    for server in &servers {
        sides.push(OpenLoopClients::of(server, options)?);
    }
    for side in &mut sides {
        bench.load(side)?;
    }
    let mut report = Report::default();
    let mut saturation = f64::INFINITY;
    for side in &mut sides {
        let what = format!("saturation, {}", side.name);
        bench.report_progress(&what)?;
        let rate = side.saturate(Duration::from_secs(options.seconds.clamp(1, 5)))?;
        bench.done += 1;
        let figure = Figure::measured("open loop", what, rate);
        report.figures.push(figure.unit("a second"));
        saturation = saturation.min(rate);
    }
    for &load in &options.loads {
        let rate = (saturation * load as f64 / 100.0).max(1.0);
        let latencies = bench.compare(&mut sides, load, rate)?;
        report.figures.extend(figures(load, rate, &latencies));
    }
    report.notes.extend(notes(options, &mut sides)?);
    Ok(report)
}

/// Returns notes that explain the figures.
fn notes(options: &OpenLoopOptions, sides: &mut [OpenLoopClients]) -> Result<Vec<String>, Error> {
    let mut notes = vec![format!(
        "latency is the time from when a request was due until its reply; {} keys, values of {} bytes, one SET in {SET_ONE_IN}, sync {}, {} connections",
        options.keys,
        options.value_bytes,
        options.sync.name(),
        options.connections,
    )];
    if let Some(farbank) = sides.last_mut() {
        let info = farbank.info()?;
        let of = |name| value_in(&info, name).unwrap_or("unknown").to_owned();
        notes.push(format!(
            "Farbank's pool at the end: {} bytes live of {}, each byte a client wrote was written {} times",
            of("pool_live_bytes"),
            of("pool_bytes"),
            of("pool_write_amplification"),
        ));
    }
    Ok(notes)
}

/// Returns the value of a field of an INFO reply.
fn value_in<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| {
        let (found, value) = line.trim().split_once(':')?;
        (found == name).then_some(value)
    })
}

struct OpenLoopBench<'a, 'w> {
    options: &'a OpenLoopOptions,
    watch: ProgressFn<'w>,
    done: u64,
}

impl OpenLoopBench<'_, '_> {
    fn report_progress(&mut self, what: &str) -> Result<(), Error> {
        let options = self.options;
        let all = 4 + options.loads.len() as u64 * options.rounds * 2;
        report_progress(self.watch, what, self.done, all)
    }

    /// Stores every key. For an aged pool, overwrites every key several times.
    fn load(&mut self, side: &mut OpenLoopClients) -> Result<(), Error> {
        let what = format!("loading the keys, {}", side.name);
        let turns = self.options.aged.map_or(1, |_| 1 + OVERWRITES);
        for turn in 0..turns {
            side.store_all(turn, &mut || self.report_progress(&what))?;
        }
        self.done += 1;
        Ok(())
    }

    /// Runs both servers at one rate, in turns. Returns the latencies of each.
    fn compare(
        &mut self,
        sides: &mut [OpenLoopClients],
        load: u64,
        rate: f64,
    ) -> Result<Vec<Latencies>, Error> {
        let mut latencies = Vec::new();
        for _ in sides.iter() {
            latencies.push(Latencies::new()?);
        }
        let length = Duration::from_secs(self.options.seconds) / self.options.rounds as u32;
        for _ in 0..self.options.rounds {
            for (side, latencies) in sides.iter_mut().zip(&mut latencies) {
                self.report_progress(&format!("{load} % of saturation, {}", side.name))?;
                side.drive(rate, length, latencies)?;
                self.done += 1;
            }
        }
        Ok(latencies)
    }
}

/// Histogram of latencies, each measured from when its request was due.
struct Latencies(Histogram<u64>);

impl Latencies {
    fn new() -> Result<Latencies, Error> {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        let failed = |error| Error::Failed(format!("cannot make a histogram: {error}"));
        histogram.map(Latencies).map_err(failed)
    }

    /// Records a reply at `now` to a request that was due at `due`.
    fn record(&mut self, due: Duration, now: Duration) {
        let late = now.saturating_sub(due).as_nanos();
        self.0
            .saturating_record(u64::try_from(late).unwrap_or(LATENCY_NS_MAX));
    }

    fn at_us(&self, percentile: f64) -> f64 {
        self.0.value_at_quantile(percentile / 100.0) as f64 / 1e3
    }
}

/// Computes the figures of one rate. redis-server's latencies come first.
fn figures(load: u64, rate: f64, latencies: &[Latencies]) -> Vec<Figure> {
    let [theirs, ours] = latencies else {
        return Vec::new();
    };
    let name = |what: &str| format!("{load} % ({rate:.0} a second): {what}");
    let mut figures = Vec::new();
    for (percentile, text, is_bound) in PERCENTILES {
        let (theirs, ours) = (theirs.at_us(percentile), ours.at_us(percentile));
        let figure = |system: &str, value| {
            let name = name(&format!("{text}, {system}"));
            Figure::measured("open loop", name, value).unit("us")
        };
        let ratio = Figure::measured("open loop", name(&format!("{text}, ratio")), ours / theirs);
        figures.push(figure("redis-server", theirs));
        figures.push(figure("farbank", ours));
        figures.push(match is_bound {
            true => ratio.at_most(1.0),
            false => ratio,
        });
    }
    figures
}

/// Times at which requests are due: request n is due `n / rate` after the start.
struct SendSchedule {
    rate: f64,
    length: Duration,
    next: u64,
}

impl SendSchedule {
    fn new(rate: f64, length: Duration) -> SendSchedule {
        SendSchedule {
            rate,
            length,
            next: 0,
        }
    }

    /// Returns when the next request is due, or `None` after the end.
    fn peek(&self) -> Option<Duration> {
        let due = Duration::from_secs_f64(self.next as f64 / self.rate);
        (due < self.length).then_some(due)
    }

    /// Takes the next request if it is due at `now`.
    fn take(&mut self, now: Duration) -> Option<Duration> {
        let due = self.peek().filter(|due| *due <= now)?;
        self.next += 1;
        Some(due)
    }
}

/// Connections to one server.
struct OpenLoopClients {
    name: &'static str,
    connections: Vec<OpenLoopConnection>,
    keys: u64,
    value: Vec<u8>,
    rng: Rng,
}

impl OpenLoopClients {
    fn of(server: &MeasuredServer, options: &OpenLoopOptions) -> Result<OpenLoopClients, Error> {
        let connect = |_| OpenLoopConnection::new(server.name, server.port);
        let connections = (0..options.connections).map(connect);
        Ok(OpenLoopClients {
            name: server.name,
            connections: connections.collect::<Result<_, Error>>()?,
            keys: options.keys,
            value: vec![b'v'; options.value_bytes],
            rng: Rng::new(28),
        })
    }

    /// Queues a random request on connection `n`, due at `due`.
    fn send_request(&mut self, n: usize, due: Duration) {
        let key = key_of(self.rng.below(self.keys));
        let connection = &mut self.connections[n];
        match self.rng.below(SET_ONE_IN) {
            0 => connection.set(&key, &self.value),
            _ => connection.get(&key),
        }
        connection.due.push_back(due);
    }

    /// Stores every key once, in an order that depends on `turn`.
    fn store_all(
        &mut self,
        turn: u64,
        look: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut next = 0;
        let step = step_for(turn, self.keys);
        let mut place = 0;
        loop {
            let mut is_idle = true;
            for connection in &mut self.connections {
                while next < self.keys && (connection.due.len() as u64) < LOAD_DEPTH {
                    connection.set(&key_of(place), &self.value);
                    connection.due.push_back(Duration::ZERO);
                    place = (place + step) % self.keys;
                    next += 1;
                }
                is_idle &= connection.send_and_receive(&mut |_| ())? == 0;
            }
            let left = self.connections.iter().any(|c| !c.due.is_empty());
            if next == self.keys && !left {
                return Ok(());
            }
            if is_idle {
                look()?;
                thread::yield_now();
            }
        }
    }

    /// Returns the requests per second that are answered with one request in flight on each connection.
    fn saturate(&mut self, length: Duration) -> Result<f64, Error> {
        let start = Instant::now();
        let mut answered = 0;
        while start.elapsed() < length {
            let mut is_idle = true;
            for n in 0..self.connections.len() {
                if self.connections[n].due.is_empty() {
                    self.send_request(n, Duration::ZERO);
                }
                let got = self.connections[n].send_and_receive(&mut |_| ())?;
                answered += got;
                is_idle &= got == 0;
            }
            if is_idle {
                thread::yield_now();
            }
        }
        let rate = answered as f64 / start.elapsed().as_secs_f64();
        self.finish(start, &mut |_, _| ())?;
        Ok(rate)
    }

    /// Sends requests at `rate` for `length` and records their latencies.
    fn drive(
        &mut self,
        rate: f64,
        length: Duration,
        latencies: &mut Latencies,
    ) -> Result<(), Error> {
        let mut schedule = SendSchedule::new(rate, length);
        let start = Instant::now();
        let mut turn = 0;
        while schedule.peek().is_some() {
            while let Some(due) = schedule.take(start.elapsed()) {
                self.send_request(turn, due);
                // Sent at once, because the next request may be due much later.
                self.connections[turn].send()?;
                turn = (turn + 1) % self.connections.len();
            }
            let mut answered = 0;
            for connection in self.connections.iter_mut().filter(|c| !c.due.is_empty()) {
                answered += connection.send_and_receive(&mut |due| {
                    latencies.record(due, start.elapsed());
                })?;
            }
            if answered == 0 {
                thread::yield_now();
            }
        }
        self.finish(start, &mut |due, now| latencies.record(due, now))
    }

    /// Reads the outstanding replies.
    fn finish(
        &mut self,
        start: Instant,
        each: &mut dyn FnMut(Duration, Duration),
    ) -> Result<(), Error> {
        let since = Instant::now();
        while self.connections.iter().any(|c| !c.due.is_empty()) {
            for connection in &mut self.connections {
                connection.send_and_receive(&mut |due| each(due, start.elapsed()))?;
            }
            if since.elapsed() > DRAIN_TIMEOUT {
                let name = self.name;
                return Err(Error::Failed(format!(
                    "{name} did not send all replies within 30 s"
                )));
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Returns the server's INFO reply.
    fn info(&mut self) -> Result<String, Error> {
        let Some(connection) = self.connections.first_mut() else {
            return Ok(String::new());
        };
        connection.out.extend_from_slice(b"*1\r\n$4\r\nINFO\r\n");
        connection.due.push_back(Duration::ZERO);
        connection.kept_replies = Some(Vec::new());
        let start = Instant::now();
        self.finish(start, &mut |_, _| ())?;
        let kept = self.connections[0].kept_replies.take().unwrap_or_default();
        Ok(String::from_utf8_lossy(&kept).into_owned())
    }
}

/// Returns key number `n`. All keys have the same length.
fn key_of(n: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"key:000000000000";
    let (mut left, mut at) = (n, KEY_BYTES);
    while left > 0 && at > 4 {
        at -= 1;
        key[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    key
}

/// Returns a step that is coprime to `keys`, so that stepping visits each key once. Each turn has another step.
fn step_for(turn: u64, keys: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    if turn == 0 || keys < 3 {
        return 1;
    }
    let from = (keys as f64 * 0.618) as u64 + turn * 7_919;
    (from..).find(|step| gcd(*step, keys) == 1).unwrap_or(1)
}

/// One connection and its requests in flight, in order.
struct OpenLoopConnection {
    server: &'static str,
    stream: TcpStream,
    out: Vec<u8>,
    answers: Vec<u8>,
    /// When each request without a reply was due.
    due: VecDeque<Duration>,
    /// Collected replies, if they are needed.
    kept_replies: Option<Vec<u8>>,
}

impl OpenLoopConnection {
    fn new(server: &'static str, port: u16) -> Result<OpenLoopConnection, Error> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let doing = || Error::doing(format!("connect to {server}"));
        let stream = TcpStream::connect(address).map_err(doing())?;
        stream.set_nodelay(true).map_err(doing())?;
        stream.set_nonblocking(true).map_err(doing())?;
        Ok(OpenLoopConnection {
            server,
            stream,
            out: Vec::new(),
            answers: Vec::new(),
            due: VecDeque::new(),
            kept_replies: None,
        })
    }

    fn get(&mut self, key: &[u8]) {
        self.request(&[b"GET", key]);
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        self.request(&[b"SET", key, value]);
    }

    fn request(&mut self, words: &[&[u8]]) {
        append_command(&mut self.out, words);
    }

    /// Sends as much as the socket accepts.
    fn send(&mut self) -> Result<(), Error> {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(())
    }

    /// Sends and receives as much as the socket allows. Calls `each` for every reply with the time at which its
    /// request was due. Returns the number of replies.
    fn send_and_receive(&mut self, each: &mut dyn FnMut(Duration)) -> Result<u64, Error> {
        self.send()?;
        let mut buffer = [0; 16 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.broken(&ErrorKind::UnexpectedEof.into())),
                Ok(got) => {
                    self.answers.extend_from_slice(&buffer[..got]);
                    if got < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        let (mut from, mut answered) = (0, 0);
        while let Some(len) = answer_len(&self.answers[from..]) {
            let answer = &self.answers[from..from + len];
            if answer.starts_with(b"-") {
                let text = String::from_utf8_lossy(answer);
                let server = self.server;
                return Err(Error::Failed(format!("{server} answered {}", text.trim())));
            }
            if let Some(kept) = &mut self.kept_replies {
                kept.extend_from_slice(answer);
            }
            if let Some(due) = self.due.pop_front() {
                each(due);
            }
            from += len;
            answered += 1;
        }
        self.answers.drain(..from);
        Ok(answered)
    }

    fn broken(&self, error: &std::io::Error) -> Error {
        Error::Failed(format!("the connection to {} failed: {error}", self.server))
    }
}

/// Returns the length of the first reply in `bytes`, or `None` if it is incomplete. A reply is a line or a bulk
/// string.
fn answer_len(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|two| two == b"\r\n")? + 2;
    let len: i64 = match bytes[0] {
        b'$' => std::str::from_utf8(&bytes[1..line - 2])
            .ok()?
            .parse()
            .ok()?,
        _ => return Some(line),
    };
    let whole = match usize::try_from(len) {
        Ok(len) => line + len + 2,
        Err(_) => line, // A null bulk string has no body.
    };
    (bytes.len() >= whole).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_stall_counts_for_every_request_that_was_due_during_it() {
        // 1000 requests per second for one second. The server stalls from 200 to 300 ms and else answers at once.
        let mut schedule = SendSchedule::new(1_000.0, ms(1_000));
        let mut latencies = Latencies::new().unwrap();
        for now in (0..1_000).map(ms) {
            let answers_at = match now {
                stalled if stalled >= ms(200) && stalled < ms(300) => ms(300),
                now => now,
            };
            while let Some(due) = schedule.take(now) {
                latencies.record(due, answers_at + Duration::from_micros(10));
            }
        }
        assert_eq!(schedule.peek(), None);
        assert_eq!(latencies.0.len(), 1_000);
        let stalled = latencies.0.len() - latencies.0.count_between(0, 999_000);
        assert!((99..=100).contains(&stalled), "{stalled} requests waited");
        assert!(latencies.at_us(50.0) < 20.0);
        assert!(
            latencies.at_us(99.0) > 80_000.0,
            "p99 covers at least 80 of the 100 ms"
        );
        assert!(latencies.at_us(100.0) > 99_000.0);
    }

    #[test]
    fn late_requests_are_all_sent() {
        let mut schedule = SendSchedule::new(10.0, ms(1_000));
        assert_eq!(schedule.take(ms(0)), Some(ms(0)));
        assert_eq!(schedule.take(ms(50)), None);
        let late: Vec<_> = std::iter::from_fn(|| schedule.take(ms(950))).collect();
        assert_eq!(late.len(), 9);
        assert_eq!(late[8], ms(900));
        assert_eq!(
            schedule.take(ms(5_000)),
            None,
            "no request is due after the end"
        );
    }

    #[test]
    fn only_tail_ratios_have_a_bound() {
        let [mut theirs, mut ours] = [Latencies::new().unwrap(), Latencies::new().unwrap()];
        for n in 0..1_000 {
            theirs.record(ms(0), ms(1));
            ours.record(ms(0), if n < 980 { ms(2) } else { ms(0) });
        }
        let figures = figures(30, 100.0, &[theirs, ours]);
        let of = |name: &str| figures.iter().find(|f| f.name.ends_with(name)).unwrap();
        assert_eq!(figures.len(), 15);
        assert!(!of("p99.9, ratio").holds());
        assert_eq!(of("p50, ratio").at_most, None);
        assert_eq!(of("p99, ratio").at_most, Some(1.0));
        assert!((of("p99, ratio").value - 2.0).abs() < 0.01);
    }

    #[test]
    fn reply_lengths_are_parsed() {
        for (bytes, len) in [
            (&b"+OK\r\n"[..], Some(5)),
            (b"+OK\r\n$3\r\n", Some(5)),
            (b"$-1\r\n", Some(5)),
            (b"$3\r\nabc\r\nrest", Some(9)),
            (b"$3\r\nabc", None),
            (b"$3", None),
            (b"", None),
            (b"-ERR no\r\n", Some(9)),
        ] {
            assert_eq!(answer_len(bytes), len, "{bytes:?}");
        }
    }

    #[test]
    fn each_turn_visits_every_key_once() {
        for (turn, keys) in [(0, 10), (1, 1_000), (2, 997), (3, 4_096), (1, 1), (2, 2)] {
            let step = step_for(turn, keys);
            let mut met: Vec<u64> = (0..keys).map(|n| n * step % keys).collect();
            met.sort_unstable();
            assert!(met.iter().copied().eq(0..keys), "turn {turn} of {keys}");
        }
        assert_eq!(&key_of(0), b"key:000000000000");
        assert_eq!(&key_of(1_234), b"key:000000001234");
    }

    #[test]
    fn the_pool_size_follows_from_the_live_share() {
        let options = |aged| OpenLoopOptions {
            farbank: "farbank".into(),
            redis: "redis-server".into(),
            keys: 1_000_000,
            value_bytes: 100,
            sync: WriteDurability::None,
            loads: vec![30],
            connections: 1,
            seconds: 1,
            rounds: 1,
            aged,
            pool: None,
        };
        let [fresh, half, full] = [None, Some(45), Some(90)].map(|a| options(a).pool_bytes());
        assert!(fresh > half && half > full);
        assert!(half.abs_diff(2 * full) <= 2 << 20);
        assert!(full >= 1_000_000 * 116 * 10 / 9);
    }

    #[test]
    fn fields_of_info_are_found() {
        let info = "$40\r\n# Pool\r\npool_bytes:1024\r\npool_live_bytes:7\r\n";
        assert_eq!(value_in(info, "pool_bytes"), Some("1024"));
        assert_eq!(value_in(info, "pool_live_bytes"), Some("7"));
        assert_eq!(value_in(info, "other"), None);
    }
}
