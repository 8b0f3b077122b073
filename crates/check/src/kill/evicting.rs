//! Workload of a server that evicts keys: its keys need more space than `maxmemory` allows.
//!
//! Each start of the server has another policy. So keys are evicted by all policies, some writes are refused, and every key
//! is read after each restart. No key expires while a test runs, so a missing key was deleted or evicted.
//!
//! ```text
//!   Kept ◀──── SET, MSET ──── Absent ──── SET EX ────▶ Expiring        PERSIST: Expiring ─▶ Kept
//!    └─ evicted by allkeys-* ──▶ ▲ ◀── evicted by allkeys-*, volatile-* ──┘        EXPIRE: Kept ─▶ Expiring
//! ```
//!
//! # What is checked
//! CHECK-EVICT-1  A key holds its newest acknowledged value, a value that was sent after it, or nothing. Never an older value.
//! CHECK-EVICT-2  Once a reply has shown that a key is absent, it stays absent until it is written, also after a kill.
//! CHECK-EVICT-3  Only keys that the policy allows are evicted: keys that expire by `volatile-*`, none by `noeviction`.
//! CHECK-EVICT-4  A refused write has no effect. A policy `allkeys-*` refuses none.
//! CHECK-EVICT-5  All members of an MSET that are present hold values of the same MSET.

use std::collections::VecDeque;

use farbank_pm::rng::Rng;

use super::event_log::EventLog;
use super::workload::{
    LoadOutcome, PIPELINE, RECORD_OVERHEAD, Register, RestartFindings, VALUE_BYTES,
    load_until_gone, number_of, value,
};
use super::{KillLoad, KillShared};
use crate::child::{ConnectionStop, RespClient, RespReply};

/// Space that all keys need, in percent of `maxmemory`.
const VOLUME_PERCENT: u64 = 150;
/// Groups of keys that MSET writes, and keys of a group.
const GROUPS: usize = 64;
const GROUP_KEYS: usize = 4;
/// Shortest lifetime of a key, in seconds: longer than a test runs.
const LIFETIME_SECS: u64 = 24 * 3_600;
/// Keys that a check reads with one pipeline.
const CHECK_KEYS: usize = 128;
/// The policies in turn.
const POLICIES: [&str; 8] = [
    "allkeys-random",
    "volatile-lru",
    "allkeys-lfu",
    "volatile-ttl",
    "noeviction",
    "allkeys-lru",
    "volatile-random",
    "volatile-lfu",
];

/// Limit and policy of a server that evicts keys.
#[derive(Clone, Debug)]
pub struct EvictionOptions {
    /// Bytes of records that the server may hold (`maxmemory`).
    pub maxmemory: u64,
    /// Name of the policy of all starts. `None`: each start has another one.
    pub policy: Option<String>,
}

impl EvictionOptions {
    /// Sets the limit and the policy of `cycle` in the server at `addr`. Returns the policy.
    pub(super) fn apply(&self, addr: &str, cycle: u64) -> Result<&str, ConnectionStop> {
        let turn = POLICIES[cycle as usize % POLICIES.len()];
        let policy = self.policy.as_deref().unwrap_or(turn);
        let maxmemory = self.maxmemory.to_string();
        let words = ["CONFIG", "SET", "maxmemory", &maxmemory];
        let words = [&words[..], &["maxmemory-policy", policy]].concat();
        match RespClient::connect(addr)?.request(&words)? {
            RespReply::Simple(_) => Ok(policy),
            reply => Err(ConnectionStop::wrong(
                "CONFIG",
                format!("CONFIG SET maxmemory-policy {policy} returned {reply:?}"),
            )),
        }
    }
}

/// Keys that a policy may evict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EvictableKeys {
    All,
    Expiring,
    None,
}

impl EvictableKeys {
    fn of(policy: Option<&str>) -> EvictableKeys {
        match policy.map(|policy| policy.split('-').next()) {
            Some(Some("allkeys")) => EvictableKeys::All,
            Some(Some("volatile")) => EvictableKeys::Expiring,
            _ => EvictableKeys::None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum EvictingState {
    #[default]
    Absent,
    /// It does not expire.
    Kept,
    /// It expires after the test.
    Expiring,
}

/// What a write leaves in a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct EvictingVersion {
    /// Number of the value.
    number: u64,
    state: EvictingState,
}

/// A command without a reply yet.
#[derive(Clone, Copy, Debug)]
enum EvictingCommand {
    /// `has_get`: with the option GET.
    Set {
        key: usize,
        has_get: bool,
    },
    Group {
        group: usize,
    },
    Delete {
        key: usize,
    },
    GetAndDelete {
        key: usize,
    },
    Get {
        key: usize,
    },
    Persist {
        key: usize,
    },
    Expire {
        key: usize,
    },
}

/// Connection that owns a set of keys and is the only one to write them.
pub(super) struct EvictingOwner {
    id: usize,
    rng: Rng,
    /// Single keys, then the members of the groups.
    keys: Vec<Register<EvictingVersion>>,
    /// Number of single keys.
    single: usize,
    evictable: EvictableKeys,
    numbers: u64,
    refused: u64,
    sent: VecDeque<EvictingCommand>,
    events: EventLog,
}

impl EvictingOwner {
    /// Creates an owner whose keys need more than its share of the limit, `share_bytes`.
    pub(super) fn new(id: usize, share_bytes: u64, seed: u64) -> EvictingOwner {
        let record_bytes = (VALUE_BYTES.start + VALUE_BYTES.end) / 2 + RECORD_OVERHEAD;
        let keys = (share_bytes * VOLUME_PERCENT / 100 / record_bytes) as usize;
        let keys = keys.max(2 * GROUPS * GROUP_KEYS);
        EvictingOwner {
            id,
            rng: Rng::new(seed).fork(id as u64 + 1),
            keys: vec![Register::default(); keys],
            single: keys - GROUPS * GROUP_KEYS,
            evictable: EvictableKeys::None,
            numbers: 0,
            refused: 0,
            sent: VecDeque::new(),
            events: EventLog::default(),
        }
    }

    fn key_name(&self, key: usize) -> String {
        format!("e{}:{key}", self.id)
    }

    fn violation(&self, key: usize, what: String) -> ConnectionStop {
        self.events.violation(&self.key_name(key), what)
    }

    fn members(&self, group: usize) -> std::ops::Range<usize> {
        let first = self.single + group * GROUP_KEYS;
        first..first + GROUP_KEYS
    }

    fn is_evictable(&self, version: EvictingVersion) -> bool {
        match self.evictable {
            EvictableKeys::All => version.state != EvictingState::Absent,
            EvictableKeys::Expiring => version.state == EvictingState::Expiring,
            EvictableKeys::None => false,
        }
    }

    /// Draws a key. One in 16 is one of a few, so that some keys are used often.
    fn draw_key(&mut self) -> usize {
        let keys = match self.rng.one_in(16) {
            true => 32,
            false => self.single as u64,
        };
        self.rng.below(keys) as usize
    }
}

impl KillLoad for EvictingOwner {
    fn begin(&mut self, policy: Option<&str>) {
        self.evictable = EvictableKeys::of(policy);
    }

    fn fill(&mut self, client: &mut RespClient, _: &KillShared) -> Result<(), ConnectionStop> {
        for first in (0..self.single).step_by(PIPELINE as usize) {
            for key in first..self.single.min(first + PIPELINE as usize) {
                self.set(client, key, false);
            }
            self.receive(client)?;
        }
        for group in 0..GROUPS {
            self.set_group(client, group);
        }
        self.receive(client)
    }

    fn load(&mut self, addr: &str, _: &KillShared) -> Result<LoadOutcome, ConnectionStop> {
        self.refused = 0;
        let acknowledged = load_until_gone(addr, |client| {
            for _ in 0..=self.rng.below(PIPELINE) {
                self.draw(client);
            }
            let sent = self.sent.len();
            let received = self.receive(client);
            ((sent - self.sent.len()) as u64, received)
        })?;
        let in_flight = self.sent.len() as u64;
        self.sent.clear();
        Ok(LoadOutcome {
            acknowledged,
            in_flight,
            refused: self.refused,
        })
    }

    fn check(&mut self, client: &mut RespClient) -> Result<RestartFindings, ConnectionStop> {
        let mut found = RestartFindings::default();
        for first in (0..self.keys.len()).step_by(CHECK_KEYS) {
            let keys = first..self.keys.len().min(first + CHECK_KEYS);
            for key in keys.clone() {
                let name = self.key_name(key);
                client.send(&["GET", &name]);
                client.send(&["PTTL", &name]);
            }
            client.flush()?;
            for key in keys {
                let (value, lifetime) = (client.reply()?, client.reply()?);
                self.check_key(key, value, lifetime)?;
                found.checked += 1;
                let is_present = self.keys[key].acknowledged.state != EvictingState::Absent;
                found.existing += u64::from(is_present);
            }
        }
        for group in 0..GROUPS {
            self.check_group(group)?;
        }
        Ok(found)
    }
}

// Sending.
impl EvictingOwner {
    /// Adds a command of a random kind to the pipeline.
    fn draw(&mut self, client: &mut RespClient) {
        let key = self.draw_key();
        match self.rng.below(100) {
            0..40 => self.set(client, key, false),
            40..48 => self.set(client, key, true),
            48..72 => self.get(client, key),
            72..76 => self.remove(client, key, false),
            76..79 => self.remove(client, key, true),
            79..85 => self.persist(client, key),
            85..91 => self.expire(client, key),
            _ => {
                let group = self.rng.below(GROUPS as u64) as usize;
                self.set_group(client, group);
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Notes the state that a command leaves in a key.
    fn expect(&mut self, key: usize, version: EvictingVersion, what: String) {
        self.events.note(&self.key_name(key), what);
        self.keys[key].sent.push_back(version);
    }

    fn set(&mut self, client: &mut RespClient, key: usize, has_get: bool) {
        let (name, number) = (self.key_name(key), self.next_number());
        let bytes = value(&name, number);
        // Most of the second half of the keys expire.
        let expires = key >= self.single / 2 && !self.rng.one_in(4);
        let lifetime = self.lifetime();
        let mut words = vec![&b"SET"[..], name.as_bytes(), &bytes];
        if expires {
            words.extend([&b"EX"[..], lifetime.as_bytes()]);
        }
        if has_get {
            words.push(b"GET");
        }
        client.send(&words);
        let state = match expires {
            true => EvictingState::Expiring,
            false => EvictingState::Kept,
        };
        let version = EvictingVersion { number, state };
        self.expect(key, version, format!("SET {number}, {state:?}"));
        self.sent.push_back(EvictingCommand::Set { key, has_get });
    }

    fn lifetime(&mut self) -> String {
        (LIFETIME_SECS + self.rng.below(LIFETIME_SECS)).to_string()
    }

    fn set_group(&mut self, client: &mut RespClient, group: usize) {
        let number = self.next_number();
        let mut words = vec![b"MSET".to_vec()];
        let state = EvictingState::Kept;
        for key in self.members(group) {
            let name = self.key_name(key);
            words.push(name.clone().into_bytes());
            words.push(value(&name, number));
            let version = EvictingVersion { number, state };
            self.expect(key, version, format!("MSET {number}"));
        }
        client.send(&words);
        self.sent.push_back(EvictingCommand::Group { group });
    }

    fn get(&mut self, client: &mut RespClient, key: usize) {
        client.send(&["GET", &self.key_name(key)]);
        self.sent.push_back(EvictingCommand::Get { key });
    }

    fn remove(&mut self, client: &mut RespClient, key: usize, gets: bool) {
        let (command, sent) = match gets {
            true => ("GETDEL", EvictingCommand::GetAndDelete { key }),
            false => ("DEL", EvictingCommand::Delete { key }),
        };
        client.send(&[command, &self.key_name(key)]);
        self.expect(key, EvictingVersion::default(), command.into());
        self.sent.push_back(sent);
    }

    fn persist(&mut self, client: &mut RespClient, key: usize) {
        client.send(&["PERSIST", &self.key_name(key)]);
        let mut version = self.keys[key].newest();
        if version.state == EvictingState::Expiring {
            version.state = EvictingState::Kept;
        }
        self.expect(key, version, "PERSIST".into());
        self.sent.push_back(EvictingCommand::Persist { key });
    }

    fn expire(&mut self, client: &mut RespClient, key: usize) {
        client.send(&["EXPIRE", &self.key_name(key), &self.lifetime()]);
        let mut version = self.keys[key].newest();
        if version.state == EvictingState::Kept {
            version.state = EvictingState::Expiring;
        }
        self.expect(key, version, "EXPIRE".into());
        self.sent.push_back(EvictingCommand::Expire { key });
    }
}

// Receiving. All commands before a reply have been answered, so the acknowledged version is the state that its command has
// found, unless the key was evicted.
impl EvictingOwner {
    /// Sends the pipeline and checks all replies.
    fn receive(&mut self, client: &mut RespClient) -> Result<(), ConnectionStop> {
        client.flush()?;
        while let Some(sent) = self.sent.front().copied() {
            let reply = client.reply()?;
            self.check_reply(sent, reply)?;
            self.sent.pop_front();
        }
        Ok(())
    }

    fn check_reply(
        &mut self,
        sent: EvictingCommand,
        reply: RespReply,
    ) -> Result<(), ConnectionStop> {
        let ok = RespReply::Simple("OK".into());
        match (sent, reply) {
            (
                EvictingCommand::Set {
                    key,
                    has_get: false,
                },
                reply,
            ) if reply == ok => {
                self.acknowledge(key);
            }
            (EvictingCommand::Set { key, has_get: true }, RespReply::Bulk(found)) => {
                self.found(key, found.as_deref())?;
                self.acknowledge(key);
            }
            (EvictingCommand::Group { group }, reply) if reply == ok => {
                for key in self.members(group) {
                    self.acknowledge(key);
                }
            }
            (EvictingCommand::Set { key, .. }, RespReply::Error(error)) => {
                self.refuse(key, &error)?;
                self.refused += 1;
            }
            (EvictingCommand::Group { group }, RespReply::Error(error)) => {
                for key in self.members(group) {
                    self.refuse(key, &error)?;
                }
                self.refused += 1;
            }
            (EvictingCommand::Get { key }, RespReply::Bulk(found)) => {
                self.found(key, found.as_deref())?;
            }
            (EvictingCommand::GetAndDelete { key }, RespReply::Bulk(found)) => {
                self.found(key, found.as_deref())?;
                self.acknowledge(key);
            }
            (EvictingCommand::Delete { key }, RespReply::Number(deleted)) => {
                self.has_found(key, deleted == 1)?;
                self.acknowledge(key);
            }
            (EvictingCommand::Persist { key }, RespReply::Number(changed)) => {
                self.persisted(key, changed == 1)?;
            }
            (EvictingCommand::Expire { key }, RespReply::Number(changed)) => {
                self.has_found(key, changed == 1)?;
                self.keys[key].sent.pop_front();
                if changed == 1 {
                    self.keys[key].acknowledged.state = EvictingState::Expiring;
                }
            }
            (sent, reply) => {
                let what = format!("unexpected reply to {sent:?}: {reply:?}");
                return Err(self.events.violation("pipeline", what));
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, key: usize) {
        let register = &mut self.keys[key];
        let version = register.sent.pop_front();
        register.acknowledged = version.expect("a reply follows a command");
    }

    /// Notes that a write of `key` was refused (CHECK-EVICT-4).
    fn refuse(&mut self, key: usize, error: &str) -> Result<(), ConnectionStop> {
        if self.evictable == EvictableKeys::All || !error.starts_with("OOM ") {
            return Err(self.violation(key, format!("a write was refused: {error}")));
        }
        let refused = self.keys[key].sent.pop_front();
        let number = refused.map_or(0, |version| version.number);
        let what = format!("{number} was refused");
        self.events.note(&self.key_name(key), what);
        Ok(())
    }

    /// Checks whether a command may have found `key` present or absent (CHECK-EVICT-2, CHECK-EVICT-3).
    fn has_found(&mut self, key: usize, is_present: bool) -> Result<(), ConnectionStop> {
        let version = self.keys[key].acknowledged;
        let is_allowed = match is_present {
            true => version.state != EvictingState::Absent,
            false => version.state == EvictingState::Absent || self.is_evictable(version),
        };
        if !is_allowed {
            let seen = if is_present { "present" } else { "absent" };
            let what = format!("the key was {seen}, expected {version:?}");
            return Err(self.violation(key, what));
        }
        if !is_present && version.state != EvictingState::Absent {
            self.keys[key].acknowledged = EvictingVersion::default();
            self.events
                .note(&self.key_name(key), "found evicted".into());
        }
        Ok(())
    }

    /// Checks the value that a command has found in `key` (CHECK-EVICT-1).
    fn found(&mut self, key: usize, bytes: Option<&[u8]>) -> Result<(), ConnectionStop> {
        self.has_found(key, bytes.is_some())?;
        let Some(bytes) = bytes else {
            return Ok(());
        };
        let expected = self.keys[key].acknowledged.number;
        match number_of(&self.key_name(key), bytes) {
            Ok(number) if number == expected => Ok(()),
            Ok(number) => {
                let what = format!("found the value {number}, expected {expected}");
                Err(self.violation(key, what))
            }
            Err(wrong) => Err(self.violation(key, wrong.0)),
        }
    }

    /// Checks the reply to PERSIST: whether it has changed the key.
    fn persisted(&mut self, key: usize, has_changed: bool) -> Result<(), ConnectionStop> {
        self.keys[key].sent.pop_front();
        match (self.keys[key].acknowledged.state, has_changed) {
            (EvictingState::Expiring, true) => {
                self.keys[key].acknowledged.state = EvictingState::Kept;
                Ok(())
            }
            (EvictingState::Expiring, false) => self.has_found(key, false),
            (EvictingState::Absent | EvictingState::Kept, false) => Ok(()),
            (state, true) => {
                Err(self.violation(key, format!("PERSIST returned 1, expected {state:?}")))
            }
        }
    }
}

// Checking after a restart.
impl EvictingOwner {
    /// Checks a key and settles its state.
    fn check_key(
        &mut self,
        key: usize,
        value: RespReply,
        lifetime: RespReply,
    ) -> Result<(), ConnectionStop> {
        let name = self.key_name(key);
        let (RespReply::Bulk(bytes), RespReply::Number(lifetime)) = (value, lifetime) else {
            return Err(self.violation(key, "unexpected replies to GET and PTTL".into()));
        };
        let number = bytes.map(|bytes| number_of(&name, &bytes)).transpose();
        let number = number.map_err(|wrong| self.violation(key, wrong.0))?;
        let version = match (number, lifetime) {
            (None, -2) => EvictingVersion::default(),
            (Some(number), -1) => EvictingVersion {
                number,
                state: EvictingState::Kept,
            },
            (Some(number), 1..) => EvictingVersion {
                number,
                state: EvictingState::Expiring,
            },
            _ => {
                let what = format!("found {number:?} with the lifetime {lifetime}");
                return Err(self.violation(key, what));
            }
        };
        if !self.is_possible(key, version) {
            let register = &self.keys[key];
            let what = format!("found {version:?}, allowed is {register:?}");
            return Err(self.violation(key, what));
        }
        self.keys[key].settle(version);
        Ok(())
    }

    /// Whether a restart may find `version` in a key.
    fn is_possible(&self, key: usize, version: EvictingVersion) -> bool {
        let register = &self.keys[key];
        let mut possible = register.possible();
        match (version.state, register.sent.is_empty()) {
            (EvictingState::Absent, _) => possible
                .any(|other| other.state == EvictingState::Absent || self.is_evictable(other)),
            (_, true) => register.acknowledged == version,
            // The state depends on which commands were executed.
            (_, false) => possible.any(|other| {
                other.state != EvictingState::Absent && other.number == version.number
            }),
        }
    }

    /// Checks CHECK-EVICT-5.
    fn check_group(&self, group: usize) -> Result<(), ConnectionStop> {
        let versions = self.keys[self.members(group)].iter();
        let mut numbers = versions
            .map(|register| register.acknowledged)
            .filter(|version| version.state != EvictingState::Absent)
            .map(|version| version.number);
        let first = numbers.next();
        match numbers.find(|number| Some(*number) != first) {
            None => Ok(()),
            Some(other) => {
                let what = format!("torn MSET: its members hold {first:?} and {other}");
                Err(self.violation(self.members(group).start, what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(policy: &str) -> EvictingOwner {
        let mut owner = EvictingOwner::new(0, 1 << 20, 1);
        owner.begin(Some(policy));
        owner
    }

    fn version(number: u64, state: EvictingState) -> EvictingVersion {
        EvictingVersion { number, state }
    }

    /// Checks key 0 as a restart finds it: a value with `number`, or nothing.
    fn restarted(owner: &mut EvictingOwner, number: Option<u64>, lifetime: i64) -> bool {
        let bytes = number.map(|number| value("e0:0", number));
        let (bytes, lifetime) = (RespReply::Bulk(bytes), RespReply::Number(lifetime));
        owner.check_key(0, bytes, lifetime).is_ok()
    }

    #[test]
    fn a_restart_may_find_the_acknowledged_value_or_nothing_but_no_older_value() {
        for (policy, state, may_be_absent) in [
            ("allkeys-lru", EvictingState::Kept, true),
            ("volatile-lru", EvictingState::Kept, false),
            ("volatile-lru", EvictingState::Expiring, true),
            ("noeviction", EvictingState::Expiring, false),
        ] {
            let lifetime = if state == EvictingState::Kept { -1 } else { 9 };
            let mut owner = owner(policy);
            owner.keys[0].settle(version(7, state));
            assert!(!restarted(&mut owner, Some(6), lifetime), "{policy}");
            assert!(!restarted(&mut owner, Some(7), 8 - lifetime), "{policy}");
            assert!(restarted(&mut owner, Some(7), lifetime), "{policy}");
            assert_eq!(restarted(&mut owner, None, -2), may_be_absent, "{policy}");
        }
    }

    #[test]
    fn a_key_that_was_found_evicted_must_not_return() {
        let mut owner = owner("allkeys-lru");
        owner.keys[0].settle(version(7, EvictingState::Kept));
        assert!(owner.found(0, None).is_ok());
        assert!(owner.found(0, Some(&value("e0:0", 7))).is_err());
        assert!(!restarted(&mut owner, Some(7), -1));
    }

    #[test]
    fn a_refused_write_must_not_take_effect() {
        let mut owner = owner("volatile-lru");
        owner.keys[0].settle(version(7, EvictingState::Kept));
        owner.keys[0]
            .sent
            .push_back(version(8, EvictingState::Kept));
        assert!(owner.refuse(0, "OOM command not allowed").is_ok());
        assert!(!restarted(&mut owner, Some(8), -1));
        assert!(restarted(&mut owner, Some(7), -1));
        owner.begin(Some("allkeys-lru"));
        assert!(owner.refuse(0, "OOM command not allowed").is_err());
    }

    #[test]
    fn present_members_of_a_group_must_be_of_one_mset() {
        let mut owner = owner("allkeys-lru");
        let first = owner.members(0).start;
        owner.keys[first].settle(version(3, EvictingState::Kept));
        owner.keys[first + 2].settle(version(3, EvictingState::Kept));
        assert!(owner.check_group(0).is_ok());
        owner.keys[first + 3].settle(version(2, EvictingState::Kept));
        assert!(owner.check_group(0).is_err());
    }
}
