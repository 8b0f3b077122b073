//! Users: which commands, keys and channels each may use (ACL).
//!
//! ```text
//!   ACL SETUSER ─▶ copy of Users ─▶ published, generation + 1 ─▶ message to the workers
//!                                        │                            │ connections of removed users, and subscribers
//!                                        ▼                            ▼ that lost a channel, are closed
//!                      a connection compares the generation once per visit, and before it is idle
//! ```
//!
//! # Invariants
//! SRV-USER-1  A request that arrives after the reply to a change of users is checked by the changed users: the change is
//!     published before its reply, and each visit to a connection compares the generation before it executes requests.
//! SRV-USER-2  Published users never change. A change replaces the [`User`] and keeps its `id`. A removed user's id never
//!     returns, so a connection whose user was removed is recognised even if a user with the same name exists again.
//! SRV-USER-3  A connection of an unrestricted user pays one comparison a visit and one branch a request. It takes no lock.
//!
//! The rules as text are in `commands::acl`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use constant_time_eq::constant_time_eq_32;
use sha2::{Digest, Sha256};

use crate::glob::{LetterCase, matches};
use crate::hex::hex;
use crate::lock::lock;
use crate::stats::commands::COMMAND_NUMBERS;

/// Name of the user of connections that have not authenticated.
pub(crate) const DEFAULT: &[u8] = b"default";

/// SHA-256 of a password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PasswordHash([u8; 32]);

impl PasswordHash {
    /// The hash of a password.
    pub(crate) fn of(password: &[u8]) -> PasswordHash {
        PasswordHash(Sha256::digest(password).into())
    }

    /// Whether this is one of `known`. Compares all of them, each in constant time.
    pub(crate) fn is_among(&self, known: &[PasswordHash]) -> bool {
        let equal = |other: &PasswordHash| constant_time_eq_32(&other.0, &self.0);
        known
            .iter()
            .fold(false, |found, other| found | equal(other))
    }

    /// Parses 64 lower-case hexadecimal digits.
    pub(crate) fn parse(digits: &[u8]) -> Option<PasswordHash> {
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() {
            return None;
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(PasswordHash(hash))
    }

    /// The hash in hexadecimal digits.
    pub(crate) fn hex(&self) -> String {
        hex(&self.0)
    }
}

/// A set of commands, by their numbers.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CommandSet([u64; COMMAND_NUMBERS / 64]);

const _: () = assert!(
    COMMAND_NUMBERS.is_multiple_of(64),
    "whole words of a CommandSet"
);

impl CommandSet {
    pub(crate) const EMPTY: CommandSet = CommandSet([0; COMMAND_NUMBERS / 64]);
    pub(crate) const ALL: CommandSet = CommandSet([u64::MAX; COMMAND_NUMBERS / 64]);

    /// Whether the set has the command `number`.
    pub(crate) fn has(&self, number: u16) -> bool {
        let number = usize::from(number);
        self.0[number / 64] >> (number % 64) & 1 != 0
    }

    /// Adds or removes a command.
    pub(crate) fn set(&mut self, number: u16, value: bool) {
        let number = usize::from(number);
        let bit = 1 << (number % 64);
        match value {
            true => self.0[number / 64] |= bit,
            false => self.0[number / 64] &= !bit,
        }
    }

    /// Adds or removes the commands of `other`.
    pub(crate) fn set_all(&mut self, other: &CommandSet, value: bool) {
        for (word, others) in self.0.iter_mut().zip(&other.0) {
            match value {
                true => *word |= others,
                false => *word &= !others,
            }
        }
    }

    /// Number of commands that both sets have.
    pub(crate) fn common(&self, other: &CommandSet) -> u32 {
        let words = self.0.iter().zip(&other.0);
        words.map(|(a, b)| (a & b).count_ones()).sum()
    }
}

/// How a request accesses a key, and which accesses a pattern allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyPermission {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

impl KeyPermission {
    pub(crate) const BOTH: KeyPermission = KeyPermission {
        reads: true,
        writes: true,
    };

    /// Whether every access of `wanted` is among these.
    fn includes(self, wanted: KeyPermission) -> bool {
        (self.reads || !wanted.reads) && (self.writes || !wanted.writes)
    }
}

/// Keys that match `pattern` may be accessed as `access` says.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KeyPattern {
    pub(crate) access: KeyPermission,
    pub(crate) pattern: Vec<u8>,
}

/// A set of permissions. A request needs one selector that allows all of it.
#[derive(Clone)]
pub(crate) struct Selector {
    pub(crate) has_all_keys: bool,
    pub(crate) has_all_channels: bool,
    /// No command was removed since `+@all`.
    pub(crate) has_all_commands: bool,
    /// The commands were given by `+@all` minus some. A description then begins with `+@all`.
    pub(crate) is_subtractive: bool,
    pub(crate) commands: CommandSet,
    /// First arguments with which a command that is not in `commands` is allowed, by its number.
    pub(crate) first_args: BTreeMap<u16, Vec<Vec<u8>>>,
    /// Without `has_all_keys`: the allowed keys.
    pub(crate) keys: Vec<KeyPattern>,
    /// Without `has_all_channels`: patterns of the allowed channels.
    pub(crate) channels: Vec<Vec<u8>>,
}

impl Selector {
    /// Creates a selector that allows nothing, except all channels if `has_all_channels`.
    pub(crate) fn new(has_all_channels: bool) -> Selector {
        Selector {
            has_all_keys: false,
            has_all_channels,
            has_all_commands: false,
            is_subtractive: false,
            commands: CommandSet::EMPTY,
            first_args: BTreeMap::new(),
            keys: Vec::new(),
            channels: Vec::new(),
        }
    }

    /// Whether the selector allows everything.
    fn is_unrestricted(&self) -> bool {
        self.has_all_keys && self.has_all_channels && self.has_all_commands
    }

    /// Whether the selector allows this access of `key`.
    pub(crate) fn allows_key(&self, key: &[u8], wanted: KeyPermission) -> bool {
        let fits = |own: &KeyPattern| {
            own.access.includes(wanted) && matches(&own.pattern, key, LetterCase::Exact)
        };
        self.has_all_keys || self.keys.iter().any(fits)
    }

    /// Whether the selector allows reading every key.
    pub(crate) fn reads_all_keys(&self) -> bool {
        let is_all = |own: &KeyPattern| own.access.reads && own.pattern == b"*";
        self.has_all_keys || self.keys.iter().any(is_all)
    }

    /// Bytes of its patterns. Matching a name takes at most this times the name's length.
    fn pattern_bytes(&self) -> usize {
        /// Bytes that take as long as the overhead of a pattern.
        const OVERHEAD: usize = 16;
        let keys = self.keys.iter().map(|own| own.pattern.len() + OVERHEAD);
        let channels = self.channels.iter().map(|own| own.len() + OVERHEAD);
        keys.sum::<usize>() + channels.sum::<usize>()
    }

    /// Number of its patterns and first arguments.
    fn len(&self) -> usize {
        let first_args = self.first_args.values().map(Vec::len);
        self.keys.len() + self.channels.len() + first_args.sum::<usize>()
    }
}

/// Whether a list of patterns allows `channel`. `is_pattern`: the name is one of PSUBSCRIBE, which must be in the list.
pub(crate) fn allows_channel(patterns: &[Vec<u8>], channel: &[u8], is_pattern: bool) -> bool {
    patterns.iter().any(|pattern| match is_pattern {
        true => pattern == channel,
        false => matches(pattern, channel, LetterCase::Exact),
    })
}

/// What a user has said about checks of RESTORE's payloads. This server always checks them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PayloadChecks {
    Unsaid,
    Skip,
    Sanitize,
}

/// Most rules of a user: passwords, selectors, patterns and first arguments together.
pub(crate) const RULES_MAX: usize = 4096;

/// A user.
#[derive(Clone)]
pub(crate) struct User {
    /// Number of this user; see SRV-USER-2.
    pub(crate) id: u64,
    pub(crate) name: Arc<[u8]>,
    pub(crate) is_on: bool,
    /// Every password is accepted.
    pub(crate) needs_no_password: bool,
    pub(crate) payload_checks: PayloadChecks,
    pub(crate) passwords: Vec<PasswordHash>,
    /// The permissions outside of parentheses.
    pub(crate) root: Selector,
    /// The permissions in parentheses.
    pub(crate) selectors: Vec<Selector>,
    /// Bytes of all patterns; set by [`Users::insert`].
    pattern_bytes: usize,
    /// Number of changes by which the user has lost a channel; set by [`Users::insert`].
    channel_losses: u64,
}

impl User {
    /// Creates a user without permissions and passwords, except for all channels if `has_all_channels`.
    pub(crate) fn new(id: u64, name: &[u8], has_all_channels: bool) -> User {
        User {
            id,
            name: name.into(),
            is_on: false,
            needs_no_password: false,
            payload_checks: PayloadChecks::Unsaid,
            passwords: Vec::new(),
            root: Selector::new(has_all_channels),
            selectors: Vec::new(),
            pattern_bytes: 0,
            channel_losses: 0,
        }
    }

    /// Creates the user `default` as it is without a configuration: it may do everything without a password.
    pub(crate) fn new_default(id: u64) -> User {
        let mut user = User::new(id, DEFAULT, true);
        (user.is_on, user.needs_no_password) = (true, true);
        user.root.has_all_keys = true;
        user.root.has_all_commands = true;
        user.root.is_subtractive = true;
        user.root.commands = CommandSet::ALL;
        user
    }

    /// All selectors, the permissions outside of parentheses first.
    pub(crate) fn selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.root).chain(&self.selectors)
    }

    /// Whether connections of this user need no password.
    pub(crate) fn is_open(&self) -> bool {
        self.is_on && self.needs_no_password
    }

    /// Whether requests of this user must be checked.
    pub(crate) fn is_restricted(&self) -> bool {
        !self.root.is_unrestricted()
    }

    /// Whether the user may authenticate with the password whose hash is `given`.
    fn accepts(&self, given: &PasswordHash) -> bool {
        let is_right = given.is_among(&self.passwords);
        self.is_on && (self.needs_no_password || is_right)
    }

    /// Sets the only password, or with an empty one allows every password (`requirepass`).
    pub(crate) fn set_password(&mut self, password: &[u8]) {
        self.needs_no_password = password.is_empty();
        self.passwords = match password {
            [] => Vec::new(),
            password => vec![PasswordHash::of(password)],
        };
    }

    /// Bytes of all patterns. Checking a request takes at most this times the bytes of its keys and channels.
    pub(crate) fn pattern_bytes(&self) -> usize {
        self.pattern_bytes
    }

    /// Number of its rules, which [`RULES_MAX`] bounds.
    pub(crate) fn rules(&self) -> usize {
        let selectors = self.selectors().map(|selector| 1 + selector.len());
        self.passwords.len() + selectors.sum::<usize>()
    }

    /// Whether the user has lost a channel that it had as `before`.
    fn has_fewer_channels(&self, before: &User) -> bool {
        let has_all = |user: &User| user.selectors().any(|selector| selector.has_all_channels);
        let has = |pattern: &Vec<u8>| self.selectors().any(|own| own.channels.contains(pattern));
        let lost_one = || {
            let mut patterns = before.selectors().flat_map(|selector| &selector.channels);
            has_all(before) || !patterns.all(has)
        };
        !has_all(self) && lost_one()
    }

    /// Whether the user may subscribe to `channel`.
    pub(crate) fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        self.selectors().any(|selector| {
            selector.has_all_channels || allows_channel(&selector.channels, channel, is_pattern)
        })
    }
}

/// All users by name, in the order of their names. There is always a user `default`.
#[derive(Clone)]
pub(crate) struct Users(BTreeMap<Arc<[u8]>, Arc<User>>);

impl Users {
    /// Creates a set with the user `default` only.
    pub(crate) fn new(default: User) -> Users {
        let mut users = Users(BTreeMap::new());
        users.insert(default);
        users
    }

    /// The user `name`.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.0.get(name)
    }

    /// The user `default`.
    pub(crate) fn default_user(&self) -> Arc<User> {
        let default = self.get(DEFAULT).map(Arc::clone);
        // Unreachable: no change removes it. A user without permissions is the safe answer.
        default.unwrap_or_else(|| Arc::new(User::new(0, DEFAULT, false)))
    }

    /// Adds or replaces a user.
    pub(crate) fn insert(&mut self, mut user: User) {
        user.pattern_bytes = user.selectors().map(Selector::pattern_bytes).sum();
        if let Some(before) = self.get(&user.name) {
            user.channel_losses =
                before.channel_losses + u64::from(user.has_fewer_channels(before));
        }
        self.0.insert(Arc::clone(&user.name), Arc::new(user));
    }

    /// Replaces all users. `default` remains the same user; others are new users, also those with known names.
    pub(crate) fn replace(&mut self, loaded: Users) {
        let before = self.default_user();
        let mut default = User::clone(&loaded.default_user());
        default.id = before.id;
        default.channel_losses =
            before.channel_losses + u64::from(default.has_fewer_channels(&before));
        *self = loaded;
        self.0.insert(Arc::clone(&default.name), Arc::new(default));
    }

    /// Removes a user other than `default`. Returns whether it existed.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        name != DEFAULT && self.0.remove(name).is_some()
    }

    /// The users in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<User>> {
        self.0.values()
    }

    /// Number of users.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Why a client was refused; INFO counts each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DenialReason {
    Command,
    Key,
    Channel,
    Auth,
}

impl DenialReason {
    /// Its name in ACL LOG.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DenialReason::Command => "command",
            DenialReason::Key => "key",
            DenialReason::Channel => "channel",
            DenialReason::Auth => "auth",
        }
    }
}

/// The users of a server.
pub(crate) struct UserRegistry {
    current: Mutex<Arc<Users>>,
    /// Held during a change, so that changes come one after the other.
    changing: Mutex<()>,
    /// Number of changes so far.
    generation: AtomicU64,
    last_id: AtomicU64,
    /// The user `default` needs no password and may do everything.
    is_open: AtomicBool,
    needs_password: AtomicBool,
    /// Refused requests by [`DenialReason`].
    denials: [AtomicU64; 4],
}

impl UserRegistry {
    /// Creates a registry of `users`, whose ids are at most `last_id`.
    pub(crate) fn new(users: Users, last_id: u64) -> UserRegistry {
        let registry = UserRegistry {
            current: Mutex::new(Arc::new(users.clone())),
            changing: Mutex::default(),
            generation: AtomicU64::new(0),
            last_id: AtomicU64::new(last_id),
            is_open: AtomicBool::new(false),
            needs_password: AtomicBool::new(true),
            denials: Default::default(),
        };
        registry.publish(users);
        registry
    }

    /// The users now.
    pub(crate) fn current(&self) -> Arc<Users> {
        Arc::clone(&lock(&self.current))
    }

    /// Number of changes so far.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns an id for a new user.
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether clients that have not authenticated may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Whether the user `default` needs a password, whether or not it is on.
    pub(crate) fn default_needs_password(&self) -> bool {
        self.needs_password.load(Ordering::Acquire)
    }

    fn publish(&self, users: Users) {
        let default = users.default_user();
        let is_open = default.is_open() && !default.is_restricted();
        self.is_open.store(is_open, Ordering::Release);
        self.needs_password
            .store(!default.needs_no_password, Ordering::Release);
        *lock(&self.current) = Arc::new(users);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Calls `change` with a copy of the users, and publishes it if that succeeds.
    pub(crate) fn change<R, E>(
        &self,
        change: impl FnOnce(&mut Users) -> Result<R, E>,
    ) -> Result<R, E> {
        let _one_by_one = lock(&self.changing);
        let mut users = Users::clone(&self.current());
        let outcome = change(&mut users)?;
        self.publish(users);
        Ok(outcome)
    }

    /// Returns the user `name` if `password` is right. Takes as long for an unknown user as for a wrong password.
    pub(crate) fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let given = PasswordHash::of(password);
        let users = self.current();
        users.get(name).filter(|user| user.accepts(&given)).cloned()
    }

    /// Counts a refused request.
    pub(crate) fn count(&self, reason: DenialReason) {
        self.denials[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of requests refused for this reason since the start or the last CONFIG RESETSTAT.
    pub(crate) fn denied(&self, reason: DenialReason) -> u64 {
        self.denials[reason as usize].load(Ordering::Relaxed)
    }

    /// Counts refused requests from now on.
    pub(crate) fn reset_counts(&self) {
        for count in &self.denials {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// The user of a connection, and whether it has authenticated.
pub(crate) struct ClientUser {
    user: Arc<User>,
    /// The generation of the users that it follows.
    generation: u64,
    /// It has authenticated, or it connected while that was not needed.
    has_authenticated: bool,
    /// It may execute requests that need authentication.
    is_authenticated: bool,
    /// Its requests must be checked.
    is_restricted: bool,
    /// [`User::pattern_bytes`] of a restricted user.
    pattern_bytes: usize,
}

/// What a change of users means for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UserChange {
    None,
    /// Subscriptions may have lost their permission.
    FewerChannels,
    /// The user was removed: the connection must be closed.
    Removed,
}

impl ClientUser {
    /// The user of a new connection, or of one after RESET: `default`.
    pub(crate) fn new(users: &UserRegistry) -> ClientUser {
        let generation = users.generation();
        let user = users.current().default_user();
        ClientUser {
            generation,
            has_authenticated: user.is_open(),
            is_authenticated: user.is_open(),
            is_restricted: user.is_restricted(),
            pattern_bytes: user.pattern_bytes(),
            user,
        }
    }

    /// The user.
    pub(crate) fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Whether the client may execute requests that need authentication.
    #[inline]
    pub(crate) fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Whether the client has authenticated, or connected while that was not needed.
    pub(crate) fn has_authenticated(&self) -> bool {
        self.has_authenticated
    }

    /// Whether requests must be checked.
    #[inline]
    pub(crate) fn is_restricted(&self) -> bool {
        self.is_restricted
    }

    /// Makes `user`, which has authenticated, the user of the connection.
    pub(crate) fn authenticate(&mut self, user: Arc<User>) {
        (self.has_authenticated, self.is_authenticated) = (true, true);
        self.is_restricted = user.is_restricted();
        self.pattern_bytes = user.pattern_bytes();
        self.user = user;
        // The user may have changed since it was looked up.
        self.generation = u64::MAX;
    }

    /// Bytes of the user's patterns.
    pub(crate) fn pattern_bytes(&self) -> usize {
        self.pattern_bytes
    }

    /// Follows changes of users since the last call.
    #[inline]
    pub(crate) fn follow(&mut self, users: &UserRegistry) -> UserChange {
        match self.generation == users.generation() {
            true => UserChange::None,
            false => self.follow_changes(users),
        }
    }

    #[cold]
    fn follow_changes(&mut self, users: &UserRegistry) -> UserChange {
        // Before the users are read, so that a later change is not missed.
        self.generation = users.generation();
        let current = users.current();
        let default = current.default_user();
        let same = current.get(&self.user.name);
        let change = match same.filter(|now| now.id == self.user.id) {
            Some(now) if Arc::ptr_eq(now, &self.user) => UserChange::None,
            Some(now) => {
                let has_lost = now.channel_losses != self.user.channel_losses;
                self.user = Arc::clone(now);
                match has_lost {
                    true => UserChange::FewerChannels,
                    false => UserChange::None,
                }
            }
            None => {
                self.user = Arc::clone(&default);
                self.has_authenticated = false;
                UserChange::Removed
            }
        };
        self.is_authenticated = self.has_authenticated || default.is_open();
        self.is_restricted = self.user.is_restricted();
        self.pattern_bytes = self.user.pattern_bytes();
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_parsed_from_its_digits() {
        let hash = PasswordHash::of(b"p");
        let digits = "148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940";
        assert_eq!(hash.hex(), digits);
        assert!(PasswordHash::parse(digits.as_bytes()) == Some(hash));
        assert!(PasswordHash::parse(digits.to_ascii_uppercase().as_bytes()).is_none());
        assert!(PasswordHash::parse(&digits.as_bytes()[1..]).is_none());
    }

    #[test]
    fn a_connection_recognises_that_its_user_was_removed_and_created_again() {
        let users = UserRegistry::new(Users::new(User::new_default(1)), 1);
        let add = |id| {
            users.change(|users| {
                let mut user = User::new(id, b"a", false);
                (user.is_on, user.needs_no_password) = (true, true);
                users.insert(user);
                Ok::<_, ()>(())
            })
        };
        add(users.next_id()).unwrap();
        let mut client = ClientUser::new(&users);
        assert_eq!(client.follow(&users), UserChange::None);
        client.authenticate(users.authenticate(b"a", b"any").unwrap());
        assert_eq!(client.follow(&users), UserChange::None);
        assert!(client.is_restricted() && &*client.user().name == b"a");
        users
            .change(|users| users.remove(b"a").then_some(()).ok_or(()))
            .unwrap();
        add(users.next_id()).unwrap();
        assert_eq!(client.follow(&users), UserChange::Removed);
        assert!(!client.has_authenticated() && &*client.user().name == DEFAULT);
    }

    #[test]
    fn the_default_user_stays_and_its_password_counts_for_new_connections() {
        let users = UserRegistry::new(Users::new(User::new_default(1)), 1);
        assert!(users.is_open());
        let mut early = ClientUser::new(&users);
        users
            .change(|users| {
                let mut default = User::clone(&users.default_user());
                default.set_password(b"secret");
                users.insert(default);
                assert!(!users.remove(DEFAULT));
                Ok::<_, ()>(())
            })
            .unwrap();
        assert!(!users.is_open() && !ClientUser::new(&users).is_authenticated());
        assert_eq!(early.follow(&users), UserChange::None);
        assert!(early.is_authenticated());
        assert!(users.authenticate(DEFAULT, b"wrong").is_none());
        assert!(users.authenticate(DEFAULT, b"secret").is_some());
    }
}
