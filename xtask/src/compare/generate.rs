//! Random requests, valid and invalid.
//!
//! `TEMPLATES` has a line for every command. The part before the first `;` is the request. Each later part is an
//! option, and a request gets up to four of them in any order. A word that begins with `$` is replaced by a random
//! word of that class. Other words are kept, in random letter case.

use super::scripts::PAYLOADS;
use super::words::{
    AMOUNTS, CLASSES, FRAGMENTS, KEYS, NOT_CALLED, ODD, OUTPUT_LIMITS, SAFE, SETTINGS, TEMPLATES,
    VALUES,
};
use crate::wire::{escape, request};

/// Commands with subcommands that `COMMAND INFO` describes.
const CONTAINERS: [&str; 10] = [
    "ACL", "CLIENT", "CONFIG", "COMMAND", "FUNCTION", "LATENCY", "MEMORY", "OBJECT", "SCRIPT",
    "SLOWLOG",
];

/// A deterministic source of random numbers.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Returns true in `percent` of 100 cases.
    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A word of a request. Some words have the same meaning but different bytes for the two servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RequestWord {
    Bytes(Vec<u8>),
    /// The client number of a connection.
    Id(usize),
    /// The address of a connection.
    Address(usize),
    /// An absolute time, in seconds from now.
    At(i64),
    /// An absolute time, in milliseconds from now.
    AtMs(i64),
}

impl RequestWord {
    fn of(text: &str) -> RequestWord {
        RequestWord::Bytes(text.as_bytes().to_vec())
    }
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RandomRequest {
    pub(super) words: Vec<RequestWord>,
    pub(super) is_inline: bool,
}

/// Returns the bytes of a request: an array of strings, or one line.
pub(super) fn encode(words: &[Vec<u8>], is_inline: bool) -> Vec<u8> {
    if !is_inline {
        return request(words);
    }
    let mut out = Vec::new();
    for word in words {
        out.extend_from_slice(&quote(word));
        out.push(b' ');
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// Returns `word` quoted for an inline request.
fn quote(word: &[u8]) -> Vec<u8> {
    let plain = |b: &u8| b.is_ascii_graphic() && !b"\"'\\".contains(b);
    if !word.is_empty() && word.iter().all(plain) {
        return word.to_vec();
    }
    let mut quoted = b"\"".to_vec();
    for byte in word {
        match byte {
            b'"' | b'\\' => quoted.extend_from_slice(&[b'\\', *byte]),
            b' '..=b'~' => quoted.push(*byte),
            _ => quoted.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    quoted.push(b'"');
    quoted
}

/// Generator of requests.
pub(super) struct Generator {
    pub(super) random: Random,
    /// Number of connections that a request may refer to.
    connections: usize,
}

impl Generator {
    pub(super) fn new(seed: u64, connections: usize) -> Generator {
        Generator {
            random: Random::new(seed),
            connections,
        }
    }

    /// Generates a request. With `may_sleep` it may set a short expiry, which the case then waits for.
    pub(super) fn request(&mut self, may_sleep: bool) -> RandomRequest {
        loop {
            let template = *self.random.pick(TEMPLATES);
            let mut words = self.fill(template, may_sleep);
            let is_fixed = template.starts_with("SHUTDOWN");
            if !is_fixed && self.random.chance(12) {
                self.mutate(&mut words);
            }
            let request = RandomRequest {
                words,
                is_inline: self.random.chance(10),
            };
            let unanswered = request.is_named("client") && request.has("reply") && {
                ["on", "off", "skip"].iter().any(|mode| request.has(mode))
            };
            let is_odd = request.words.is_empty() || request.is_named("shutdown") && !is_fixed;
            if unanswered || is_odd || request.is_unknown_here() || request.stalls_redis() {
                continue;
            }
            if request.wait_ms().is_none() || may_sleep {
                return request;
            }
        }
    }

    fn fill(&mut self, template: &str, may_sleep: bool) -> Vec<RequestWord> {
        let mut parts = template.split(';');
        let mut words = Vec::new();
        self.fill_part(parts.next().unwrap_or_default(), &mut words, may_sleep);
        let options: Vec<&str> = parts.collect();
        if !options.is_empty() {
            for _ in 0..*self.random.pick(&[0, 1, 1, 1, 2, 2, 3, 4]) {
                let option = *self.random.pick(&options);
                self.fill_part(option, &mut words, may_sleep);
            }
        }
        words
    }

    fn fill_part(&mut self, part: &str, words: &mut Vec<RequestWord>, may_sleep: bool) {
        for word in part.split_whitespace() {
            match word.strip_prefix('$') {
                Some(class) => self.fill_class(class, words, may_sleep),
                None => words.push(self.either_case(word)),
            }
        }
    }

    fn either_case(&mut self, word: &str) -> RequestWord {
        let text = match self.random.below(4) {
            0 => word.to_ascii_lowercase(),
            1 => {
                let mut flip = |c: char| match self.random.chance(50) {
                    true => c.to_ascii_lowercase(),
                    false => c.to_ascii_uppercase(),
                };
                word.chars().map(&mut flip).collect()
            }
            _ => word.to_owned(),
        };
        RequestWord::of(&text)
    }

    fn key(&mut self) -> RequestWord {
        // Most requests use the same few keys, so that they find values of earlier requests.
        let among = if self.random.chance(70) {
            4
        } else {
            KEYS.len()
        };
        if self.random.chance(1) {
            return RequestWord::Bytes(vec![b'k'; 300]);
        }
        RequestWord::Bytes(self.random.pick(&KEYS[..among]).to_vec())
    }

    fn value(&mut self) -> RequestWord {
        match self.random.below(50) {
            0 => RequestWord::Bytes(vec![b'x'; 200]),
            1 => RequestWord::Bytes(vec![b'y'; 5000]),
            _ => RequestWord::Bytes(self.random.pick(VALUES).to_vec()),
        }
    }

    fn one_of(&mut self, all: &[&str]) -> RequestWord {
        RequestWord::of(all[self.random.below(all.len())])
    }

    fn fill_class(&mut self, class: &str, words: &mut Vec<RequestWord>, may_sleep: bool) {
        let word = match class {
            "key" => self.key(),
            "value" => self.value(),
            "keys" => {
                for _ in 0..self.random.below(4) {
                    let key = self.key();
                    words.push(key);
                }
                self.key()
            }
            "hlls" => {
                for _ in 0..self.random.below(4) {
                    self.fill_class("hll", words, may_sleep);
                }
                return self.fill_class("hll", words, may_sleep);
            }
            "elements" => {
                // Many elements at once make the value dense.
                let count = *self.random.pick(&[1, 2, 3, 10, 100, 1500]);
                let first = self.random.below(1_000_000);
                words.extend((first..first + count).map(|n| RequestWord::of(&n.to_string())));
                return;
            }
            "pairs" => {
                for _ in 0..self.random.below(3) {
                    let pair = [self.key(), self.value()];
                    words.extend(pair);
                }
                words.push(self.key());
                self.value()
            }
            "ms" if may_sleep && self.random.chance(4) => self.one_of(&["30", "50"]),
            "at" if self.random.chance(60) => {
                RequestWord::At(100_000 * (self.random.below(3) as i64 + 1))
            }
            "atms" if self.random.chance(60) => {
                RequestWord::AtMs(100_000_000 * (self.random.below(3) as i64 + 1))
            }
            "id" if self.random.chance(30) => RequestWord::Id(self.random.below(self.connections)),
            "address" if self.random.chance(20) => {
                RequestWord::Address(self.random.below(self.connections))
            }
            "setting" => {
                let name = *self.random.pick(SETTINGS);
                words.push(RequestWord::of(name));
                match name.starts_with("client-output") {
                    true => self.one_of(OUTPUT_LIMITS),
                    false => self.one_of(AMOUNTS),
                }
            }
            "payload" => RequestWord::Bytes(self.random.pick(PAYLOADS).to_vec()),
            "command" => return self.command_name(words),
            "request" => return self.inner_request(words),
            "call" => {
                let template = *self.random.pick(TEMPLATES);
                let name = template.split_whitespace().next().unwrap_or_default();
                if !name.starts_with('$') && !NOT_CALLED.contains(&name) {
                    words.extend(self.fill(template, may_sleep));
                }
                return;
            }
            _ => match CLASSES.iter().find(|(name, _)| *name == class) {
                Some((_, all)) => self.one_of(all),
                None => RequestWord::Bytes(self.random.pick(ODD).to_vec()),
            },
        };
        words.push(word);
    }

    /// Adds the name of a command, of a subcommand, or a name that does not exist.
    fn command_name(&mut self, words: &mut Vec<RequestWord>) {
        let template = *self.random.pick(TEMPLATES);
        let mut parts = template.split_whitespace();
        let name = parts.next().unwrap_or_default();
        let sub = parts.next().filter(|sub| !sub.starts_with('$'));
        let name = match (self.random.below(4), sub) {
            (0, _) => "client|nope".to_owned(),
            (1 | 2, Some(sub)) if CONTAINERS.contains(&name) => {
                format!("{name}|{sub}")
            }
            (3, Some(sub)) => format!("{name}|{sub}|x"),
            _ => name.to_owned(),
        };
        let word = if name.starts_with('$') {
            RequestWord::of("nope")
        } else {
            self.either_case(&name)
        };
        words.push(word);
    }

    /// Adds a request as the arguments of another request.
    fn inner_request(&mut self, words: &mut Vec<RequestWord>) {
        let template = *self.random.pick(TEMPLATES);
        if template.contains("$request") {
            return;
        }
        words.extend(self.fill(template, false));
    }

    /// Changes a request so that it is invalid or unusual.
    fn mutate(&mut self, words: &mut Vec<RequestWord>) {
        let at = self.random.below(words.len());
        let other = self.random.below(words.len());
        match self.random.below(5) {
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[other].clone()),
            2 if words.len() > 2 => {
                // The command's name stays the first word.
                let last = words.len() - 1;
                words.swap(at.clamp(1, last), other.clamp(1, last));
            }
            3 => words.push(RequestWord::Bytes(self.random.pick(ODD).to_vec())),
            _ => words[at] = RequestWord::Bytes(self.random.pick(ODD).to_vec()),
        }
    }

    /// Generates a damaged pipeline: the bytes of requests, with some of the bytes changed.
    pub(super) fn damaged(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let words = match self.random.chance(30) {
                true => vec![RequestWord::of("PING")],
                false => {
                    let template = *self.random.pick(SAFE);
                    self.fill(template, false)
                }
            };
            let plain = |word: RequestWord| match word {
                RequestWord::Bytes(bytes) => bytes,
                _ => Vec::new(),
            };
            let words: Vec<_> = words.into_iter().map(plain).collect();
            let is_inline = self.random.chance(40);
            bytes.extend(encode(&words, is_inline));
        }
        for _ in 0..1 + self.random.below(3) {
            let at = self.random.below(bytes.len() + 1);
            let fragment = *self.random.pick(FRAGMENTS);
            let before = bytes.clone();
            match self.random.below(4) {
                0 => drop(bytes.splice(at..at, fragment.iter().copied())),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 => bytes.truncate(at),
                _ => bytes.extend_from_slice(fragment),
            }
            if announces_more_than_farbank_allows(&bytes) {
                bytes = before;
            }
        }
        bytes
    }
}

/// Returns whether the bytes announce a number of arguments that Redis accepts and Farbank refuses
/// (docs/compatibility.md).
fn announces_more_than_farbank_allows(bytes: &[u8]) -> bool {
    const FARBANK_MAX: i64 = 1 << 20;
    let redis_max = i64::from(i32::MAX);
    let mut announced = bytes
        .split(|byte| *byte == b'*')
        .skip(1)
        .filter_map(|after| {
            let digits = after.split(|byte| !byte.is_ascii_digit()).next()?;
            std::str::from_utf8(digits).ok()?.parse::<i64>().ok()
        });
    announced.any(|count| count > FARBANK_MAX && count <= redis_max)
}

impl RandomRequest {
    /// Returns a word's bytes if they are the same for both servers, and nothing otherwise.
    fn plain(&self, at: usize) -> &[u8] {
        match self.words.get(at) {
            Some(RequestWord::Bytes(bytes)) => bytes,
            _ => b"",
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.plain(0).eq_ignore_ascii_case(name.as_bytes())
    }

    fn has(&self, word: &str) -> bool {
        (0..self.words.len()).any(|at| self.plain(at).eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Returns whether the comparison excludes this request: lists of all commands, and replication.
    fn is_unknown_here(&self) -> bool {
        let sub = self.plain(1).to_ascii_lowercase();
        let bare =
            self.words.len() == 2 && ["info", "docs", "list"].iter().any(|s| sub == s.as_bytes());
        // The option SYNC of another command can become a command's name. That command makes the connection a
        // replica's.
        self.is_named("sync") || self.is_named("command") && (self.words.len() == 1 || bare)
    }

    /// Returns whether Redis needs about a minute for the request: from a very large `maxclients` it descends to the
    /// limit of open files in steps of 16, with a system call for each step.
    fn stalls_redis(&self) -> bool {
        const CLIENTS_MAX: u128 = 1_000_000;
        let is_large = |at| {
            let digits = std::str::from_utf8(self.plain(at)).ok();
            digits.is_some_and(|text| text.parse().is_ok_and(|n: u128| n > CLIENTS_MAX))
        };
        self.has("maxclients") && (0..self.words.len()).any(is_large)
    }

    /// Returns the milliseconds until the expiry that the request sets has passed, if the case waits for it.
    pub(super) fn wait_ms(&self) -> Option<u64> {
        let in_ms = ["px", "pexpire", "psetex"]
            .iter()
            .any(|word| self.has(word));
        let in_secs = ["ex", "expire", "setex"].iter().any(|word| self.has(word));
        let amounts = (0..self.words.len()).filter_map(|at| {
            let amount: i64 = std::str::from_utf8(self.plain(at)).ok()?.parse().ok()?;
            match amount {
                1..=50 if in_ms => Some(amount),
                1 if in_secs => Some(1000),
                _ => None,
            }
        });
        amounts.max().map(|ms| ms.unsigned_abs() + 25)
    }
}

impl std::fmt::Display for RandomRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, word) in self.words.iter().enumerate() {
            let blank = if at > 0 { " " } else { "" };
            match word {
                RequestWord::Bytes(bytes) => write!(f, "{blank}{}", escape(&quote(bytes)))?,
                other => write!(f, "{blank}{other:?}")?,
            }
        }
        match self.is_inline {
            true => f.write_str(" (inline)"),
            false => Ok(()),
        }
    }
}
