//! One case: sends requests on several connections to both servers and compares the replies.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::generate::{Generator, RandomRequest, RequestWord, encode};
use super::rules::{self, AskedRequest, SentRequest};
use super::words::KEYS;
use crate::wire::{ReceivedReply, Reply, WireConnection, escape};

/// Number of connections in a case.
const CONNECTIONS: usize = 3;

/// One step of a case.
#[derive(Clone)]
pub(super) enum CaseStep {
    /// Requests on one connection, sent in one write, or in two writes that are split at `cut` percent of the bytes.
    Pipeline {
        connection: usize,
        requests: Vec<RandomRequest>,
        cut: Option<usize>,
    },
    /// Bytes on a new connection, whose replies are read until it is closed.
    Raw(Vec<u8>),
}

impl CaseStep {
    /// Splits the step into steps of one request each.
    pub(super) fn singles(&self) -> Vec<CaseStep> {
        match self {
            CaseStep::Pipeline {
                connection,
                requests,
                ..
            } => {
                let single = |request: &RandomRequest| CaseStep::Pipeline {
                    connection: *connection,
                    requests: vec![request.clone()],
                    cut: None,
                };
                requests.iter().map(single).collect()
            }
            CaseStep::Raw(_) => vec![self.clone()],
        }
    }
}

/// Ports of the two servers.
#[derive(Clone, Copy)]
pub(super) struct Servers {
    pub(super) redis: u16,
    pub(super) farbank: u16,
}

/// A pair of connections, one to each server.
struct ServerPair {
    redis: WireConnection,
    farbank: WireConnection,
    /// Requests queued by MULTI.
    queued: Option<Vec<SentRequest>>,
    watches_absent: bool,
}

impl ServerPair {
    fn connect(servers: Servers) -> Result<ServerPair, String> {
        Ok(ServerPair {
            redis: WireConnection::connect(servers.redis)?,
            farbank: WireConnection::connect(servers.farbank)?,
            queued: None,
            watches_absent: false,
        })
    }

    /// Sends the same request to both servers and receives a reply from each.
    fn ask(&mut self, words: &[&str]) -> (ReceivedReply, ReceivedReply) {
        let words: Vec<_> = words.iter().map(|w| w.as_bytes().to_vec()).collect();
        let bytes = encode(&words, false);
        self.redis.send(&bytes);
        self.farbank.send(&bytes);
        (self.redis.receive(), self.farbank.receive())
    }
}

/// A difference between two replies that no rule allows.
pub(super) struct Difference {
    pub(super) request: String,
    pub(super) redis: String,
    pub(super) farbank: String,
}

/// Outcome of a case.
pub(super) enum CaseEnd {
    Same,
    /// The servers may hold different values, for an allowed reason.
    Parted,
    Differs(Difference),
}

/// A case in progress.
struct Case {
    servers: Servers,
    pairs: Vec<ServerPair>,
    ids: Vec<(i64, i64)>,
    allowed: BTreeSet<&'static str>,
    commands: u64,
    /// Whether an expiry has passed since Redis was last made to remove expired keys.
    has_waited: bool,
}

/// Result of running steps.
pub(super) struct StepOutcome {
    pub(super) steps: Vec<CaseStep>,
    pub(super) end: CaseEnd,
    pub(super) commands: u64,
    pub(super) allowed: BTreeSet<&'static str>,
}

/// Generates and runs the case of `seed`.
pub(super) fn run(servers: Servers, seed: u64) -> Result<StepOutcome, String> {
    let mut generator = Generator::new(seed, CONNECTIONS);
    let mut case = Case::start(servers)?;
    let count = 20 + generator.random.below(60);
    let (mut steps, mut end) = (Vec::new(), CaseEnd::Same);
    for _ in 0..count {
        let step = case.draw(&mut generator);
        steps.push(step.clone());
        end = case.take(&step)?;
        if !matches!(end, CaseEnd::Same) {
            break;
        }
    }
    Ok(case.finish(steps, end))
}

/// Runs `steps` again, from empty servers.
pub(super) fn replay(servers: Servers, steps: &[CaseStep]) -> Result<StepOutcome, String> {
    let mut case = Case::start(servers)?;
    let (mut taken, mut end) = (Vec::new(), CaseEnd::Same);
    for step in steps {
        taken.push(step.clone());
        end = case.take(step)?;
        if !matches!(end, CaseEnd::Same) {
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

    fn finish(self, steps: Vec<CaseStep>, end: CaseEnd) -> StepOutcome {
        StepOutcome {
            steps,
            end,
            commands: self.commands,
            allowed: self.allowed,
        }
    }

    /// Replaces the connection pair at `at` by a new one.
    fn connect(&mut self, at: usize) -> Result<(), String> {
        let mut pair = ServerPair::connect(self.servers)?;
        let (redis, farbank) = pair.ask(&["CLIENT", "ID"]);
        let id = |server: &str, received: &ReceivedReply| {
            let number = match received {
                ReceivedReply::Reply(reply) => reply.integer(),
                _ => None,
            };
            number.ok_or_else(|| {
                format!("CLIENT ID: {server} answered {received}, expected a number")
            })
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

    fn draw(&self, generator: &mut Generator) -> CaseStep {
        if generator.random.chance(7) {
            return CaseStep::Raw(generator.damaged());
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
        CaseStep::Pipeline {
            connection,
            requests,
            cut,
        }
    }

    fn take(&mut self, step: &CaseStep) -> Result<CaseEnd, String> {
        match step {
            CaseStep::Raw(bytes) => self.take_raw(bytes),
            CaseStep::Pipeline {
                connection,
                requests,
                cut,
            } => {
                let end = self.take_pipeline(*connection, requests, *cut)?;
                let wait = requests.iter().filter_map(RandomRequest::wait_ms).max();
                if let Some(wait) = wait {
                    std::thread::sleep(Duration::from_millis(wait));
                    self.has_waited = true;
                }
                Ok(end)
            }
        }
    }

    fn take_raw(&mut self, bytes: &[u8]) -> Result<CaseEnd, String> {
        self.commands += 1;
        let mut pair = ServerPair::connect(self.servers)?;
        for link in [&mut pair.redis, &mut pair.farbank] {
            link.send(bytes);
            link.finish();
        }
        let (redis, farbank) = (pair.redis.drain(), pair.farbank.drain());
        if redis == farbank {
            return Ok(CaseEnd::Same);
        }
        if has(&farbank.0, b"-ERR unknown command") && !has(&redis.0, b"-ERR unknown command") {
            return Ok(CaseEnd::Parted);
        }
        let show = |(bytes, closed): &(Vec<u8>, bool)| match closed {
            true => format!("{} (closed)", escape(bytes)),
            false => format!("{} (left open)", escape(bytes)),
        };
        Ok(CaseEnd::Differs(Difference {
            request: format!("bytes {}", escape(bytes)),
            redis: show(&redis),
            farbank: show(&farbank),
        }))
    }

    fn take_pipeline(
        &mut self,
        connection: usize,
        requests: &[RandomRequest],
        cut: Option<usize>,
    ) -> Result<CaseEnd, String> {
        self.remove_expired()?;
        let sent: Vec<SentRequest> = requests
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
            if !matches!(end, CaseEnd::Same) {
                return Ok(end);
            }
            if received.0 == ReceivedReply::Closed {
                self.connect(connection)?;
                break;
            }
        }
        self.reconnect(requests)
    }

    /// Makes Redis remove expired keys by accessing them; DBSIZE counts them until then. The connection is closed
    /// afterwards, so that CLIENT LIST does not show it.
    fn remove_expired(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.has_waited) {
            return Ok(());
        }
        let mut control = WireConnection::connect(self.servers.redis)?;
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

    /// Reconnects the connections that the last requests closed: their own, or others by CLIENT KILL.
    fn reconnect(&mut self, requests: &[RandomRequest]) -> Result<CaseEnd, String> {
        if !requests.iter().any(ends) {
            return Ok(CaseEnd::Same);
        }
        for at in 0..self.pairs.len() {
            let (redis, farbank) = self.pairs[at].ask(&["PING", "alive"]);
            if redis != farbank {
                return Ok(CaseEnd::Differs(Difference {
                    request: format!("PING on connection {at} afterwards"),
                    redis: redis.to_string(),
                    farbank: farbank.to_string(),
                }));
            }
            match redis {
                ReceivedReply::Closed => self.connect(at)?,
                ReceivedReply::Reply(reply) if reply.head == b"+QUEUED" => {
                    if let Some(queued) = &mut self.pairs[at].queued {
                        queued.push(SentRequest::default());
                    }
                }
                _ => {}
            }
        }
        Ok(CaseEnd::Same)
    }

    /// Returns the words of a request for each server.
    fn render(&self, request: &RandomRequest) -> SentRequest {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let words = |is_redis| {
            let word = |word: &RequestWord| self.render_word(word, is_redis, now);
            request.words.iter().map(word).collect()
        };
        let (to_redis, to_farbank) = (words(true), words(false));
        SentRequest {
            to_redis,
            to_farbank,
        }
    }

    fn render_word(&self, word: &RequestWord, is_redis: bool, now: Duration) -> Vec<u8> {
        let of = |(redis, farbank): (i64, i64)| if is_redis { redis } else { farbank };
        match word {
            RequestWord::Bytes(bytes) => bytes.clone(),
            RequestWord::Id(at) => of(self.ids[*at]).to_string().into_bytes(),
            RequestWord::Address(at) => {
                let pair = &self.pairs[*at];
                let link = if is_redis { &pair.redis } else { &pair.farbank };
                link.address().into_bytes()
            }
            RequestWord::At(secs) => (now.as_secs() as i64 + secs).to_string().into_bytes(),
            RequestWord::AtMs(ms) => (now.as_millis() as i64 + ms).to_string().into_bytes(),
        }
    }

    /// Compares the replies to a request, and updates the state of its connection.
    fn judge(
        &mut self,
        connection: usize,
        request: &RandomRequest,
        sent: &SentRequest,
        received: &(ReceivedReply, ReceivedReply),
    ) -> CaseEnd {
        let (redis, farbank) = received;
        if redis != farbank {
            let reasons = match (redis, farbank) {
                (ReceivedReply::Reply(a), ReceivedReply::Reply(b)) => {
                    self.reasons(connection, sent, a, b)
                }
                _ => None,
            };
            let Some(reasons) = reasons else {
                return CaseEnd::Differs(Difference {
                    request: request.to_string(),
                    redis: redis.to_string(),
                    farbank: farbank.to_string(),
                });
            };
            if reasons.contains(&rules::PARTS) {
                return CaseEnd::Parted;
            }
            self.allowed.extend(reasons);
        }
        if let ReceivedReply::Reply(reply) = redis {
            self.follow(connection, sent, reply);
        }
        CaseEnd::Same
    }

    /// Returns the reasons for which two replies may differ; `None` if the difference is not allowed.
    fn reasons(
        &self,
        connection: usize,
        sent: &SentRequest,
        redis: &Reply,
        farbank: &Reply,
    ) -> Option<Vec<&'static str>> {
        let pair = &self.pairs[connection];
        let allowed = |sent, a: &Reply, b: &Reply| {
            let (ids, watches_absent) = (&self.ids, pair.watches_absent);
            rules::allowed(
                &AskedRequest {
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

    fn follow(&mut self, connection: usize, sent: &SentRequest, reply: &Reply) {
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

/// Requests that bring both servers into the initial state of a case.
const RESET: [&[&str]; 3] = [
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
        "slowlog-max-len",
        "128",
        "acl-pubsub-default",
        "resetchannels",
        "acllog-max-len",
        "128",
    ],
    &["ACL", "DELUSER", "alice", "bob", "x"],
    &["FLUSHALL"],
];

/// Returns whether a request may close connections.
fn ends(request: &RandomRequest) -> bool {
    let text = request.to_string().to_ascii_lowercase();
    text.starts_with("quit")
        || (text.starts_with("client") && text.contains("kill"))
        || text.starts_with("acl")
        || text.starts_with("exec")
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Returns the steps as text, one request per line.
pub(super) fn script(steps: &[CaseStep]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            CaseStep::Raw(bytes) => {
                let _ = writeln!(text, "  new connection: bytes {}", escape(bytes));
            }
            CaseStep::Pipeline {
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
