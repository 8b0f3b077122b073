//! A volatile store in a hash map, for tests. It is slow, and implements tickets exactly.
//!
//! Writes are invisible to other sessions until their ticket is durable: at once, or when a test completes it
//! (`control` in the tests). `control` can also make the medium fail, the pool full, or operations on many keys wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use farbank_pm::sync::ignore_poison;
use farbank_pm::{Caps, Drain, Kind, Poisoned, Ticket};
use farbank_store::{
    Absence, Backup, BeforeValue, BeforeValues, ConflictPolicy, DATABASES, Error, GetStep,
    GroupDecision, Key, OpenReport, Ops, ReadView, Session, SharedDatabaseMap, Stats, Store,
    StoredItem, UpdateDecision, Value, ValueMeta,
};

pub(crate) type Name = (u8, Vec<u8>);

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    bytes: Vec<u8>,
    meta: ValueMeta,
}

impl Stored {
    fn new(bytes: &[u8], expires_ms: u64, flags: u32, kind: u8, version: u64) -> Stored {
        let meta = ValueMeta {
            value_bytes: bytes.len(),
            expires_ms,
            flags,
            kind,
            version,
        };
        Stored {
            bytes: bytes.to_vec(),
            meta,
        }
    }

    fn item(&self) -> StoredItem<'_> {
        StoredItem {
            bytes: &self.bytes,
            meta: self.meta,
        }
    }
}

/// Result of a write: the value, or `None` for a delete, and its position in the order of all writes.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    at: u64,
    value: Option<Stored>,
}

pub(crate) type Writes = Vec<(Name, Written)>;

#[derive(Default)]
pub(crate) struct State {
    visible: HashMap<Name, Written>,
    newest: HashMap<Name, Written>,
    pub(crate) unturned: BTreeMap<u64, Writes>,
    writes: u64,
    tickets: u64,
    pub(crate) turned: u64,
    pub(crate) held: bool,
    pub(crate) full: bool,
    pub(crate) poisoned: Option<Poisoned>,
    pub(crate) damaged: Vec<Name>,
    /// Number of keys of each prefetch.
    pub(crate) prefetches: Vec<usize>,
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl State {
    fn check(&self, name: &Name) -> Result<(), Error> {
        if self.damaged.contains(name) {
            Err(Error::Damaged(64))
        } else {
            Ok(())
        }
    }

    fn may_write(&self) -> Result<(), Error> {
        match &self.poisoned {
            Some(poisoned) => Err(Error::Poisoned(poisoned.clone())),
            None => Ok(()),
        }
    }

    fn record(&mut self, name: &Name, value: Option<Stored>) -> Written {
        self.writes += 1;
        let written = Written {
            at: self.writes,
            value,
        };
        self.newest.insert(name.clone(), written.clone());
        written
    }

    pub(crate) fn apply(&mut self, writes: Writes) {
        for (name, written) in writes {
            if self
                .newest
                .get(&name)
                .is_some_and(|newest| newest.at == written.at)
            {
                self.newest.remove(&name);
            }
            if self
                .visible
                .get(&name)
                .is_none_or(|old| old.at < written.at)
            {
                self.visible.insert(name, written);
            }
        }
    }

    fn latest(&self, name: &Name) -> Option<&Stored> {
        self.newest
            .get(name)
            .or_else(|| self.visible.get(name))?
            .value
            .as_ref()
    }
}

/// Gate at which operations on many keys wait while a test keeps it closed.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) is_closed: bool,
    pub(crate) waiting: usize,
}

pub(crate) struct Inner {
    state: Mutex<State>,
    gate: Mutex<Gate>,
    pub(crate) opened: Condvar,
    /// The store's time in milliseconds since 1970; 0 means the real clock.
    pub(crate) clock_ms: AtomicU64,
    databases: SharedDatabaseMap,
}

impl Inner {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        ignore_poison(self.state.lock())
    }

    pub(crate) fn gate(&self) -> MutexGuard<'_, Gate> {
        ignore_poison(self.gate.lock())
    }

    /// Waits at the closed gate if an operation has many keys.
    fn pass(&self, keys: usize) {
        const MANY: usize = 40;
        let mut gate = self.gate();
        gate.waiting += 1;
        while keys >= MANY && gate.is_closed {
            gate = ignore_poison(self.opened.wait(gate));
        }
        gate.waiting -= 1;
    }

    fn now_ms(&self) -> u64 {
        match self.clock_ms.load(Ordering::Relaxed) {
            0 => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_millis() as u64,
            ms => ms,
        }
    }

    fn live<'a>(&self, stored: Option<&'a Stored>) -> Option<&'a Stored> {
        let now = self.now_ms();
        stored.filter(|s| s.meta.expires_ms == 0 || s.meta.expires_ms > now)
    }
}

/// The store. Clones share the same data.
#[derive(Clone)]
pub(crate) struct Volatile {
    pub(crate) inner: Arc<Inner>,
    caps: Caps,
    opened: OpenReport,
}

impl Volatile {
    pub(crate) fn new() -> Volatile {
        let inner = Inner {
            state: Mutex::default(),
            gate: Mutex::default(),
            opened: Condvar::new(),
            clock_ms: AtomicU64::new(0),
            databases: SharedDatabaseMap::default(),
        };
        let caps = Caps {
            kind: Kind::Dram,
            tear_bytes: 8,
            drain: Drain::Fence,
            read_mode: "mapped",
            stores_are_durable: false,
            survives: "nothing".into(),
            warnings: Vec::new(),
        };
        Volatile {
            inner: Arc::new(inner),
            caps,
            opened: OpenReport::default(),
        }
    }
}

pub(crate) fn wake(state: MutexGuard<'_, State>) {
    let wake = state.wake.clone();
    drop(state);
    if let Some(wake) = wake {
        wake();
    }
}

impl Store for Volatile {
    fn session(&self) -> Box<dyn Session> {
        let inner = Arc::clone(&self.inner);
        Box::new(VolatileSession {
            inner,
            batch: Vec::new(),
            own: HashMap::new(),
        })
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for ((db, _), written) in &self.inner.state().visible {
            stats.keys[usize::from(*db)] += u64::from(written.value.is_some());
        }
        stats
    }

    fn opened(&self) -> &OpenReport {
        &self.opened
    }

    fn databases(&self) -> Option<&SharedDatabaseMap> {
        Some(&self.inner.databases)
    }

    fn backup(&self) -> Result<Box<dyn Backup>, Error> {
        let state = self.inner.state();
        let visible = state.visible.iter();
        let items =
            visible.filter_map(|(name, written)| Some((name.clone(), written.value.clone()?)));
        let items = items.collect();
        Ok(Box::new(VolatileBackup { items }))
    }

    fn on_turn(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.inner.state().wake = Some(wake);
    }

    fn close(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}

/// The values of one moment.
struct VolatileBackup {
    items: Vec<(Name, Stored)>,
}

impl Backup for VolatileBackup {
    fn keys(&self) -> [u64; DATABASES] {
        let mut keys = [0; DATABASES];
        for ((db, _), _) in &self.items {
            keys[usize::from(*db)] += 1;
        }
        keys
    }

    fn step(
        &mut self,
        count: usize,
        each: &mut dyn FnMut(Key<'_>, StoredItem<'_>),
    ) -> Result<bool, Error> {
        for ((db, bytes), stored) in self.items.drain(..count.min(self.items.len())) {
            each(Key { db, bytes: &bytes }, stored.item());
        }
        Ok(!self.items.is_empty() || count == 0)
    }

    fn damaged(&self) -> u64 {
        0
    }
}

struct VolatileSession {
    inner: Arc<Inner>,
    batch: Writes,
    own: HashMap<Name, Written>,
}

fn name(key: Key<'_>) -> Name {
    (key.db, key.bytes.to_vec())
}

impl VolatileSession {
    /// The value of `name` that this session sees.
    fn see<'a>(&'a self, state: &'a State, name: &Name, view: ReadView) -> Option<&'a Stored> {
        let visible = state.visible.get(name);
        let own = self.own.get(name).filter(|own| {
            view == ReadView::Pending && visible.is_none_or(|visible| visible.at < own.at)
        });
        self.inner.live(own.or(visible)?.value.as_ref())
    }

    fn write(&mut self, name: Name, value: Option<Stored>) {
        let written = self.inner.state().record(&name, value);
        self.own.insert(name.clone(), written.clone());
        self.batch.push((name, written));
    }
}

impl Ops for VolatileSession {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        let (state, name) = (self.inner.state(), name(key));
        state.check(&name)?;
        let found = self.see(&state, &name, view);
        if let Some(stored) = found
            && head(&stored.meta, out)
        {
            out.extend_from_slice(&stored.bytes);
        }
        Ok(found.is_some())
    }

    fn meta(&mut self, key: Key<'_>, view: ReadView) -> Result<Option<ValueMeta>, Error> {
        let state = self.inner.state();
        Ok(self.see(&state, &name(key), view).map(|stored| stored.meta))
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        let state = self.inner.state();
        state.may_write()?;
        if state.full {
            return Err(Error::Full);
        }
        let version = state.writes + 1;
        drop(state);
        let Value {
            bytes,
            expires_ms,
            flags,
            kind,
        } = value;
        self.write(
            name(key),
            Some(Stored::new(bytes, expires_ms, flags, kind, version)),
        );
        Ok(version)
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        let (state, name) = (self.inner.state(), name(key));
        state.may_write()?;
        let found = self.inner.live(state.latest(&name)).is_some();
        drop(state);
        if found {
            self.write(name, None);
        }
        Ok(found)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let name = name(key);
        loop {
            let state = self.inner.state();
            state.may_write()?;
            state.check(&name)?;
            let old = self.inner.live(state.latest(&name)).cloned();
            let at = state.writes;
            drop(state);
            let value = match decide(old.as_ref().map(Stored::item)) {
                UpdateDecision::Keep => return Ok(old.map_or(0, |old| old.meta.version)),
                UpdateDecision::Delete => None,
                UpdateDecision::Put {
                    bytes,
                    expires_ms,
                    flags,
                    kind,
                } => Some(Stored::new(&bytes, expires_ms, flags, kind, at + 1)),
            };
            let mut state = self.inner.state();
            if state.writes != at {
                continue;
            }
            if state.full && value.is_some() {
                return Err(Error::Full);
            }
            let written = state.record(&name, value);
            drop(state);
            self.own.insert(name.clone(), written.clone());
            self.batch.push((name, written));
            return Ok(at + 1);
        }
    }

    fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }
}

impl Session for VolatileSession {
    fn on_conflict(&mut self, _: ConflictPolicy) {}

    fn prefetch(&mut self, keys: &[Key<'_>], _: bool) {
        self.inner.state().prefetches.push(keys.len());
    }

    fn used_bytes(&self) -> u64 {
        let bytes = |written: &Written| {
            let value = written.value.as_ref();
            value.map_or(0, |stored| stored.bytes.len() as u64)
        };
        let own = self.own.values().map(bytes).sum::<u64>();
        let state = self.inner.state();
        let visible = state.visible.iter();
        let others = visible.filter(|(name, _)| !self.own.contains_key(*name));
        own + others.map(|(_, written)| bytes(written)).sum::<u64>()
    }

    fn sample(
        &mut self,
        position: u64,
        visits: usize,
        each: &mut dyn FnMut(Key<'_>, &ValueMeta) -> bool,
    ) -> u64 {
        let state = self.inner.state();
        let visible = state.visible.iter();
        let quiet = visible.filter(|(name, _)| !state.newest.contains_key(*name));
        let live = quiet
            .filter_map(|(name, written)| Some((name, self.inner.live(written.value.as_ref())?)));
        let mut keys: Vec<_> = live.collect();
        keys.sort_by_key(|((_, bytes), _)| spread(bytes));
        let mut rest = keys
            .into_iter()
            .filter(|((_, bytes), _)| spread(bytes) >= position);
        for ((db, bytes), stored) in rest.by_ref().take(visits) {
            if !each(Key { db: *db, bytes }, &stored.meta) {
                break;
            }
        }
        rest.next().map_or(0, |((_, bytes), _)| spread(bytes))
    }

    fn absence(&mut self, key: Key<'_>) -> Absence {
        let (state, name) = (self.inner.state(), name(key));
        match self.own.get(&name).or(state.visible.get(&name)) {
            Some(written) if written.value.is_some() => Absence::Expired,
            _ => Absence::Missing,
        }
    }

    fn get_many(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        each: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error> {
        let state = self.inner.state();
        for &key in keys {
            state.check(&name(key))?;
        }
        for (at, &key) in keys.iter().enumerate() {
            each(at, self.see(&state, &name(key), view).map(Stored::item));
        }
        Ok(())
    }

    fn get_many_into(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValues<'_>,
    ) -> Result<(), Error> {
        self.inner.pass(keys.len());
        let state = self.inner.state();
        for &key in keys {
            state.check(&name(key))?;
        }
        for &key in keys {
            let found = self.see(&state, &name(key), view);
            match head(found.map(|stored| &stored.meta), out) {
                GetStep::Value => out.extend_from_slice(found.map_or(&[], |stored| &stored.bytes)),
                GetStep::NextKey => {}
                GetStep::Nothing => break,
            }
        }
        Ok(())
    }

    fn group(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        self.inner.pass(keys.len());
        let state = self.inner.state();
        let mut group = Group {
            inner: &self.inner,
            keys,
            state,
            staged: Vec::new(),
        };
        group.state.may_write()?;
        // The body runs twice, and the effects of the first run must not count.
        body(&mut group)?;
        group.staged.clear();
        let verdict = body(&mut group)?;
        if verdict == GroupDecision::Abandon {
            return Ok(verdict);
        }
        let Group {
            mut state, staged, ..
        } = group;
        if state.full && staged.iter().any(|(_, value)| value.is_some()) {
            return Err(Error::Full);
        }
        for (name, mut value) in staged {
            if let Some(value) = &mut value {
                value.meta.version = state.writes + 1;
            }
            let written = state.record(&name, value);
            self.own.insert(name.clone(), written.clone());
            self.batch.push((name, written));
        }
        Ok(verdict)
    }

    fn scan(
        &mut self,
        db: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &ValueMeta),
    ) -> Result<u64, Error> {
        self.inner.pass(count);
        let ticket = self.commit()?;
        self.wait(ticket)?;
        let state = self.inner.state();
        let mut keys: Vec<_> = state
            .visible
            .iter()
            .filter(|((of, _), _)| *of == db)
            .collect();
        keys.sort_by_key(|((_, key), _)| spread(key));
        let mut rest = keys.iter().filter(|((_, key), _)| spread(key) >= cursor);
        for ((_, key), written) in rest.by_ref().take(count) {
            if let Some(stored) = self.inner.live(written.value.as_ref()) {
                each(key, &stored.meta);
            }
        }
        Ok(rest.next().map_or(0, |((_, key), _)| spread(key)))
    }

    fn len(&mut self, db: u8) -> Result<u64, Error> {
        let ticket = self.commit()?;
        self.wait(ticket)?;
        let state = self.inner.state();
        let of_db = |((of, _), written): &(&Name, &Written)| *of == db && written.value.is_some();
        Ok(state.visible.iter().filter(of_db).count() as u64)
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        self.inner.pass(usize::MAX);
        let ticket = self.commit()?;
        self.wait(ticket)?;
        let mut state = self.inner.state();
        state.may_write()?;
        let names: Vec<_> = state
            .visible
            .keys()
            .chain(state.newest.keys())
            .cloned()
            .collect();
        for name in names {
            let written = state.record(&name, None);
            state.apply(vec![(name, written)]);
        }
        Ok(())
    }

    /// Exchanges the keys themselves, once all sessions' writes are visible.
    fn swap_databases(&mut self, first: u8, second: u8) -> Result<(), Error> {
        let ticket = self.commit()?;
        self.wait(ticket)?;
        let mut state = loop {
            let state = self.inner.state();
            if state.unturned.is_empty() {
                break state;
            }
            drop(state);
            std::thread::yield_now();
        };
        let State {
            visible, newest, ..
        } = &mut *state;
        for keys in [visible, newest] {
            let rename = |((db, bytes), written)| match db {
                db if db == first => ((second, bytes), written),
                db if db == second => ((first, bytes), written),
                db => ((db, bytes), written),
            };
            *keys = std::mem::take(keys).into_iter().map(rename).collect();
        }
        if first != second {
            self.inner.databases.swap(first, second);
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        let mut state = self.inner.state();
        if self.batch.is_empty() {
            return Ok(Ticket::DURABLE);
        }
        state.may_write()?;
        let batch = std::mem::take(&mut self.batch);
        if !state.held {
            state.apply(batch);
            self.own.clear();
            return Ok(Ticket::DURABLE);
        }
        state.tickets += 1;
        let ticket = state.tickets;
        state.unturned.insert(ticket, batch);
        Ok(Ticket(ticket))
    }

    fn durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned> {
        let state = self.inner.state();
        match &state.poisoned {
            _ if ticket.0 <= state.turned => Ok(true),
            Some(poisoned) => Err(poisoned.clone()),
            None => Ok(false),
        }
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Poisoned> {
        while !self.durable(ticket)? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Hash of a key for scan cursors, never 0.
fn spread(key: &[u8]) -> u64 {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }) | 1
}

struct Group<'a> {
    inner: &'a Inner,
    keys: &'a [Key<'a>],
    state: MutexGuard<'a, State>,
    staged: Vec<(Name, Option<Stored>)>,
}

impl Group<'_> {
    fn see(&self, key: Key<'_>) -> Result<Option<&Stored>, Error> {
        assert!(
            self.keys.contains(&key),
            "{key:?} is not a key of the group"
        );
        let name = name(key);
        self.state.check(&name)?;
        let staged = self.staged.iter().rev().find(|(of, _)| *of == name);
        let found = staged.map_or_else(|| self.state.latest(&name), |(_, value)| value.as_ref());
        Ok(self.inner.live(found))
    }
}

impl Ops for Group<'_> {
    fn get(
        &mut self,
        key: Key<'_>,
        _: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        let Some(stored) = self.see(key)? else {
            return Ok(false);
        };
        if head(&stored.meta, out) {
            out.extend_from_slice(&stored.bytes);
        }
        Ok(true)
    }

    fn meta(&mut self, key: Key<'_>, _: ReadView) -> Result<Option<ValueMeta>, Error> {
        Ok(self.see(key)?.map(|stored| stored.meta))
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        self.see(key)?;
        let Value {
            bytes,
            expires_ms,
            flags,
            kind,
        } = value;
        self.staged.push((
            name(key),
            Some(Stored::new(bytes, expires_ms, flags, kind, 0)),
        ));
        Ok(0)
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        let found = self.see(key)?.is_some();
        if found {
            self.staged.push((name(key), None));
        }
        Ok(found)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let value = match decide(self.see(key)?.map(Stored::item)) {
            UpdateDecision::Keep => return Ok(0),
            UpdateDecision::Delete => None,
            UpdateDecision::Put {
                bytes,
                expires_ms,
                flags,
                kind,
            } => Some(Stored::new(&bytes, expires_ms, flags, kind, 0)),
        };
        self.staged.push((name(key), value));
        Ok(0)
    }

    fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }
}

const _: () = assert!(DATABASES == 16);
