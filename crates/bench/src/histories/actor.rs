//! A client of the server under test: draws calls, makes them, and writes down what it saw.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use farbank_pm::sim::Rng;

use super::family::{ACCOUNTS, Answer, Call, FAMILIES, Id, REGISTERS, State, TRANSFERRED};
use super::search::Event;
use super::values::{STEP, number, value};
use crate::child::{Client, Memcached, Reply, Stop};

/// What all clients of a run share.
pub(super) struct Shared {
    pub(super) began: Instant,
    /// The newest value's number.
    ids: AtomicU32,
}

impl Shared {
    pub(super) fn new() -> Shared {
        Shared {
            began: Instant::now(),
            ids: AtomicU32::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn id(&self) -> Id {
        self.ids.fetch_add(STEP, Ordering::Relaxed) + STEP
    }

    /// The number of a value that is written with others.
    fn grouped_id(&self) -> Id {
        self.id() + 1
    }
}

/// What one client saw: of each family the calls, in the order in which it sent them.
pub(super) type Seen = [Vec<Event>; FAMILIES];

/// Where a call was written down: the families and the places in their lists.
struct Noted(Vec<(usize, usize)>);

/// One client.
pub(super) struct Actor<'a> {
    shared: &'a Shared,
    rng: Rng,
    seen: Seen,
}

/// The names of all keys of a family.
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

impl<'a> Actor<'a> {
    pub(super) fn new(shared: &'a Shared, rng: Rng) -> Actor<'a> {
        Actor {
            shared,
            rng,
            seen: Seen::default(),
        }
    }

    /// Works until the server is gone; what it saw.
    ///
    /// # Errors
    /// The server answered what it must not.
    pub(super) fn work(mut self, addr: &str) -> Result<Seen, Stop> {
        let ended = Client::connect(addr).and_then(|mut client| {
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

    /// The same over memcached's protocol, which knows the first family only.
    pub(super) fn work_memcached(mut self, addr: &str) -> Result<Seen, Stop> {
        let ended = Memcached::connect(addr).and_then(|mut client| {
            loop {
                self.item(&mut client)?;
            }
        });
        self.end(ended)
    }

    fn end(self, ended: Result<(), Stop>) -> Result<Seen, Stop> {
        match ended {
            Err(Stop::Wrong(violation)) => Err(Stop::Wrong(violation)),
            Ok(()) | Err(Stop::Gone(_)) => Ok(self.seen),
        }
    }

    /// Several calls at once, no two of the same key: what is not durable is seen by its own connection only, so a
    /// call that saw another of its pipeline would have happened at two moments.
    fn pipeline(&mut self, client: &mut Client) -> Result<(), Stop> {
        let count = 2 + self.rng.below(5);
        let mut calls: Vec<Call> = Vec::new();
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

    /// Sends calls on one family, and reads all replies.
    fn make(&mut self, client: &mut Client, calls: Vec<Call>) -> Result<(), Stop> {
        let family = self.select(client);
        calls.iter().for_each(|call| send(client, call));
        let sent = self.shared.now();
        let noted = calls.iter().map(|call| self.note_at(family, call, sent));
        let noted: Vec<Noted> = noted.collect();
        client.flush()?;
        selected(client, family)?;
        for (call, noted) in calls.iter().zip(noted) {
            let answer = receive(client, call)?;
            self.answered(&noted, answer);
        }
        Ok(())
    }

    /// Chooses a family, and its database.
    fn select(&mut self, client: &mut Client) -> usize {
        let family = self.rng.below(FAMILIES as u64) as usize;
        client.send(&["SELECT", &family.to_string()]);
        family
    }

    /// Writes down a call that is about to be sent. FLUSHALL is one of every family.
    fn note(&mut self, family: usize, call: &Call) -> Noted {
        self.note_at(family, call, self.shared.now())
    }

    fn note_at(&mut self, family: usize, call: &Call, sent: u64) -> Noted {
        let event = Event {
            call: call.clone(),
            answer: None,
            sent,
            answered: u64::MAX,
        };
        let mut noted = Vec::new();
        for (other, events) in self.seen.iter_mut().enumerate() {
            if other == family || *call == Call::Clear {
                noted.push((other, events.len()));
                events.push(event.clone());
            }
        }
        Noted(noted)
    }

    /// Writes down what it was answered.
    fn answered(&mut self, noted: &Noted, answer: Answer) {
        let time = self.shared.now();
        for (family, at) in &noted.0 {
            let event = &mut self.seen[*family][*at];
            event.answer = Some(answer.clone());
            event.answered = time;
        }
    }

    /// Draws a call that is one command, or one MULTI.
    fn draw(&mut self) -> Call {
        let one = self.rng.below(REGISTERS as u64) as usize;
        match self.rng.below(400) {
            0 if self.rng.one_in(4) => Call::Clear,
            ..=79 => Call::Get(one),
            80..=119 => Call::GetAll,
            120..=189 => Call::Set(vec![(one, self.shared.id())]),
            190..=209 => Call::Set(self.some_new()),
            210..=239 => Call::Swap(one, self.shared.id()),
            240..=264 => Call::SetNew(vec![(one, self.shared.id())]),
            265..=279 => Call::SetNew(self.some_new()),
            280..=289 => Call::Take(one),
            290..=309 => Call::Delete(self.some()),
            310..=329 => Call::Count(vec![one]),
            330..=369 => {
                let account = self.rng.below(ACCOUNTS as u64) as usize;
                Call::Add(account, self.rng.below(9) as i64 + 1)
            }
            _ => Call::Transfer(self.rng.below(99) as i64 + 1),
        }
    }

    /// One to four registers.
    fn some(&mut self) -> Vec<usize> {
        let chosen = 1 + self.rng.below((1 << REGISTERS) - 1);
        (0..REGISTERS).filter(|at| chosen >> at & 1 == 1).collect()
    }

    fn some_new(&mut self) -> Vec<(usize, Id)> {
        let some = self.some();
        some.into_iter()
            .map(|at| (at, self.shared.grouped_id()))
            .collect()
    }

    /// WATCH between two reads, and a MULTI that writes if nothing was changed. A key that comes and goes after WATCH counts
    /// as unchanged (docs/compatibility.md): so nothing is written unless both reads have found the same.
    fn replace(&mut self, client: &mut Client) -> Result<(), Stop> {
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
        let write: Vec<(usize, Id)> = chosen
            .iter()
            .map(|at| (*at, self.shared.grouped_id()))
            .collect();
        client.send(&["MULTI"]);
        for pair in &write {
            client.send(&valued("SET", &[*pair]));
        }
        client.send(&["EXEC"]);
        let noted = self.note(family, &Call::Replace { read, write });
        client.flush()?;
        let answer = match executed(client, chosen.len())? {
            Executed::Done(_) => Answer::Done,
            // Something was changed since WATCH, maybe before the read: then what was read may be there.
            Executed::Changed | Executed::NoRoom => Answer::Refused,
        };
        self.answered(&noted, answer);
        Ok(())
    }

    /// One call of memcached's.
    fn item(&mut self, client: &mut Memcached) -> Result<(), Stop> {
        let at = self.rng.below(REGISTERS as u64) as usize;
        let (key, id) = (register(at), self.shared.id());
        match self.rng.below(8) {
            0 | 1 => self.get(client, at).map(drop),
            2 => {
                let noted = self.note(0, &Call::Set(vec![(at, id)]));
                match store(client, "set", at, id, "")?.as_str() {
                    "STORED" => self.answered(&noted, Answer::Done),
                    line if is_full(line) => self.removed(&noted, at),
                    line => return Err(Stop::wrong(&key, line)),
                }
                Ok(())
            }
            3 => {
                let call = Call::SetNew(vec![(at, id)]);
                let answers = [
                    ("STORED", Answer::Number(1)),
                    ("NOT_STORED", Answer::Number(0)),
                ];
                let noted = self.note(0, &call);
                let line = store(client, "add", at, id, "")?;
                self.answered_one_of(&noted, &line, &answers)
            }
            4 => {
                let answers = [
                    ("DELETED", Answer::Number(1)),
                    ("NOT_FOUND", Answer::Number(0)),
                ];
                let noted = self.note(0, &Call::Delete(vec![at]));
                let line = client.ask(&format!("delete {key}"), None)?;
                self.answered_one_of(&noted, &line, &answers)
            }
            _ => self.compare_and_set(client, at, id),
        }
    }

    /// `gets`: the number of the value, and the one that `cas` compares.
    fn get(&mut self, client: &mut Memcached, at: usize) -> Result<Option<(Id, u64)>, Stop> {
        let noted = self.note(0, &Call::Get(at));
        let item = client.gets(&register(at))?;
        let number = |(bytes, cas): (Vec<u8>, u64)| {
            let id = number(&bytes).map_err(|what| Stop::wrong(register(at), what));
            id.map(|id| (id, cas))
        };
        let item = item.map(number).transpose()?;
        self.answered(&noted, Answer::Value(item.map(|(id, _)| id)));
        Ok(item)
    }

    /// `gets` and `cas`.
    fn compare_and_set(&mut self, client: &mut Memcached, at: usize, id: Id) -> Result<(), Stop> {
        let Some((old, cas)) = self.get(client, at)? else {
            return Ok(());
        };
        let read = vec![(at, Some(old))];
        let write = vec![(at, id)];
        let noted = self.note(0, &Call::Replace { read, write });
        let line = store(client, "cas", at, id, &format!(" {cas}"))?;
        let answers = [
            ("STORED", Answer::Done),
            ("EXISTS", Answer::Changed),
            ("NOT_FOUND", Answer::Changed),
        ];
        self.answered_one_of(&noted, &line, &answers)
    }

    fn answered_one_of(
        &mut self,
        noted: &Noted,
        line: &str,
        answers: &[(&str, Answer)],
    ) -> Result<(), Stop> {
        let answer = match answers.iter().find(|(said, _)| *said == line) {
            Some((_, answer)) => answer.clone(),
            None if is_full(line) => Answer::Refused,
            None => return Err(Stop::wrong("memcached", line)),
        };
        self.answered(noted, answer);
        Ok(())
    }

    /// A `set` that found no room has removed what it would have replaced.
    fn removed(&mut self, noted: &Noted, at: usize) {
        for (family, place) in &noted.0 {
            self.seen[*family][*place].call = Call::Remove(at);
        }
        self.answered(noted, Answer::Done);
    }

    /// Reads all keys of all families.
    ///
    /// # Errors
    /// The server is gone, a value is no value, or keys are counted wrong.
    pub(super) fn read_all(mut self, addr: &str) -> Result<(Seen, Vec<State>), Stop> {
        let mut client = Client::connect(addr)?;
        let mut states = Vec::new();
        for family in 0..FAMILIES {
            client.send(&["SELECT", &family.to_string()]);
            send(&mut client, &Call::GetAll);
            client.send(&["DBSIZE"]);
            let noted = self.note(family, &Call::GetAll);
            client.flush()?;
            selected(&mut client, family)?;
            let answer = receive(&mut client, &Call::GetAll)?;
            let Answer::All(state) = answer else {
                return Err(Stop::wrong("MGET", format!("{answer:?}")));
            };
            self.answered(&noted, answer);
            match client.reply()? {
                Reply::Number(keys) if keys == state.keys() as i64 => {}
                other => {
                    let what = format!("{other:?}, there are {state:?}");
                    return Err(Stop::wrong(format!("DBSIZE of {family}"), what));
                }
            }
            states.push(state);
        }
        Ok((self.seen, states))
    }
}

/// Whether a transaction was not executed for want of room.
fn is_aborted(text: &str) -> bool {
    text.strip_prefix("EXECABORT Transaction discarded because of: ")
        .unwrap_or(text)
        .starts_with("OOM")
}

fn is_full(line: &str) -> bool {
    line.starts_with("SERVER_ERROR out of memory")
}

/// Stores a value by memcached's protocol.
fn store(
    client: &mut Memcached,
    command: &str,
    at: usize,
    id: Id,
    cas: &str,
) -> Result<String, Stop> {
    let data = value(id);
    let line = format!("{command} {} 0 0 {}{cas}", register(at), data.len());
    client.ask(&line, Some(&data))
}

fn selected(client: &mut Client, family: usize) -> Result<(), Stop> {
    expect(client, &format!("SELECT {family}"), "OK")
}

/// A command and the names of registers.
fn named(command: &str, list: &[usize]) -> Vec<String> {
    let names = list.iter().copied().map(register);
    std::iter::once(command.to_owned()).chain(names).collect()
}

/// A command, the names of registers and their values.
fn valued(command: &str, pairs: &[(usize, Id)]) -> Vec<Vec<u8>> {
    let mut words = vec![command.as_bytes().to_vec()];
    for (at, id) in pairs {
        words.push(register(*at).into_bytes());
        words.push(value(*id));
    }
    words
}

/// Adds the commands of a call.
fn send(client: &mut Client, call: &Call) {
    match call {
        Call::Get(at) => client.send(&named("GET", &[*at])),
        Call::GetAll => {
            let words: Vec<String> = std::iter::once("MGET".to_owned()).chain(names()).collect();
            client.send(&words);
        }
        Call::Set(pairs) if pairs.len() == 1 => client.send(&valued("SET", pairs)),
        Call::Set(pairs) => client.send(&valued("MSET", pairs)),
        Call::Swap(at, id) => {
            let mut words = valued("SET", &[(*at, *id)]);
            words.push(b"GET".to_vec());
            client.send(&words);
        }
        Call::SetNew(pairs) if pairs.len() == 1 => client.send(&valued("SETNX", pairs)),
        Call::SetNew(pairs) => client.send(&valued("MSETNX", pairs)),
        Call::Take(at) => client.send(&named("GETDEL", &[*at])),
        Call::Delete(list) => client.send(&named("DEL", list)),
        Call::Count(list) => client.send(&named("EXISTS", list)),
        Call::Add(at, more) => client.send(&["INCRBY", &account(*at), &more.to_string()]),
        Call::Transfer(sum) => {
            client.send(&["MULTI"]);
            client.send(&["DECRBY", &account(0), &sum.to_string()]);
            client.send(&["INCRBY", &account(1), &sum.to_string()]);
            client.send(&["EXEC"]);
        }
        Call::Clear => client.send(&["FLUSHALL"]),
        Call::Remove(_) | Call::Replace { .. } => unreachable!("they are several requests"),
    }
}

/// Reads the replies of a call.
fn receive(client: &mut Client, call: &Call) -> Result<Answer, Stop> {
    if let Call::Transfer(_) = call {
        return transferred(client);
    }
    let reply = client.reply()?;
    let unlike = |reply: &Reply| Stop::wrong(format!("{call:?}"), format!("{reply:?}"));
    let answer = match (call, reply) {
        (_, Reply::Error(text)) if text.starts_with("OOM") => return Ok(Answer::Refused),
        (Call::Set(_) | Call::Clear, Reply::Simple(ok)) if ok == "OK" => Answer::Done,
        (Call::Get(_) | Call::Swap(..) | Call::Take(_), Reply::Bulk(bytes)) => {
            let id = bytes.as_deref().map(number).transpose();
            Answer::Value(id.map_err(|what| Stop::wrong(format!("{call:?}"), what))?)
        }
        (Call::GetAll, Reply::Array(Some(replies))) => Answer::All(state(replies)?),
        (Call::SetNew(_) | Call::Delete(_) | Call::Count(_) | Call::Add(..), Reply::Number(n)) => {
            Answer::Number(n)
        }
        (_, reply) => return Err(unlike(&reply)),
    };
    Ok(answer)
}

fn transferred(client: &mut Client) -> Result<Answer, Stop> {
    match executed(client, TRANSFERRED)? {
        Executed::Done(replies) => match replies[..] {
            [Reply::Number(from), Reply::Number(to)] => Ok(Answer::Sums([from, to])),
            _ => Err(Stop::wrong("EXEC", format!("{replies:?}"))),
        },
        Executed::NoRoom => Ok(Answer::Refused),
        Executed::Changed => Err(Stop::wrong(
            "EXEC",
            "it is refused, and nothing was watched",
        )),
    }
}

/// What became of a transaction.
enum Executed {
    Done(Vec<Reply>),
    /// A key that was watched was changed.
    Changed,
    NoRoom,
}

/// Reads the replies to MULTI, so many commands, and EXEC.
fn executed(client: &mut Client, commands: usize) -> Result<Executed, Stop> {
    expect(client, "MULTI", "OK")?;
    for _ in 0..commands {
        expect(client, "a command in MULTI", "QUEUED")?;
    }
    match client.reply()? {
        Reply::Array(None) => Ok(Executed::Changed),
        Reply::Array(Some(replies)) if all_done(&replies)? => Ok(Executed::Done(replies)),
        Reply::Array(Some(_)) => Ok(Executed::NoRoom),
        Reply::Error(text) if is_aborted(&text) => Ok(Executed::NoRoom),
        other => Err(Stop::wrong("EXEC", format!("{other:?}"))),
    }
}

/// Whether the commands of a transaction were done: all, or none for want of room.
fn all_done(replies: &[Reply]) -> Result<bool, Stop> {
    let full = |reply: &&Reply| matches!(reply, Reply::Error(text) if text.starts_with("OOM"));
    match replies.iter().filter(full).count() {
        0 if replies.iter().any(|reply| matches!(reply, Reply::Error(_))) => {
            Err(Stop::wrong("EXEC", format!("{replies:?}")))
        }
        0 => Ok(true),
        count if count == replies.len() => Ok(false),
        count => Err(Stop::wrong(
            "EXEC",
            format!("{count} of {} commands found no room", replies.len()),
        )),
    }
}

fn expect(client: &mut Client, what: &str, word: &str) -> Result<(), Stop> {
    match client.reply()? {
        Reply::Simple(said) if said == word => Ok(()),
        other => Err(Stop::wrong(what, format!("{other:?}"))),
    }
}

/// The values of registers that MGET found.
fn registers(reply: Reply) -> Result<Vec<Option<Id>>, Stop> {
    let Reply::Array(Some(replies)) = reply else {
        return Err(Stop::wrong("MGET", format!("{reply:?}")));
    };
    let one = |reply: Reply| match reply {
        Reply::Bulk(bytes) => bytes
            .as_deref()
            .map(number)
            .transpose()
            .map_err(|what| Stop::wrong("MGET", what)),
        other => Err(Stop::wrong("MGET", format!("{other:?}"))),
    };
    replies.into_iter().map(one).collect()
}

/// What MGET of [`names`] found.
fn state(mut replies: Vec<Reply>) -> Result<State, Stop> {
    let accounts = replies.split_off(replies.len().min(REGISTERS));
    let mut state = State::default();
    for (at, id) in registers(Reply::Array(Some(replies)))?
        .into_iter()
        .enumerate()
    {
        state.registers[at] = id;
    }
    for (at, reply) in accounts.into_iter().enumerate() {
        let Reply::Bulk(digits) = reply else {
            return Err(Stop::wrong(account(at), format!("{reply:?}")));
        };
        let sum = digits.map(|digits| String::from_utf8_lossy(&digits).parse());
        state.accounts[at] = sum
            .transpose()
            .map_err(|e| Stop::wrong(account(at), format!("{e}")))?;
    }
    Ok(state)
}
