//! A client of the server under test. It draws random calls, sends them and records the answers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use farbank_pm::rng::Rng;

use super::family::{
    ACCOUNTS, CallAnswer, FAMILIES, FamilyCall, FamilyState, REGISTERS, TRANSFERRED,
};
use super::search::SeenCall;
use super::values::{STEP, ValueId, number, value};
use crate::child::{ConnectionStop, MemcachedClient, RespClient, RespReply};

/// The script of [`FamilyCall::Route`]. Which accounts it changes, and in which order, is known only when it runs.
const ROUTE: &str = "local payer = tonumber(redis.call('get', 'a2') or 0) % 2 \
     return {redis.call('decrby', 'a' .. payer, ARGV[1]), redis.call('incrby', 'a' .. 1 - payer, ARGV[1])}";
/// The script of [`FamilyCall::Exchange`]. A value begins with its id, which is odd if the value fits into a group.
const EXCHANGE: &str = "local one, other = 'r' .. ARGV[1], 'r' .. ARGV[2] \
     local a, b = redis.call('get', one), redis.call('get', other) \
     if not a or not b or string.byte(a) % 2 == 0 or string.byte(b) % 2 == 0 then return 0 end \
     redis.call('set', one, b) redis.call('set', other, a) \
     return 1";

/// State that all clients of a run share.
pub(super) struct HistoryShared {
    pub(super) began: Instant,
    /// Whether the pool is kept full. DEL of several keys is not atomic then.
    is_full: bool,
    /// Whether a reply may say that the medium has failed.
    medium_may_fail: bool,
    /// Newest value id.
    ids: AtomicU32,
}

impl HistoryShared {
    pub(super) fn new(is_full: bool, medium_may_fail: bool) -> HistoryShared {
        HistoryShared {
            began: Instant::now(),
            is_full,
            medium_may_fail,
            ids: AtomicU32::new(0),
        }
    }

    /// Returns the time since the run began, in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn id(&self) -> ValueId {
        self.ids.fetch_add(STEP, Ordering::Relaxed) + STEP
    }

    /// Returns an id for a value that is written together with other values.
    fn grouped_id(&self) -> ValueId {
        self.id() + 1
    }
}

/// Calls of one client: a list for each family, in the order of sending.
pub(super) type ClientCalls = [Vec<SeenCall>; FAMILIES];

/// Position of a recorded call: for each family, the index in that family's list.
struct CallPlace(Vec<(usize, usize)>);

/// Random client that records its calls.
pub(super) struct HistoryClient<'a> {
    shared: &'a HistoryShared,
    rng: Rng,
    seen: ClientCalls,
}

/// Returns the names of all keys of a family.
fn names() -> impl Iterator<Item = String> {
    let registers = (0..REGISTERS).map(register);
    registers.chain((0..ACCOUNTS).map(account))
}

fn register(at: usize) -> String {
    format!("r{at}")
}

fn account(at: usize) -> String {
    format!("a{at}")
}

impl<'a> HistoryClient<'a> {
    pub(super) fn new(shared: &'a HistoryShared, rng: Rng) -> HistoryClient<'a> {
        HistoryClient {
            shared,
            rng,
            seen: ClientCalls::default(),
        }
    }

    /// Sends random calls until the server ends. Returns the recorded calls.
    ///
    /// # Errors
    /// The server sent a reply that the specification does not allow.
    pub(super) fn work(mut self, addr: &str) -> Result<ClientCalls, ConnectionStop> {
        let ended = RespClient::connect(addr).and_then(|mut client| {
            loop {
                match self.rng.below(20) {
                    0 => self.replace(&mut client)?,
                    1..=3 => self.pipeline(&mut client)?,
                    _ => {
                        let call = self.draw();
                        self.make(&mut client, vec![call])?;
                    }
                }
            }
        });
        self.end(ended)
    }

    /// Like [`work`](Self::work), over memcached's protocol. This protocol reaches only the first family.
    pub(super) fn work_memcached(mut self, addr: &str) -> Result<ClientCalls, ConnectionStop> {
        let ended = MemcachedClient::connect(addr).and_then(|mut client| {
            loop {
                self.item(&mut client)?;
            }
        });
        self.end(ended)
    }

    fn end(self, ended: Result<(), ConnectionStop>) -> Result<ClientCalls, ConnectionStop> {
        match ended {
            Ok(()) | Err(ConnectionStop::Gone(_)) => Ok(self.seen),
            Err(ConnectionStop::MediumFailed(_)) if self.shared.medium_may_fail => Ok(self.seen),
            Err(stop) => Err(stop),
        }
    }

    /// Sends several calls at once, no two of them on the same key. A write that is not yet durable is visible to its
    /// own connection only. So a call that reads another call of its pipeline would take effect at two moments.
    fn pipeline(&mut self, client: &mut RespClient) -> Result<(), ConnectionStop> {
        let count = 2 + self.rng.below(5);
        let mut calls: Vec<FamilyCall> = Vec::new();
        for _ in 0..count {
            let call = self.draw();
            let alone =
                call.keys() == 0 || calls.iter().any(|other| other.keys() & call.keys() != 0);
            if !alone {
                calls.push(call);
            }
        }
        self.make(client, calls)
    }

    /// Sends calls on one family and reads all replies.
    fn make(
        &mut self,
        client: &mut RespClient,
        calls: Vec<FamilyCall>,
    ) -> Result<(), ConnectionStop> {
        let family = self.select(client);
        calls.iter().for_each(|call| send(client, call));
        let sent = self.shared.now();
        let noted = calls.iter().map(|call| self.note_at(family, call, sent));
        let noted: Vec<CallPlace> = noted.collect();
        client.flush()?;
        selected(client, family)?;
        for (call, noted) in calls.iter().zip(noted) {
            let answer = receive(client, call)?;
            self.answered(&noted, answer);
        }
        Ok(())
    }

    /// Draws a family and selects its database.
    fn select(&mut self, client: &mut RespClient) -> usize {
        let family = self.rng.below(FAMILIES as u64) as usize;
        client.send(&["SELECT", &family.to_string()]);
        family
    }

    /// Records a call before it is sent. FLUSHALL is recorded for every family.
    fn note(&mut self, family: usize, call: &FamilyCall) -> CallPlace {
        self.note_at(family, call, self.shared.now())
    }

    fn note_at(&mut self, family: usize, call: &FamilyCall, sent: u64) -> CallPlace {
        let event = SeenCall {
            call: call.clone(),
            answer: None,
            sent,
            answered: u64::MAX,
        };
        let mut noted = Vec::new();
        for (other, events) in self.seen.iter_mut().enumerate() {
            if other == family || *call == FamilyCall::Clear {
                noted.push((other, events.len()));
                events.push(event.clone());
            }
        }
        CallPlace(noted)
    }

    /// Records the answer of a call.
    fn answered(&mut self, noted: &CallPlace, answer: CallAnswer) {
        let time = self.shared.now();
        for (family, at) in &noted.0 {
            let event = &mut self.seen[*family][*at];
            event.answer = Some(answer.clone());
            event.answered = time;
        }
    }

    /// Draws a call that is one command or one MULTI.
    fn draw(&mut self) -> FamilyCall {
        let one = self.rng.below(REGISTERS as u64) as usize;
        match self.rng.below(400) {
            0 if self.rng.one_in(4) => FamilyCall::Clear,
            ..=79 => FamilyCall::Get(one),
            80..=119 => FamilyCall::GetAll,
            120..=189 => FamilyCall::Set(vec![(one, self.shared.id())]),
            190..=209 => FamilyCall::Set(self.some_new()),
            210..=239 => FamilyCall::Swap(one, self.shared.id()),
            240..=264 => FamilyCall::SetNew(vec![(one, self.shared.id())]),
            265..=279 => FamilyCall::SetNew(self.some_new()),
            280..=289 => FamilyCall::Take(one),
            290..=309 if self.shared.is_full => FamilyCall::Delete(vec![one]),
            290..=309 => FamilyCall::Delete(self.some()),
            310..=329 => FamilyCall::Count(vec![one]),
            330..=369 => {
                let account = self.rng.below(ACCOUNTS as u64) as usize;
                FamilyCall::Add(account, self.rng.below(9) as i64 + 1)
            }
            370..=379 => FamilyCall::Transfer(self.rng.below(99) as i64 + 1),
            380..=389 => FamilyCall::Route(self.rng.below(99) as i64 + 1),
            _ => {
                let distance = 1 + self.rng.below(REGISTERS as u64 - 1) as usize;
                FamilyCall::Exchange(one, (one + distance) % REGISTERS)
            }
        }
    }

    /// Draws one to four registers.
    fn some(&mut self) -> Vec<usize> {
        let chosen = 1 + self.rng.below((1 << REGISTERS) - 1);
        (0..REGISTERS).filter(|at| chosen >> at & 1 == 1).collect()
    }

    fn some_new(&mut self) -> Vec<(usize, ValueId)> {
        let some = self.some();
        some.into_iter()
            .map(|at| (at, self.shared.grouped_id()))
            .collect()
    }

    /// Sends WATCH between two reads, and a MULTI that writes if nothing changed. A key that is created and removed
    /// again after WATCH counts as unchanged (docs/compatibility.md). So the client writes only if both reads returned
    /// the same. It writes some of the keys that it watches.
    fn replace(&mut self, client: &mut RespClient) -> Result<(), ConnectionStop> {
        let family = self.select(client);
        let chosen = self.some();
        let words = |command: &str| named(command, &chosen);
        for command in ["MGET", "WATCH", "MGET"] {
            client.send(&words(command));
        }
        client.flush()?;
        selected(client, family)?;
        let before = registers(client.reply()?)?;
        expect(client, "WATCH", "OK")?;
        let found = registers(client.reply()?)?;
        if found != before {
            client.send(&["UNWATCH"]);
            client.flush()?;
            return expect(client, "UNWATCH", "OK");
        }
        let read = chosen.iter().copied().zip(found).collect();
        let mut written = chosen.clone();
        while written.len() > 1 && self.rng.one_in(2) {
            written.swap_remove(self.rng.below(written.len() as u64) as usize);
        }
        let write: Vec<(usize, ValueId)> = written
            .into_iter()
            .map(|at| (at, self.shared.grouped_id()))
            .collect();
        let commands = write.len();
        client.send(&["MULTI"]);
        for pair in &write {
            client.send(&valued("SET", &[*pair]));
        }
        client.send(&["EXEC"]);
        let noted = self.note(family, &FamilyCall::Replace { read, write });
        client.flush()?;
        let answer = match executed(client, commands)? {
            TransactionOutcome::Done(_) => CallAnswer::Done,
            // A key changed since WATCH, perhaps before the second read, or a group stored its value again. Then the values
            // that were read may still be current.
            TransactionOutcome::Changed | TransactionOutcome::NoRoom => CallAnswer::Refused,
        };
        self.answered(&noted, answer);
        Ok(())
    }

    /// Sends one random call over memcached's protocol.
    fn item(&mut self, client: &mut MemcachedClient) -> Result<(), ConnectionStop> {
        let at = self.rng.below(REGISTERS as u64) as usize;
        let (key, id) = (register(at), self.shared.id());
        match self.rng.below(8) {
            0 | 1 => self.get(client, at).map(drop),
            2 => {
                let noted = self.note(0, &FamilyCall::Set(vec![(at, id)]));
                match store(client, "set", at, id, "")?.as_str() {
                    "STORED" => self.answered(&noted, CallAnswer::Done),
                    line if is_full(line) => self.removed(&noted, at),
                    line => return Err(ConnectionStop::wrong(&key, line)),
                }
                Ok(())
            }
            3 => {
                let call = FamilyCall::SetNew(vec![(at, id)]);
                let answers = [
                    ("STORED", CallAnswer::Number(1)),
                    ("NOT_STORED", CallAnswer::Number(0)),
                ];
                let noted = self.note(0, &call);
                let line = store(client, "add", at, id, "")?;
                self.answered_one_of(&noted, &line, &answers)
            }
            4 => {
                let answers = [
                    ("DELETED", CallAnswer::Number(1)),
                    ("NOT_FOUND", CallAnswer::Number(0)),
                ];
                let noted = self.note(0, &FamilyCall::Delete(vec![at]));
                let line = client.request(&format!("delete {key}"), None)?;
                self.answered_one_of(&noted, &line, &answers)
            }
            _ => self.compare_and_set(client, at, id),
        }
    }

    /// Sends `gets`. Returns the value's id and the `cas` number.
    fn get(
        &mut self,
        client: &mut MemcachedClient,
        at: usize,
    ) -> Result<Option<(ValueId, u64)>, ConnectionStop> {
        let noted = self.note(0, &FamilyCall::Get(at));
        let item = client.gets(&register(at))?;
        let number = |(bytes, cas): (Vec<u8>, u64)| {
            let id = number(&bytes).map_err(|what| ConnectionStop::wrong(register(at), what));
            id.map(|id| (id, cas))
        };
        let item = item.map(number).transpose()?;
        self.answered(&noted, CallAnswer::Value(item.map(|(id, _)| id)));
        Ok(item)
    }

    /// Sends `gets`, then `cas` with the number that it returned.
    fn compare_and_set(
        &mut self,
        client: &mut MemcachedClient,
        at: usize,
        id: ValueId,
    ) -> Result<(), ConnectionStop> {
        let Some((old, cas)) = self.get(client, at)? else {
            return Ok(());
        };
        let read = vec![(at, Some(old))];
        let write = vec![(at, id)];
        let noted = self.note(0, &FamilyCall::Replace { read, write });
        let line = store(client, "cas", at, id, &format!(" {cas}"))?;
        let answers = [
            ("STORED", CallAnswer::Done),
            // A group that has read the item may have stored it again, with a new number (docs/compatibility.md).
            ("EXISTS", CallAnswer::Refused),
            ("NOT_FOUND", CallAnswer::Changed),
        ];
        self.answered_one_of(&noted, &line, &answers)
    }

    fn answered_one_of(
        &mut self,
        noted: &CallPlace,
        line: &str,
        answers: &[(&str, CallAnswer)],
    ) -> Result<(), ConnectionStop> {
        let answer = match answers.iter().find(|(said, _)| *said == line) {
            Some((_, answer)) => answer.clone(),
            None if is_full(line) => CallAnswer::Refused,
            None => return Err(ConnectionStop::wrong("memcached", line)),
        };
        self.answered(noted, answer);
        Ok(())
    }

    /// Records that a `set` which found no room has removed the old item.
    fn removed(&mut self, noted: &CallPlace, at: usize) {
        for (family, place) in &noted.0 {
            self.seen[*family][*place].call = FamilyCall::Remove(at);
        }
        self.answered(noted, CallAnswer::Done);
    }

    /// Reads all keys of all families.
    ///
    /// # Errors
    /// The server ended, a value has wrong bytes, or DBSIZE differs from the number of keys found.
    pub(super) fn read_all(
        mut self,
        addr: &str,
    ) -> Result<(ClientCalls, Vec<FamilyState>), ConnectionStop> {
        let mut client = RespClient::connect(addr)?;
        let mut states = Vec::new();
        for family in 0..FAMILIES {
            client.send(&["SELECT", &family.to_string()]);
            send(&mut client, &FamilyCall::GetAll);
            client.send(&["DBSIZE"]);
            let noted = self.note(family, &FamilyCall::GetAll);
            client.flush()?;
            selected(&mut client, family)?;
            let answer = receive(&mut client, &FamilyCall::GetAll)?;
            let CallAnswer::All(state) = answer else {
                return Err(ConnectionStop::wrong("MGET", format!("{answer:?}")));
            };
            self.answered(&noted, answer);
            match client.reply()? {
                RespReply::Number(keys) if keys == state.keys() as i64 => {}
                other => {
                    let what =
                        format!("DBSIZE is {other:?}, expected the number of keys in {state:?}");
                    return Err(ConnectionStop::wrong(format!("DBSIZE of {family}"), what));
                }
            }
            states.push(state);
        }
        Ok((self.seen, states))
    }
}

/// Returns whether a transaction was discarded because the pool is full.
fn is_aborted(text: &str) -> bool {
    text.strip_prefix("EXECABORT Transaction discarded because of: ")
        .unwrap_or(text)
        .starts_with("OOM")
}

fn is_full(line: &str) -> bool {
    line.starts_with("SERVER_ERROR out of memory")
}

/// Stores a value over memcached's protocol.
fn store(
    client: &mut MemcachedClient,
    command: &str,
    at: usize,
    id: ValueId,
    cas: &str,
) -> Result<String, ConnectionStop> {
    let data = value(id);
    let line = format!("{command} {} 0 0 {}{cas}", register(at), data.len());
    client.request(&line, Some(&data))
}

fn selected(client: &mut RespClient, family: usize) -> Result<(), ConnectionStop> {
    expect(client, &format!("SELECT {family}"), "OK")
}

/// Builds a command from its name and the names of registers.
fn named(command: &str, list: &[usize]) -> Vec<String> {
    let names = list.iter().copied().map(register);
    std::iter::once(command.to_owned()).chain(names).collect()
}

/// Builds a command from its name and the names and values of registers.
fn valued(command: &str, pairs: &[(usize, ValueId)]) -> Vec<Vec<u8>> {
    let mut words = vec![command.as_bytes().to_vec()];
    for (at, id) in pairs {
        words.push(register(*at).into_bytes());
        words.push(value(*id));
    }
    words
}

/// Appends the commands of a call to the unsent commands.
fn send(client: &mut RespClient, call: &FamilyCall) {
    match call {
        FamilyCall::Get(at) => client.send(&named("GET", &[*at])),
        FamilyCall::GetAll => {
            let words: Vec<String> = std::iter::once("MGET".to_owned()).chain(names()).collect();
            client.send(&words);
        }
        FamilyCall::Set(pairs) if pairs.len() == 1 => client.send(&valued("SET", pairs)),
        FamilyCall::Set(pairs) => client.send(&valued("MSET", pairs)),
        FamilyCall::Swap(at, id) => {
            let mut words = valued("SET", &[(*at, *id)]);
            words.push(b"GET".to_vec());
            client.send(&words);
        }
        FamilyCall::SetNew(pairs) if pairs.len() == 1 => client.send(&valued("SETNX", pairs)),
        FamilyCall::SetNew(pairs) => client.send(&valued("MSETNX", pairs)),
        FamilyCall::Take(at) => client.send(&named("GETDEL", &[*at])),
        FamilyCall::Delete(list) => client.send(&named("DEL", list)),
        FamilyCall::Count(list) => client.send(&named("EXISTS", list)),
        FamilyCall::Add(at, more) => client.send(&["INCRBY", &account(*at), &more.to_string()]),
        FamilyCall::Transfer(sum) => {
            client.send(&["MULTI"]);
            client.send(&["DECRBY", &account(0), &sum.to_string()]);
            client.send(&["INCRBY", &account(1), &sum.to_string()]);
            client.send(&["EXEC"]);
        }
        FamilyCall::Route(sum) => client.send(&["EVAL", ROUTE, "0", &sum.to_string()]),
        FamilyCall::Exchange(one, other) => {
            let [one, other] = [one, other].map(|at| at.to_string());
            client.send(&["EVAL", EXCHANGE, "0", &one, &other]);
        }
        FamilyCall::Clear => client.send(&["FLUSHALL"]),
        FamilyCall::Remove(_) | FamilyCall::Replace { .. } => {
            unreachable!("Remove and Replace need more than one round trip")
        }
    }
}

/// Reads the replies of a call.
fn receive(client: &mut RespClient, call: &FamilyCall) -> Result<CallAnswer, ConnectionStop> {
    if let FamilyCall::Transfer(_) = call {
        return transferred(client);
    }
    let reply = client.reply()?;
    let unlike =
        |reply: &RespReply| ConnectionStop::wrong(format!("{call:?}"), format!("{reply:?}"));
    let answer = match (call, reply) {
        (_, RespReply::Error(text)) if text.starts_with("OOM") => return Ok(CallAnswer::Refused),
        (FamilyCall::Set(_) | FamilyCall::Clear, RespReply::Simple(ok)) if ok == "OK" => {
            CallAnswer::Done
        }
        (
            FamilyCall::Get(_) | FamilyCall::Swap(..) | FamilyCall::Take(_),
            RespReply::Bulk(bytes),
        ) => {
            let id = bytes.as_deref().map(number).transpose();
            CallAnswer::Value(id.map_err(|what| ConnectionStop::wrong(format!("{call:?}"), what))?)
        }
        (FamilyCall::GetAll, RespReply::Array(Some(replies))) => CallAnswer::All(state(replies)?),
        (
            FamilyCall::SetNew(_)
            | FamilyCall::Delete(_)
            | FamilyCall::Count(_)
            | FamilyCall::Exchange(..)
            | FamilyCall::Add(..),
            RespReply::Number(n),
        ) => CallAnswer::Number(n),
        (FamilyCall::Route(_), RespReply::Array(Some(replies))) => sums(&replies)?,
        (_, reply) => return Err(unlike(&reply)),
    };
    Ok(answer)
}

fn transferred(client: &mut RespClient) -> Result<CallAnswer, ConnectionStop> {
    match executed(client, TRANSFERRED)? {
        TransactionOutcome::Done(replies) => sums(&replies),
        TransactionOutcome::NoRoom => Ok(CallAnswer::Refused),
        TransactionOutcome::Changed => Err(ConnectionStop::wrong(
            "EXEC",
            "EXEC returned null although no key was watched",
        )),
    }
}

/// Decodes the replies of a transfer.
fn sums(replies: &[RespReply]) -> Result<CallAnswer, ConnectionStop> {
    match *replies {
        [RespReply::Number(from), RespReply::Number(to)] => Ok(CallAnswer::Sums([from, to])),
        _ => Err(ConnectionStop::wrong("a transfer", format!("{replies:?}"))),
    }
}

/// Result of a transaction.
enum TransactionOutcome {
    Done(Vec<RespReply>),
    /// A watched key changed.
    Changed,
    NoRoom,
}

/// Reads the replies to MULTI, to `commands` queued commands, and to EXEC.
fn executed(
    client: &mut RespClient,
    commands: usize,
) -> Result<TransactionOutcome, ConnectionStop> {
    expect(client, "MULTI", "OK")?;
    for _ in 0..commands {
        expect(client, "a command in MULTI", "QUEUED")?;
    }
    match client.reply()? {
        RespReply::Array(None) => Ok(TransactionOutcome::Changed),
        RespReply::Array(Some(replies)) if all_done(&replies)? => {
            Ok(TransactionOutcome::Done(replies))
        }
        RespReply::Array(Some(_)) => Ok(TransactionOutcome::NoRoom),
        RespReply::Error(text) if is_aborted(&text) => Ok(TransactionOutcome::NoRoom),
        other => Err(ConnectionStop::wrong("EXEC", format!("{other:?}"))),
    }
}

/// Returns whether the commands of a transaction were executed: all of them, or none because the pool is full.
fn all_done(replies: &[RespReply]) -> Result<bool, ConnectionStop> {
    let full =
        |reply: &&RespReply| matches!(reply, RespReply::Error(text) if text.starts_with("OOM"));
    match replies.iter().filter(full).count() {
        0 if replies
            .iter()
            .any(|reply| matches!(reply, RespReply::Error(_))) =>
        {
            Err(ConnectionStop::wrong("EXEC", format!("{replies:?}")))
        }
        0 => Ok(true),
        count if count == replies.len() => Ok(false),
        count => Err(ConnectionStop::wrong(
            "EXEC",
            format!(
                "{count} of {} commands of a transaction found no room, expected all or none",
                replies.len()
            ),
        )),
    }
}

fn expect(client: &mut RespClient, what: &str, word: &str) -> Result<(), ConnectionStop> {
    match client.reply()? {
        RespReply::Simple(said) if said == word => Ok(()),
        other => Err(ConnectionStop::wrong(what, format!("{other:?}"))),
    }
}

/// Decodes an MGET reply into the ids of the registers' values.
fn registers(reply: RespReply) -> Result<Vec<Option<ValueId>>, ConnectionStop> {
    let RespReply::Array(Some(replies)) = reply else {
        return Err(ConnectionStop::wrong("MGET", format!("{reply:?}")));
    };
    let one = |reply: RespReply| match reply {
        RespReply::Bulk(bytes) => bytes
            .as_deref()
            .map(number)
            .transpose()
            .map_err(|what| ConnectionStop::wrong("MGET", what)),
        other => Err(ConnectionStop::wrong("MGET", format!("{other:?}"))),
    };
    replies.into_iter().map(one).collect()
}

/// Decodes the reply to an MGET of [`names`].
fn state(mut replies: Vec<RespReply>) -> Result<FamilyState, ConnectionStop> {
    let accounts = replies.split_off(replies.len().min(REGISTERS));
    let mut state = FamilyState::default();
    for (at, id) in registers(RespReply::Array(Some(replies)))?
        .into_iter()
        .enumerate()
    {
        state.registers[at] = id;
    }
    for (at, reply) in accounts.into_iter().enumerate() {
        let RespReply::Bulk(digits) = reply else {
            return Err(ConnectionStop::wrong(account(at), format!("{reply:?}")));
        };
        let sum = digits.map(|digits| String::from_utf8_lossy(&digits).parse());
        state.accounts[at] = sum
            .transpose()
            .map_err(|e| ConnectionStop::wrong(account(at), format!("{e}")))?;
    }
    Ok(state)
}
