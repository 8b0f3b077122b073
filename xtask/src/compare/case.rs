//! One case: requests on several connections, sent to both servers, whose replies are compared.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::generate::{Generator, Request, Word, encode};
use super::rules::{self, Asked, Sent};
use super::words::KEYS;
use crate::wire::{Link, Received, Reply, escape};

/// Connections of a case.
const CONNECTIONS: usize = 3;

/// What a case does at once.
#[derive(Clone)]
pub(super) enum Step {
    /// Requests on a connection, in one write, or in two that part at this percentage.
    Pipeline {
        connection: usize,
        requests: Vec<Request>,
        cut: Option<usize>,
    },
    /// Bytes on a connection of their own, which is read to its end.
    Raw(Vec<u8>),
}

impl Step {
    /// Steps of one request each that send the same.
    pub(super) fn singles(&self) -> Vec<Step> {
        match self {
            Step::Pipeline {
                connection,
                requests,
                ..
            } => {
                let single = |request: &Request| Step::Pipeline {
                    connection: *connection,
                    requests: vec![request.clone()],
                    cut: None,
                };
                requests.iter().map(single).collect()
            }
            Step::Raw(_) => vec![self.clone()],
        }
    }
}

/// The two servers.
#[derive(Clone, Copy)]
pub(super) struct Servers {
    pub(super) redis: u16,
    pub(super) farbank: u16,
}

/// A connection to both.
struct Pair {
    redis: Link,
    farbank: Link,
    /// Requests queued by MULTI.
    queued: Option<Vec<Sent>>,
    watches_absent: bool,
}

impl Pair {
    fn connect(servers: Servers) -> Result<Pair, String> {
        Ok(Pair {
            redis: Link::connect(servers.redis)?,
            farbank: Link::connect(servers.farbank)?,
            queued: None,
            watches_absent: false,
        })
    }

    /// Sends the same to both and receives a reply from each.
    fn ask(&mut self, words: &[&str]) -> (Received, Received) {
        let words: Vec<_> = words.iter().map(|w| w.as_bytes().to_vec()).collect();
        let bytes = encode(&words, false);
        self.redis.send(&bytes);
        self.farbank.send(&bytes);
        (self.redis.receive(), self.farbank.receive())
    }
}

/// A difference that no rule allows.
pub(super) struct Difference {
    pub(super) request: String,
    pub(super) redis: String,
    pub(super) farbank: String,
}

/// How a case ended.
pub(super) enum End {
    Same,
    /// The servers hold different values, for a reason that is allowed.
    Parted,
    Differs(Difference),
}

/// A case in progress.
struct Case {
    servers: Servers,
    pairs: Vec<Pair>,
    ids: Vec<(i64, i64)>,
    allowed: BTreeSet<&'static str>,
    commands: u64,
    /// An expiry has passed since Redis was last made to remove what has expired.
    has_waited: bool,
}

/// What running steps showed.
pub(super) struct Outcome {
    pub(super) steps: Vec<Step>,
    pub(super) end: End,
    pub(super) commands: u64,
    pub(super) allowed: BTreeSet<&'static str>,
}

/// Draws and runs the case of `seed`.
pub(super) fn run(servers: Servers, seed: u64) -> Result<Outcome, String> {
    let mut generator = Generator::new(seed, CONNECTIONS);
    let mut case = Case::start(servers)?;
    let count = 20 + generator.random.below(60);
    let (mut steps, mut end) = (Vec::new(), End::Same);
    for _ in 0..count {
        let step = case.draw(&mut generator);
        steps.push(step.clone());
        end = case.take(&step)?;
        if !matches!(end, End::Same) {
            break;
        }
    }
    Ok(case.finish(steps, end))
}

/// Runs `steps` again, from empty servers.
pub(super) fn replay(servers: Servers, steps: &[Step]) -> Result<Outcome, String> {
    let mut case = Case::start(servers)?;
    let (mut taken, mut end) = (Vec::new(), End::Same);
    for step in steps {
        taken.push(step.clone());
        end = case.take(step)?;
        if !matches!(end, End::Same) {
            break;
        }
    }
    Ok(case.finish(taken, end))
}

impl Case {
    fn start(servers: Servers) -> Result<Case, String> {
        let mut case = Case {
            servers,
            pairs: Vec::new(),
            ids: Vec::new(),
            allowed: BTreeSet::new(),
            commands: 0,
            has_waited: false,
        };
        for at in 0..CONNECTIONS {
            case.connect(at)?;
        }
        for words in RESET {
            let (redis, farbank) = case.pairs[0].ask(words);
            if redis != farbank {
                let words = words.join(" ");
                return Err(format!("{words}: Redis {redis}, Farbank {farbank}"));
            }
        }
        Ok(case)
    }

    fn finish(self, steps: Vec<Step>, end: End) -> Outcome {
        Outcome {
            steps,
            end,
            commands: self.commands,
            allowed: self.allowed,
        }
    }

    /// Makes the connection at `at` anew.
    fn connect(&mut self, at: usize) -> Result<(), String> {
        let mut pair = Pair::connect(self.servers)?;
        let (redis, farbank) = pair.ask(&["CLIENT", "ID"]);
        let id = |server: &str, received: &Received| {
            let number = match received {
                Received::Reply(reply) => reply.integer(),
                _ => None,
            };
            number.ok_or_else(|| format!("CLIENT ID: {server} answers {received}"))
        };
        let ids = (id("Redis", &redis)?, id("Farbank", &farbank)?);
        if at < self.pairs.len() {
            self.pairs[at] = pair;
            self.ids[at] = ids;
        } else {
            self.pairs.push(pair);
            self.ids.push(ids);
        }
        Ok(())
    }

    fn draw(&self, generator: &mut Generator) -> Step {
        if generator.random.chance(7) {
            return Step::Raw(generator.damaged());
        }
        let connection = generator.random.below(self.pairs.len());
        let mut in_multi = self.pairs[connection].queued.is_some();
        let most = match generator.random.chance(30) {
            true => 2 + generator.random.below(8),
            false => 1,
        };
        let mut requests = Vec::new();
        for _ in 0..most {
            let request = generator.request(!in_multi);
            in_multi |= request.to_string().to_ascii_lowercase().contains("multi");
            let is_last = request.wait_ms().is_some() || ends(&request);
            requests.push(request);
            if is_last {
                break;
            }
        }
        let cut = generator
            .random
            .chance(20)
            .then(|| generator.random.below(100));
        Step::Pipeline {
            connection,
            requests,
            cut,
        }
    }

    fn take(&mut self, step: &Step) -> Result<End, String> {
        match step {
            Step::Raw(bytes) => self.take_raw(bytes),
            Step::Pipeline {
                connection,
                requests,
                cut,
            } => {
                let end = self.take_pipeline(*connection, requests, *cut)?;
                let wait = requests.iter().filter_map(Request::wait_ms).max();
                if let Some(wait) = wait {
                    std::thread::sleep(Duration::from_millis(wait));
                    self.has_waited = true;
                }
                Ok(end)
            }
        }
    }

    fn take_raw(&mut self, bytes: &[u8]) -> Result<End, String> {
        self.commands += 1;
        let mut pair = Pair::connect(self.servers)?;
        for link in [&mut pair.redis, &mut pair.farbank] {
            link.send(bytes);
            link.finish();
        }
        let (redis, farbank) = (pair.redis.drain(), pair.farbank.drain());
        if redis == farbank {
            return Ok(End::Same);
        }
        if has(&farbank.0, b"-ERR unknown command") && !has(&redis.0, b"-ERR unknown command") {
            return Ok(End::Parted);
        }
        let show = |(bytes, closed): &(Vec<u8>, bool)| match closed {
            true => format!("{} (closed)", escape(bytes)),
            false => format!("{} (left open)", escape(bytes)),
        };
        Ok(End::Differs(Difference {
            request: format!("bytes {}", escape(bytes)),
            redis: show(&redis),
            farbank: show(&farbank),
        }))
    }

    fn take_pipeline(
        &mut self,
        connection: usize,
        requests: &[Request],
        cut: Option<usize>,
    ) -> Result<End, String> {
        self.remove_expired()?;
        let sent: Vec<Sent> = requests
            .iter()
            .map(|request| self.render(request))
            .collect();
        let pair = &mut self.pairs[connection];
        let (mut to_redis, mut to_farbank) = (Vec::new(), Vec::new());
        for (sent, request) in sent.iter().zip(requests) {
            to_redis.extend(encode(&sent.to_redis, request.is_inline));
            to_farbank.extend(encode(&sent.to_farbank, request.is_inline));
        }
        for (link, bytes) in [(&mut pair.redis, to_redis), (&mut pair.farbank, to_farbank)] {
            let (first, second) = bytes.split_at(bytes.len() * cut.unwrap_or(100) / 100);
            link.send(first);
            link.send(second);
        }
        for (request, sent) in requests.iter().zip(&sent) {
            self.commands += 1;
            let pair = &mut self.pairs[connection];
            let received = (pair.redis.receive(), pair.farbank.receive());
            let end = self.judge(connection, request, sent, &received);
            if !matches!(end, End::Same) {
                return Ok(end);
            }
            if received.0 == Received::Closed {
                self.connect(connection)?;
                break;
            }
        }
        self.reconnect(requests)
    }

    /// Has Redis remove what has expired: it counts such keys until they are met. The connection
    /// is closed afterwards, so that CLIENT LIST does not show it.
    fn remove_expired(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.has_waited) {
            return Ok(());
        }
        let mut control = Link::connect(self.servers.redis)?;
        let mut exists = vec![b"EXISTS".to_vec()];
        exists.extend(KEYS.iter().map(|key| key.to_vec()));
        for db in ["0", "1", "15"] {
            let select = vec![b"SELECT".to_vec(), db.as_bytes().to_vec()];
            for words in [&select, &exists] {
                control.send(&encode(words, false));
                control.receive();
            }
        }
        control.send(b"QUIT\r\n");
        control.drain();
        Ok(())
    }

    /// Reconnects what the last requests closed: their own connection, or others by CLIENT KILL.
    fn reconnect(&mut self, requests: &[Request]) -> Result<End, String> {
        if !requests.iter().any(ends) {
            return Ok(End::Same);
        }
        for at in 0..self.pairs.len() {
            let (redis, farbank) = self.pairs[at].ask(&["PING", "alive"]);
            if redis != farbank {
                return Ok(End::Differs(Difference {
                    request: format!("PING on connection {at} afterwards"),
                    redis: redis.to_string(),
                    farbank: farbank.to_string(),
                }));
            }
            match redis {
                Received::Closed => self.connect(at)?,
                Received::Reply(reply) if reply.head == b"+QUEUED" => {
                    if let Some(queued) = &mut self.pairs[at].queued {
                        queued.push(Sent::default());
                    }
                }
                _ => {}
            }
        }
        Ok(End::Same)
    }

    /// The words of a request, for each server.
    fn render(&self, request: &Request) -> Sent {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let words = |is_redis| {
            let word = |word: &Word| self.render_word(word, is_redis, now);
            request.words.iter().map(word).collect()
        };
        let (to_redis, to_farbank) = (words(true), words(false));
        Sent {
            to_redis,
            to_farbank,
        }
    }

    fn render_word(&self, word: &Word, is_redis: bool, now: Duration) -> Vec<u8> {
        let of = |(redis, farbank): (i64, i64)| if is_redis { redis } else { farbank };
        match word {
            Word::Bytes(bytes) => bytes.clone(),
            Word::Id(at) => of(self.ids[*at]).to_string().into_bytes(),
            Word::Address(at) => {
                let pair = &self.pairs[*at];
                let link = if is_redis { &pair.redis } else { &pair.farbank };
                link.address().into_bytes()
            }
            Word::At(secs) => (now.as_secs() as i64 + secs).to_string().into_bytes(),
            Word::AtMs(ms) => (now.as_millis() as i64 + ms).to_string().into_bytes(),
        }
    }

    /// Compares the replies to a request and notes what it did to its connection.
    fn judge(
        &mut self,
        connection: usize,
        request: &Request,
        sent: &Sent,
        received: &(Received, Received),
    ) -> End {
        let (redis, farbank) = received;
        if redis != farbank {
            let reasons = match (redis, farbank) {
                (Received::Reply(a), Received::Reply(b)) => self.reasons(connection, sent, a, b),
                _ => None,
            };
            let Some(reasons) = reasons else {
                return End::Differs(Difference {
                    request: request.to_string(),
                    redis: redis.to_string(),
                    farbank: farbank.to_string(),
                });
            };
            if reasons.contains(&rules::PARTS) {
                return End::Parted;
            }
            self.allowed.extend(reasons);
        }
        if let Received::Reply(reply) = redis {
            self.follow(connection, sent, reply);
        }
        End::Same
    }

    /// Why two replies may differ; nothing if they may not.
    fn reasons(
        &self,
        connection: usize,
        sent: &Sent,
        redis: &Reply,
        farbank: &Reply,
    ) -> Option<Vec<&'static str>> {
        let pair = &self.pairs[connection];
        let allowed = |sent, a: &Reply, b: &Reply| {
            let (ids, watches_absent) = (&self.ids, pair.watches_absent);
            rules::allowed(
                &Asked {
                    sent,
                    ids,
                    watches_absent,
                },
                a,
                b,
            )
        };
        let is_exec = sent.to_redis[0].eq_ignore_ascii_case(b"exec");
        match (&pair.queued, redis.elements(), farbank.elements()) {
            (Some(queued), Some(a), Some(b)) if is_exec && a.len() == b.len() => {
                let each = queued
                    .iter()
                    .zip(a.iter().zip(b))
                    .filter(|(_, (a, b))| a != b);
                each.map(|(sent, (a, b))| allowed(sent, a, b)).collect()
            }
            _ => allowed(sent, redis, farbank).map(|reason| vec![reason]),
        }
    }

    fn follow(&mut self, connection: usize, sent: &Sent, reply: &Reply) {
        let name = sent.to_redis[0].to_ascii_lowercase();
        let pair = &mut self.pairs[connection];
        if reply.head == b"+QUEUED" {
            if let Some(queued) = &mut pair.queued {
                queued.push(sent.clone());
            }
            return;
        }
        match (name.as_slice(), reply.marker()) {
            (b"multi", b'+') => pair.queued = Some(Vec::new()),
            (b"watch", b'+') => pair.watches_absent = true,
            (b"unwatch", b'+') => pair.watches_absent = false,
            (b"exec", b'*' | b'_') | (b"discard" | b"reset", b'+') => {
                pair.queued = None;
                pair.watches_absent = false;
            }
            (b"exec", b'-') if reply.is_error("EXECABORT") => {
                pair.queued = None;
                pair.watches_absent = false;
            }
            _ => {}
        }
    }
}

/// Brings both servers to the state a case starts from.
const RESET: [&[&str]; 2] = [
    &[
        "CONFIG",
        "SET",
        "timeout",
        "0",
        "maxclients",
        "10000",
        "tcp-keepalive",
        "300",
        "proto-max-bulk-len",
        "512mb",
        "client-query-buffer-limit",
        "1gb",
        "client-output-buffer-limit",
        "normal 0 0 0",
    ],
    &["FLUSHALL"],
];

/// Whether a request may close connections.
fn ends(request: &Request) -> bool {
    let text = request.to_string().to_ascii_lowercase();
    text.starts_with("quit")
        || (text.starts_with("client") && text.contains("kill"))
        || text.starts_with("exec")
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The steps, one request a line.
pub(super) fn script(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Raw(bytes) => {
                let _ = writeln!(text, "  new connection: bytes {}", escape(bytes));
            }
            Step::Pipeline {
                connection,
                requests,
                cut,
            } => {
                let cut = cut.map(|at| format!(", cut at {at} %")).unwrap_or_default();
                for (at, request) in requests.iter().enumerate() {
                    let same = if at > 0 { ", same write" } else { &cut };
                    let _ = writeln!(text, "  connection {connection}{same}: {request}");
                }
            }
        }
    }
    text
}
