//! Workload of one connection: its keys, the commands it sends, and the values that each key may hold.
//!
//! Every value starts with its key and its number, followed by a pattern computed from both. So a check can see which
//! write a value comes from, and whether any of its bytes is wrong.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::SeqCst;

use farbank_pm::rng::Rng;

use super::event_log::EventLog;
use super::{KillLoad, KillShared, SHARED_KEY, now_ms};
use crate::child::{ConnectionStop, RespClient, RespReply, UnwrittenValue};

/// Share of the pool that the values take, in percent. With keys and headers, more than 77 % of the pool is live.
const LIVE_PERCENT: u64 = 80;
/// Range of value lengths, in bytes.
pub(super) const VALUE_BYTES: std::ops::Range<u64> = 40..1_100;
/// Approximate bytes of a record beyond its value: header, key and padding.
pub(super) const RECORD_OVERHEAD: u64 = 46;
/// One of this many plain keys is also deleted and given a lifetime. All other plain keys are only overwritten.
const VOLATILE_ONE_IN: usize = 32;
const COUNTERS: usize = 8;
/// Number of groups with [`GROUP_KEYS`] keys. One more group has [`LARGE_GROUP_KEYS`] and does not fit into the log.
const GROUPS: u64 = 64;
const GROUP_KEYS: u64 = 4;
const LARGE_GROUP_KEYS: u64 = 120;
/// Largest number of draws for a pipeline.
pub(super) const PIPELINE: u64 = 48;
/// Allowed difference between the server's clock and ours, in milliseconds.
const CLOCK_MS: u64 = 100;

/// Possible values of one key, which only this connection writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Register<T> {
    pub(super) acknowledged: T,
    /// Values sent after the acknowledged one, oldest first.
    pub(super) sent: VecDeque<T>,
}

impl<T: Copy + PartialEq> Register<T> {
    pub(super) fn newest(&self) -> T {
        self.sent.back().copied().unwrap_or(self.acknowledged)
    }

    fn acknowledge(&mut self) {
        self.acknowledged = self.sent.pop_front().expect("a reply follows a command");
    }

    /// Returns the acknowledged value and all values sent after it.
    pub(super) fn possible(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::once(self.acknowledged).chain(self.sent.iter().copied())
    }

    pub(super) fn settle(&mut self, found: T) {
        self.acknowledged = found;
        self.sent.clear();
    }
}

/// Version of a plain key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PlainVersion {
    number: u64,
    /// Earliest and latest time of expiry, in milliseconds since 1970. `None` if the version does not expire.
    expires_ms: Option<(u64, u64)>,
}

impl PlainVersion {
    fn may_be_gone(self, now_ms: u64) -> bool {
        self.expires_ms
            .is_some_and(|(earliest, _)| now_ms + CLOCK_MS >= earliest)
    }

    fn must_be_gone(self, now_ms: u64) -> bool {
        self.expires_ms
            .is_some_and(|(_, latest)| now_ms > latest.saturating_add(CLOCK_MS))
    }
}

/// A command without a reply yet, with what is needed to check the reply.
#[derive(Clone, Copy, Debug)]
enum SentCommand {
    Set {
        key: usize,
        ttl_ms: u64,
    },
    Delete {
        key: usize,
        was: Option<PlainVersion>,
        at_ms: u64,
    },
    Get {
        key: usize,
        expected: Option<PlainVersion>,
        at_ms: u64,
    },
    Group {
        group: usize,
    },
    Assign {
        counter: usize,
    },
    Count {
        counter: usize,
    },
    Read {
        expected: u64,
    },
    Shared,
}

/// Commands of one connection until its server ended.
pub(crate) struct LoadOutcome {
    pub(crate) acknowledged: u64,
    pub(crate) in_flight: u64,
    /// Acknowledged writes that had no effect, because the store was at its limit.
    pub(crate) refused: u64,
}

/// Result of reading all keys of one connection after a restart.
#[derive(Default)]
pub(crate) struct RestartFindings {
    pub(crate) checked: u64,
    /// Keys that exist and do not expire.
    pub(crate) existing: u64,
    /// Keys that may have expired. The server may or may not count them.
    pub(crate) expiring: u64,
}

/// Connection that owns a set of keys and is the only one to write them.
pub(crate) struct KeyOwner {
    id: usize,
    rng: Rng,
    plain: Vec<Register<Option<PlainVersion>>>,
    /// Number of the last MSET of each group; 0 if there was none.
    groups: Vec<Register<u64>>,
    /// Counts; 0 if the key does not exist.
    counters: Vec<Register<u64>>,
    numbers: u64,
    sent: VecDeque<SentCommand>,
    events: EventLog,
}

impl KeyOwner {
    /// Creates an owner whose values take its share of the pool, `share_bytes`.
    pub(crate) fn new(id: usize, share_bytes: u64, seed: u64) -> KeyOwner {
        let record_bytes = (VALUE_BYTES.start + VALUE_BYTES.end) / 2 + RECORD_OVERHEAD;
        let plain = share_bytes / 100 * LIVE_PERCENT / record_bytes;
        // The large group takes segments of its own, so only the first connection has it.
        let groups = GROUPS + u64::from(id == 0);
        let plain = plain.saturating_sub(GROUPS * GROUP_KEYS) as usize;
        KeyOwner {
            id,
            rng: Rng::new(seed).fork(id as u64 + 1),
            plain: vec![Register::default(); plain],
            groups: vec![Register::default(); groups as usize],
            counters: vec![Register::default(); COUNTERS],
            numbers: 0,
            sent: VecDeque::new(),
            events: EventLog::default(),
        }
    }

    /// Returns how many plain keys, from the first, are also deleted and given a lifetime.
    fn volatile(&self) -> usize {
        self.plain.len() / VOLATILE_ONE_IN
    }

    fn key_name(&self, key: usize) -> String {
        format!("p{}:{key}", self.id)
    }

    fn counter_name(&self, counter: usize) -> String {
        format!("c{}:{counter}", self.id)
    }

    fn member_names(&self, group: usize) -> Vec<String> {
        let members = if group as u64 == GROUPS {
            LARGE_GROUP_KEYS
        } else {
            GROUP_KEYS
        };
        (0..members)
            .map(|member| format!("g{}:{group}:{member}", self.id))
            .collect()
    }

    fn note(&mut self, key: &str, what: String) {
        self.events.note(key, what);
    }

    fn violation(&self, key: &str, what: String) -> ConnectionStop {
        self.events.violation(key, what)
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// Returns the value with this number for the key `name`.
pub(super) fn value(name: &str, number: u64) -> Vec<u8> {
    let seed = name
        .bytes()
        .fold(number, |h, byte| h.rotate_left(9) ^ u64::from(byte));
    let mut rng = Rng::new(seed);
    let len = VALUE_BYTES.start + rng.below(VALUE_BYTES.end - VALUE_BYTES.start);
    let mut bytes = format!("{name}#{number}#").into_bytes();
    while bytes.len() < len as usize {
        bytes.extend_from_slice(&rng.draw().to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

/// Returns the number of a value of `name`, after checking every byte.
pub(super) fn number_of(name: &str, bytes: &[u8]) -> Result<u64, UnwrittenValue> {
    let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(32)]).into_owned();
    let rest = bytes
        .strip_prefix(name.as_bytes())
        .and_then(|rest| rest.strip_prefix(b"#"));
    let digits = rest.and_then(|rest| rest.split(|byte| *byte == b'#').next());
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    let number = number.ok_or_else(|| {
        UnwrittenValue(format!(
            "the value belongs to no write of this key: {:?}...",
            shown()
        ))
    })?;
    if value(name, number) == bytes {
        Ok(number)
    } else {
        Err(UnwrittenValue(format!(
            "the value has wrong bytes: {:?}..., {} bytes",
            shown(),
            bytes.len()
        )))
    }
}

/// Connects to the server at `addr`, and calls `pipeline` until the server ends. `pipeline` sends a pipeline and checks its
/// replies; it returns how many commands were acknowledged, and whether it was stopped. Returns all acknowledged commands.
pub(super) fn load_until_gone(
    addr: &str,
    mut pipeline: impl FnMut(&mut RespClient) -> (u64, Result<(), ConnectionStop>),
) -> Result<u64, ConnectionStop> {
    let mut acknowledged = 0;
    let stop = match RespClient::connect(addr) {
        Err(stop) => stop,
        Ok(mut client) => loop {
            let (count, received) = pipeline(&mut client);
            acknowledged += count;
            if let Err(stop) = received {
                break stop;
            }
        },
    };
    match stop {
        ConnectionStop::Gone(_) => Ok(acknowledged),
        other => Err(other),
    }
}

impl KillLoad for KeyOwner {
    fn fill(&mut self, client: &mut RespClient, shared: &KillShared) -> Result<(), ConnectionStop> {
        for first in (0..self.plain.len()).step_by(PIPELINE as usize) {
            for key in first..self.plain.len().min(first + PIPELINE as usize) {
                self.set(client, key, 0);
            }
            self.receive(client, shared)?;
        }
        for group in 0..self.groups.len() {
            self.set_group(client, group);
            self.receive(client, shared)?;
        }
        Ok(())
    }

    fn load(&mut self, addr: &str, shared: &KillShared) -> Result<LoadOutcome, ConnectionStop> {
        let acknowledged = load_until_gone(addr, |client| {
            for _ in 0..=self.rng.below(PIPELINE) {
                self.draw(client, shared);
            }
            let sent = self.sent.len();
            let received = self.receive(client, shared);
            ((sent - self.sent.len()) as u64, received)
        })?;
        let in_flight = self.sent.len() as u64;
        self.sent.clear();
        Ok(LoadOutcome {
            acknowledged,
            in_flight,
            refused: 0,
        })
    }

    fn check(&mut self, client: &mut RespClient) -> Result<RestartFindings, ConnectionStop> {
        let mut found = RestartFindings::default();
        for first in (0..self.plain.len()).step_by(256) {
            let keys = first..self.plain.len().min(first + 256);
            let at_ms = now_ms();
            for key in keys.clone() {
                client.send(&["GET", &self.key_name(key)]);
            }
            client.flush()?;
            for key in keys {
                let reply = client.reply()?;
                self.check_plain(key, reply, at_ms, &mut found)?;
            }
        }
        for group in 0..self.groups.len() {
            self.check_group(client, group, &mut found)?;
        }
        for counter in 0..COUNTERS {
            let count = client.number(&self.counter_name(counter))?;
            if !self.counters[counter]
                .possible()
                .any(|possible| possible == count)
            {
                let what = format!("found {count}, allowed is {:?}", self.counters[counter]);
                return Err(self.violation(&self.counter_name(counter), what));
            }
            self.counters[counter].settle(count);
            found.checked += 1;
            found.existing += u64::from(count > 0);
        }
        Ok(found)
    }
}

// Sending.
impl KeyOwner {
    /// Adds one to three commands of a random kind to the pipeline.
    fn draw(&mut self, client: &mut RespClient, shared: &KillShared) {
        let key = self.rng.below(self.plain.len() as u64) as usize;
        let volatile = self.rng.below(self.volatile() as u64) as usize;
        match self.rng.below(100) {
            0..50 => self.set(client, key, 0),
            50..55 => {
                let ttl_ms = 1 + self.rng.below(800);
                self.set(client, volatile, ttl_ms);
            }
            55..60 => self.set(client, volatile, 0),
            60..66 => self.delete(client, volatile),
            66..74 => self.get(client, key),
            74..78 => self.get(client, volatile),
            78..86 => {
                let group = self.rng.below(GROUPS) as usize;
                self.set_group(client, group);
            }
            86 => {
                let large = self.groups.len() - 1;
                self.set_group(client, large);
            }
            87..93 => {
                let counter = self.rng.below(COUNTERS as u64) as usize;
                self.count(client, counter);
            }
            93..95 => self.assign_count_read(client),
            _ => {
                shared.sent.fetch_add(1, SeqCst);
                client.send(&["INCR", SHARED_KEY]);
                self.sent.push_back(SentCommand::Shared);
            }
        }
    }

    fn set(&mut self, client: &mut RespClient, key: usize, ttl_ms: u64) {
        let (name, number) = (self.key_name(key), self.next_number());
        let bytes = value(&name, number);
        if ttl_ms == 0 {
            client.send(&[&b"SET"[..], name.as_bytes(), &bytes]);
        } else {
            let ttl = ttl_ms.to_string();
            client.send(&[&b"SET"[..], name.as_bytes(), &bytes, b"PX", ttl.as_bytes()]);
        }
        // The latest time of expiry is unknown until the reply arrives.
        let expires_ms = (ttl_ms > 0).then(|| (now_ms() + ttl_ms, u64::MAX));
        self.note(
            &name,
            format!("SET {number}, expires after {ttl_ms} ms (0: never)"),
        );
        self.plain[key]
            .sent
            .push_back(Some(PlainVersion { number, expires_ms }));
        self.sent.push_back(SentCommand::Set { key, ttl_ms });
    }

    fn delete(&mut self, client: &mut RespClient, key: usize) {
        let (name, was) = (self.key_name(key), self.plain[key].newest());
        client.send(&["DEL", &name]);
        self.note(&name, "DEL".into());
        self.plain[key].sent.push_back(None);
        self.sent.push_back(SentCommand::Delete {
            key,
            was,
            at_ms: now_ms(),
        });
    }

    fn get(&mut self, client: &mut RespClient, key: usize) {
        client.send(&["GET", &self.key_name(key)]);
        let expected = self.plain[key].newest();
        self.sent.push_back(SentCommand::Get {
            key,
            expected,
            at_ms: now_ms(),
        });
    }

    fn set_group(&mut self, client: &mut RespClient, group: usize) {
        let (names, number) = (self.member_names(group), self.next_number());
        let mut words = vec![b"MSET".to_vec()];
        for name in &names {
            words.extend([name.clone().into_bytes(), value(name, number)]);
        }
        client.send(&words);
        self.note(
            &names[0],
            format!("MSET {number} and {} more", names.len() - 1),
        );
        self.groups[group].sent.push_back(number);
        self.sent.push_back(SentCommand::Group { group });
    }

    fn count(&mut self, client: &mut RespClient, counter: usize) {
        let (name, next) = (
            self.counter_name(counter),
            self.counters[counter].newest() + 1,
        );
        client.send(&["INCR", &name]);
        self.note(&name, format!("INCR to {next}"));
        self.counters[counter].sent.push_back(next);
        self.sent.push_back(SentCommand::Count { counter });
    }

    /// Sends `SET a; INCR a; GET a` in one pipeline (CHECK-KILL-5).
    fn assign_count_read(&mut self, client: &mut RespClient) {
        let (counter, number) = (0, 1 + self.next_number());
        let name = self.counter_name(counter);
        client.send(&["SET", &name, &number.to_string()]);
        self.note(&name, format!("SET {number}"));
        self.counters[counter].sent.push_back(number);
        self.sent.push_back(SentCommand::Assign { counter });
        self.count(client, counter);
        client.send(&["GET", &name]);
        self.sent.push_back(SentCommand::Read {
            expected: number + 1,
        });
    }
}

// Receiving.
impl KeyOwner {
    /// Sends the pipeline and checks all replies.
    fn receive(
        &mut self,
        client: &mut RespClient,
        shared: &KillShared,
    ) -> Result<(), ConnectionStop> {
        client.flush()?;
        while let Some(sent) = self.sent.front().copied() {
            let reply = client.reply()?;
            self.check_reply(sent, reply, shared)?;
            self.sent.pop_front();
        }
        Ok(())
    }

    fn check_reply(
        &mut self,
        sent: SentCommand,
        reply: RespReply,
        shared: &KillShared,
    ) -> Result<(), ConnectionStop> {
        let ok = RespReply::Simple("OK".into());
        match (sent, reply) {
            (SentCommand::Set { key, ttl_ms }, reply) if reply == ok => {
                self.plain[key].acknowledge();
                if let Some(PlainVersion {
                    expires_ms: Some((_, latest)),
                    ..
                }) = &mut self.plain[key].acknowledged
                {
                    *latest = now_ms() + ttl_ms;
                }
            }
            (SentCommand::Delete { key, was, at_ms }, RespReply::Number(deleted)) => {
                self.plain[key].acknowledge();
                let gone = was.is_none_or(|was| was.may_be_gone(now_ms()));
                let there = was.is_some_and(|was| !was.must_be_gone(at_ms));
                if !(deleted == 0 && gone || deleted == 1 && there) {
                    let what = format!("DEL returned {deleted}, but the key held {was:?}");
                    return Err(self.violation(&self.key_name(key), what));
                }
            }
            (
                SentCommand::Get {
                    key,
                    expected,
                    at_ms,
                },
                RespReply::Bulk(found),
            ) => {
                self.is_expected(&self.key_name(key), found.as_deref(), expected, at_ms)?;
            }
            (SentCommand::Group { group }, reply) if reply == ok => {
                self.groups[group].acknowledge()
            }
            (SentCommand::Assign { counter }, reply) if reply == ok => {
                self.counters[counter].acknowledge();
            }
            (SentCommand::Count { counter }, RespReply::Number(count)) => {
                self.counters[counter].acknowledge();
                let expected = self.counters[counter].acknowledged;
                if count != expected as i64 {
                    let what = format!("INCR returned {count}, expected {expected}");
                    return Err(self.violation(&self.counter_name(counter), what));
                }
            }
            (SentCommand::Read { expected }, RespReply::Bulk(Some(digits)))
                if digits == expected.to_string().as_bytes() => {}
            (SentCommand::Shared, RespReply::Number(_)) => {
                shared.acknowledged.fetch_add(1, SeqCst);
            }
            (sent, reply) => {
                let what = format!("unexpected reply to {sent:?}: {reply:?}");
                return Err(self.violation("pipeline", what));
            }
        }
        Ok(())
    }

    /// Checks the reply to a GET that was sent at `at_ms`.
    fn is_expected(
        &self,
        name: &str,
        found: Option<&[u8]>,
        expected: Option<PlainVersion>,
        at_ms: u64,
    ) -> Result<(), ConnectionStop> {
        let number = found.map(|bytes| number_of(name, bytes)).transpose();
        let number = number.map_err(|wrong| self.violation(name, wrong.0))?;
        let fine = match (number, expected) {
            (None, expected) => expected.is_none_or(|e| e.may_be_gone(now_ms())),
            (Some(number), Some(e)) => number == e.number && !e.must_be_gone(at_ms),
            (Some(_), None) => false,
        };
        let what = || format!("GET found {number:?}, expected {expected:?}");
        if fine {
            Ok(())
        } else {
            Err(self.violation(name, what()))
        }
    }
}

// Checking after a restart.
impl KeyOwner {
    fn check_plain(
        &mut self,
        key: usize,
        reply: RespReply,
        at_ms: u64,
        found: &mut RestartFindings,
    ) -> Result<(), ConnectionStop> {
        let name = self.key_name(key);
        let RespReply::Bulk(bytes) = reply else {
            return Err(self.violation(&name, format!("unexpected reply to GET: {reply:?}")));
        };
        let number = bytes.map(|bytes| number_of(&name, &bytes)).transpose();
        let number = number.map_err(|wrong| self.violation(&name, wrong.0))?;
        let register = &self.plain[key];
        let matching = match number {
            // An absent key has expired and may still be counted, or it was deleted.
            None => register
                .possible()
                .find(|p| p.is_some_and(|v| v.may_be_gone(now_ms())))
                .or_else(|| register.possible().find(Option::is_none)),
            Some(number) => register
                .possible()
                .find(|p| p.is_some_and(|v| v.number == number && !v.must_be_gone(at_ms))),
        };
        let Some(version) = matching else {
            let what = format!("found {number:?}, allowed is {register:?}");
            return Err(self.violation(&name, what));
        };
        let expiring = key < self.volatile();
        found.checked += 1;
        found.existing += u64::from(number.is_some() && !expiring);
        found.expiring += u64::from(expiring);
        self.plain[key].settle(version);
        Ok(())
    }

    /// Checks that a group is complete and allowed (CHECK-KILL-2).
    fn check_group(
        &mut self,
        client: &mut RespClient,
        group: usize,
        found: &mut RestartFindings,
    ) -> Result<(), ConnectionStop> {
        let names = self.member_names(group);
        for name in &names {
            client.send(&["GET", name]);
        }
        client.flush()?;
        let mut numbers = Vec::with_capacity(names.len());
        for name in &names {
            numbers.push(match client.reply()? {
                RespReply::Bulk(None) => 0,
                RespReply::Bulk(Some(bytes)) => {
                    number_of(name, &bytes).map_err(|wrong| self.violation(name, wrong.0))?
                }
                other => {
                    return Err(self.violation(name, format!("unexpected reply to GET: {other:?}")));
                }
            });
        }
        let number = numbers[0];
        if numbers.iter().any(|other| *other != number) {
            return Err(self.violation(
                &names[0],
                format!("torn MSET, the members' numbers are {numbers:?}"),
            ));
        }
        if !self.groups[group]
            .possible()
            .any(|possible| possible == number)
        {
            let what = format!("found MSET {number}, allowed is {:?}", self.groups[group]);
            return Err(self.violation(&names[0], what));
        }
        self.groups[group].settle(number);
        found.checked += names.len() as u64;
        found.existing += if number > 0 { names.len() as u64 } else { 0 };
        Ok(())
    }
}
