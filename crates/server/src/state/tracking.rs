//! Client-side caching (CLIENT TRACKING): which clients may have which keys in their caches, and the invalidations.
//!
//! ```text
//!   read  ── register (client, key) ──▶ read the store ──▶ reply
//!   write ── change log ──▶ visible to all sessions ──▶ announce: take the key's clients ──▶ invalidations ──▶ reply
//! ```
//!
//! As in Redis, the table maps the name of a key, whatever its database is, to clients. A client that tracks by prefix
//! (`BCAST`) is not in the table.
//!
//! # Invariants
//! SRV-TRACK-1  A tracked read registers its client for the key, in the key's shard, before it reads the store.
//! SRV-TRACK-2  Every write of an executor whose turn began while tracking is on is in the executor's change log
//!     (`state::recording_session`).
//! SRV-TRACK-3  A change is looked up in the key's shard after it is visible to all sessions: for a write, after its
//!     batch's ticket is durable. If the commit fails, the change is looked up at once and with the next batch, because it may
//!     be visible now or then.
//! SRV-TRACK-4  A client tracks only once every write that is not in a change log is visible to all sessions
//!     ([`Tracking::is_ready`]).
//! SRV-TRACK-5  The invalidations of a change are in the workers' queues before the reply to the write is sent. A client that
//!     tracks executes requests only after the messages that were queued before (SRV-DELIVER-2).
//! SRV-TRACK-6  A request's own registrations end, and its client's own invalidations follow its reply, when it has executed.
//!     Announcing the change later leaves its client's registrations alone: those are of reads after the write, which have seen it.
//!
//! *No invalidation is lost.* Let a client read a key, and let a write of this key become visible that the read has not seen.
//! By SRV-TRACK-2 and SRV-TRACK-4, the write is in a change log: it was not visible before the read, so it was not before
//! its client tracked. Registration (SRV-TRACK-1) and look-up (SRV-TRACK-3) take the lock of the same shard. If the registration
//! is first, the look-up finds the client. If the look-up is first, the write was visible before the lock was released, so
//! before the read began, and the read has seen it: a contradiction. By SRV-TRACK-6 this also holds for the client's own
//! writes: a client sees its own writes at once.
//!
//! *Order.* The worker that owns the reader's connection appends the reply, and later, between two turns, the
//! invalidation. So the invalidation follows the reply with the old value.
//!
//! *Durability.* Invalidations of other clients' writes are sent when these writes are durable, and so visible: a client
//! that reads again sees the new value, never one that a crash may lose. Invalidations of own writes are in the
//! output queue behind the reply to the write, which is held until it is durable.
//!
//! # Bounds
//! `tracking-table-max-keys` bounds the keys. When the list of a key's clients grows, clients that are gone are removed
//! first, so it has at most twice as many entries as the key has had clients at a time. A thread lists at most 64 MiB of changes;
//! above that, all clients get an invalidation of all keys.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};

use super::change_log::KeyChange;
use super::clients::{ClientInfo, ClientRegistry};
use super::messages::{Delivery, Message, Publication, Receiver, Target, TargetKind};
use crate::lock::lock;
use crate::protocol::resp::reply;

/// Bits of [`ClientInfo::tracking`].
pub(crate) mod tracking_flag {
    /// The client tracks keys.
    pub(crate) const ON: u8 = 1;
    /// It gets the invalidations of all keys with its prefixes.
    pub(crate) const BCAST: u8 = 2;
    /// It caches the keys of requests after CLIENT CACHING YES only.
    pub(crate) const OPTIN: u8 = 4;
    /// It does not cache the keys of requests after CLIENT CACHING NO.
    pub(crate) const OPTOUT: u8 = 8;
    /// It gets no invalidations of its own writes.
    pub(crate) const NOLOOP: u8 = 16;
    /// The client to which it redirects its invalidations is gone.
    pub(crate) const BROKEN: u8 = 32;
    /// CLIENT CACHING was called for the next request.
    pub(crate) const CACHING: u8 = 64;
}

/// Shards of the table; a power of two.
const SHARDS: usize = 64;
/// Bytes of a key's entry besides its name and its clients, with the allocator's overhead.
const ENTRY_BYTES: usize = 192;
/// Length of a key's list of clients from which clients that are gone are removed when it grows.
const LIST_LEN: usize = 16;
/// Keys that one call of [`Tracking::evict`] removes, times the calls since the table was within its limit.
const EVICTED_KEYS: usize = 100;
/// Most keys that one call of [`Tracking::evict`] removes.
const EVICTED_KEYS_MAX: usize = 1000;
/// Keys of a table from which another thread frees it.
const HUGE_KEYS: usize = 1000;

/// A key and the clients that may have it in their caches, by id.
struct TrackedKey {
    name: Arc<[u8]>,
    clients: Vec<Arc<ClientInfo>>,
}

/// A part of the table.
#[derive(Default)]
struct Shard {
    keys: Vec<TrackedKey>,
    places: HashMap<Arc<[u8]>, usize>,
    /// Clients of all keys.
    items: usize,
    /// Bytes of the names of all keys.
    name_bytes: usize,
}

impl Shard {
    /// Adds a key that has no entry.
    fn add(&mut self, name: Arc<[u8]>, client: Arc<ClientInfo>) {
        self.places.insert(Arc::clone(&name), self.keys.len());
        self.items += 1;
        self.name_bytes += name.len();
        let clients = vec![client];
        self.keys.push(TrackedKey { name, clients });
    }

    fn remove_at(&mut self, place: usize) -> TrackedKey {
        let removed = self.keys.swap_remove(place);
        self.places.remove(&removed.name);
        self.items -= removed.clients.len();
        self.name_bytes -= removed.name.len();
        if let Some(moved) = self.keys.get(place) {
            self.places.insert(Arc::clone(&moved.name), place);
        }
        removed
    }
}

/// Selects a key and a client of the table.
type IsKept<'a> = &'a dyn Fn(&[u8], &ClientInfo) -> bool;

/// A tracked key that [`Tracking::evict`] has removed, with its clients.
pub(crate) struct EvictedKey {
    pub(crate) name: Arc<[u8]>,
    pub(crate) clients: Vec<Arc<ClientInfo>>,
}

/// The clients that track keys, and the keys; see the module.
pub(crate) struct Tracking {
    is_on: AtomicBool,
    /// Workers that may have writes that are in no change log and not visible.
    unready_workers: AtomicUsize,
    /// The thread of long requests executes one whose writes are in no change log.
    long_is_unready: AtomicBool,
    is_ready: AtomicBool,
    clients: AtomicUsize,
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    keys: AtomicUsize,
    /// The clients of each prefix.
    prefixes: Mutex<Prefixes>,
    prefix_count: AtomicUsize,
    /// Calls of [`Tracking::evict`] since the table was within its limit.
    evictions: AtomicUsize,
    /// See `Subscriptions::queued_bytes`.
    queued_bytes: Arc<AtomicUsize>,
}

impl Tracking {
    /// `queued_bytes`: counts the bytes of the messages that are not delivered yet.
    pub(crate) fn new(workers: usize, queued_bytes: &Arc<AtomicUsize>) -> Tracking {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Tracking {
            is_on: AtomicBool::new(false),
            unready_workers: AtomicUsize::new(workers),
            long_is_unready: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
            shards,
            hasher: RandomState::new(),
            keys: AtomicUsize::new(0),
            prefixes: Mutex::default(),
            prefix_count: AtomicUsize::new(0),
            evictions: AtomicUsize::new(0),
            queued_bytes: Arc::clone(queued_bytes),
        }
    }

    /// Whether executors record their changes. Once a client has tracked keys, they do until the server stops.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Makes executors record their changes. Returns whether they did not before; the workers must then be woken.
    pub(crate) fn turn_on(&self) -> bool {
        !self.is_on.swap(true, Ordering::SeqCst)
    }

    /// Records that a worker has no write left that is in no change log and not visible.
    pub(crate) fn note_ready_worker(&self) {
        self.unready_workers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Begins a long request, before [`Tracking::is_on`] is read for it.
    pub(crate) fn begin_long(&self) {
        if !self.is_ready.load(Ordering::Relaxed) {
            self.long_is_unready.store(true, Ordering::SeqCst);
            // Either this thread sees that tracking is on, or `is_ready` sees that the request executes.
            fence(Ordering::SeqCst);
            if self.is_on() {
                self.end_long();
            }
        }
    }

    /// Ends a long request, after its writes are visible.
    pub(crate) fn end_long(&self) {
        self.long_is_unready.store(false, Ordering::Release);
    }

    /// Whether all writes that are in no change log are visible (SRV-TRACK-4). They will be soon after
    /// [`Tracking::turn_on`].
    pub(crate) fn is_ready(&self) -> bool {
        if self.is_ready.load(Ordering::Acquire) {
            return true;
        }
        fence(Ordering::SeqCst);
        let is_ready = self.unready_workers.load(Ordering::Acquire) == 0
            && !self.long_is_unready.load(Ordering::SeqCst);
        if is_ready {
            self.is_ready.store(true, Ordering::Release);
        }
        is_ready
    }

    /// Number of clients that track keys.
    pub(crate) fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// Number of keys in the table.
    pub(crate) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Number of clients in the table, counted for each key.
    pub(crate) fn items(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).items).sum()
    }

    /// Number of prefixes.
    pub(crate) fn prefixes(&self) -> usize {
        self.prefix_count.load(Ordering::Relaxed)
    }

    /// Bytes of memory that the table uses.
    pub(crate) fn bytes(&self) -> usize {
        let name_bytes: usize = self.shards.iter().map(|s| lock(s).name_bytes).sum();
        name_bytes + self.keys() * ENTRY_BYTES + self.items() * size_of::<Arc<ClientInfo>>()
    }

    /// Makes a client track keys with `flags`, in addition to the prefixes that it tracks.
    pub(crate) fn enable(
        &self,
        client: &Arc<ClientInfo>,
        flags: u8,
        redirect: u64,
        new_prefixes: &[Arc<[u8]>],
    ) {
        client.redirect.store(redirect, Ordering::Relaxed);
        let kept = client.tracking.load(Ordering::Relaxed) & tracking_flag::CACHING;
        let before = client.tracking.swap(flags | kept, Ordering::Relaxed);
        if before & tracking_flag::ON == 0 {
            self.clients.fetch_add(1, Ordering::Relaxed);
        }
        let mut prefixes = lock(&self.prefixes);
        for prefix in new_prefixes {
            let clients = prefixes.entry(Arc::clone(prefix)).or_default();
            if !clients.iter().any(|other| other.id == client.id) {
                clients.push(Arc::clone(client));
            }
        }
        self.prefix_count.store(prefixes.len(), Ordering::Relaxed);
    }

    /// Ends the tracking of a client with `prefixes`. As in Redis, its entries stay in the table until their keys change.
    pub(crate) fn disable<'p>(
        &self,
        client: &ClientInfo,
        prefixes: impl Iterator<Item = &'p Arc<[u8]>>,
    ) {
        let before = client.tracking.swap(0, Ordering::Relaxed);
        if before & tracking_flag::ON != 0 {
            self.clients.fetch_sub(1, Ordering::Relaxed);
        }
        if before & tracking_flag::BCAST == 0 {
            return;
        }
        let mut all = lock(&self.prefixes);
        for prefix in prefixes {
            if let Some(clients) = all.get_mut(prefix) {
                clients.retain(|other| other.id != client.id);
                if clients.is_empty() {
                    all.remove(prefix);
                }
            }
        }
        self.prefix_count.store(all.len(), Ordering::Relaxed);
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(key);
        lock(&self.shards[hash as usize % SHARDS])
    }

    /// Registers a client for a key (SRV-TRACK-1). Returns whether it was not registered.
    pub(crate) fn register(&self, key: &[u8], client: &Arc<ClientInfo>) -> bool {
        let mut shard = self.shard(key);
        let Some(&place) = shard.places.get(key) else {
            shard.add(Arc::from(key), Arc::clone(client));
            self.keys.fetch_add(1, Ordering::Relaxed);
            return true;
        };
        let shard = &mut *shard;
        let clients = &mut shard.keys[place].clients;
        let Err(mut at) = clients.binary_search_by_key(&client.id, |other| other.id) else {
            return false;
        };
        if clients.len() == clients.capacity() && clients.len() >= LIST_LEN {
            let before = clients.len();
            clients.retain(|other| !other.is_closing.load(Ordering::Relaxed));
            shard.items -= before - clients.len();
            at = clients.partition_point(|other| other.id < client.id);
        }
        clients.insert(at, Arc::clone(client));
        shard.items += 1;
        true
    }

    /// Whether a client is registered for a key.
    pub(crate) fn is_registered(&self, key: &[u8], client: u64) -> bool {
        let shard = self.shard(key);
        let place = shard.places.get(key);
        place.is_some_and(|&place| {
            let clients = &shard.keys[place].clients;
            clients
                .binary_search_by_key(&client, |other| other.id)
                .is_ok()
        })
    }

    /// Ends the registration of a client for a key.
    pub(crate) fn unregister(&self, key: &[u8], client: u64) {
        self.take_if(key, |other| other.id == client);
    }

    /// Removes the clients that `is_taken` selects from a key's entry. Returns them.
    fn take_if(&self, key: &[u8], is_taken: impl Fn(&ClientInfo) -> bool) -> Vec<Arc<ClientInfo>> {
        let mut shard = self.shard(key);
        let shard = &mut *shard;
        let Some(&place) = shard.places.get(key) else {
            return Vec::new();
        };
        let clients = &mut shard.keys[place].clients;
        let taken: Vec<_> = clients.extract_if(.., |client| is_taken(client)).collect();
        shard.items -= taken.len();
        if clients.is_empty() {
            shard.remove_at(place);
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }

    /// Removes all entries, except those of a key and a client that `is_kept` selects.
    pub(crate) fn clear(&self, is_kept: Option<IsKept<'_>>) {
        let mut freed = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let old = std::mem::take(&mut *shard);
            for key in is_kept.iter().flat_map(|_| &old.keys) {
                let mut clients = key.clients.iter();
                let kept = clients.find(|client| is_kept.is_some_and(|is| is(&key.name, client)));
                if let Some(client) = kept {
                    shard.add(Arc::clone(&key.name), Arc::clone(client));
                }
            }
            self.keys
                .fetch_sub(old.keys.len() - shard.keys.len(), Ordering::Relaxed);
            freed.push(old);
        }
        if freed.iter().map(|shard| shard.keys.len()).sum::<usize>() > HUGE_KEYS {
            let thread = std::thread::Builder::new().name("free-tracking".into());
            // Without a thread, the table is freed here.
            drop(thread.spawn(move || drop(freed)));
        }
    }

    /// Whether the table has more than `keys_max` keys; 0 means that there is no limit.
    #[inline]
    pub(crate) fn is_over(&self, keys_max: usize) -> bool {
        keys_max > 0 && self.keys() > keys_max && self.clients() > 0
    }

    /// Removes random keys until the table has `keys_max`, but a bounded number of keys in one call.
    pub(crate) fn evict(&self, keys_max: usize) -> Vec<EvictedKey> {
        let calls = self.evictions.fetch_add(1, Ordering::Relaxed) + 1;
        let effort = (EVICTED_KEYS * calls).min(EVICTED_KEYS_MAX);
        let mut evicted = Vec::new();
        let random = self.hasher.hash_one((calls, keys_max));
        let mut at = random as usize;
        while evicted.len() < effort && self.is_over(keys_max) {
            at = at.wrapping_add(1);
            let mut shard = lock(&self.shards[at % SHARDS]);
            if shard.keys.is_empty() {
                continue;
            }
            let place = (random >> 32) as usize % shard.keys.len();
            let TrackedKey { name, clients } = shard.remove_at(place);
            self.keys.fetch_sub(1, Ordering::Relaxed);
            let mut clients = clients;
            clients.retain(|client| is_caching(client));
            evicted.push(EvictedKey { name, clients });
        }
        if !self.is_over(keys_max) {
            self.evictions.store(0, Ordering::Relaxed);
        }
        evicted
    }

    /// Returns the invalidation of one key for `receivers`.
    pub(crate) fn invalidation(
        &self,
        clients: &ClientRegistry,
        key: &[u8],
        receivers: &[Arc<ClientInfo>],
    ) -> Option<Publication> {
        self.publication(clients, keys_tail(&[key]), receivers)
    }

    /// Returns the invalidation of all keys for a client.
    pub(crate) fn flush_of(
        &self,
        clients: &ClientRegistry,
        client: &Arc<ClientInfo>,
    ) -> Option<Publication> {
        let receivers = [Arc::clone(client)];
        self.publication(clients, flush_tail(client).to_vec(), &receivers)
    }

    fn publication(
        &self,
        clients: &ClientRegistry,
        tail: Vec<u8>,
        receivers: &[Arc<ClientInfo>],
    ) -> Option<Publication> {
        let mut publication = Publication::default();
        let mut message = None;
        for client in receivers {
            let redirect = client.redirect.load(Ordering::Relaxed);
            let (kind, receiver) = match redirect {
                0 => (TargetKind::Invalidation, Arc::clone(client)),
                id => match clients.get(id) {
                    Some(receiver) => (TargetKind::Redirected, receiver),
                    None => {
                        let broken = tracking_flag::BROKEN;
                        client.tracking.fetch_or(broken, Ordering::Relaxed);
                        (TargetKind::BrokenRedirect, Arc::clone(client))
                    }
                },
            };
            let message = match kind {
                TargetKind::BrokenRedirect => {
                    let tail = format!(":{redirect}\r\n").into_bytes();
                    Arc::new(Message::invalidation(tail, &self.queued_bytes))
                }
                _ => Arc::clone(message.get_or_insert_with(|| {
                    Arc::new(Message::invalidation(tail.clone(), &self.queued_bytes))
                })),
            };
            add_receiver(&mut publication, message, kind, &receiver);
        }
        (publication.receivers > 0).then_some(publication)
    }

    /// Announces changes that are visible to all sessions (SRV-TRACK-3). Returns the invalidations.
    pub(crate) fn announce(
        &self,
        clients: &ClientRegistry,
        changes: &[KeyChange],
    ) -> Vec<Publication> {
        let mut invalidations = Vec::new();
        let mut broadcasts = Broadcasts::default();
        let has_prefixes = self.prefixes() > 0;
        for change in changes {
            match change {
                KeyChange::All { origin } => {
                    // SRV-TRACK-6
                    let keeps =
                        |_: &[u8], client: &ClientInfo| client.id == *origin && is_caching(client);
                    self.clear(Some(&keeps));
                    let all = clients.all();
                    let tracking = all
                        .iter()
                        .filter(|client| client.id != *origin && is_tracking(client));
                    invalidations.extend(tracking.filter_map(|c| self.flush_of(clients, c)));
                }
                KeyChange::Key { key, origin } => {
                    if has_prefixes {
                        self.note_broadcast(&mut broadcasts, key, *origin);
                    }
                    // SRV-TRACK-6
                    let keeps = |client: &ClientInfo| client.id == *origin && is_caching(client);
                    let mut taken = self.take_if(key, |client| !keeps(client));
                    taken.retain(|client| is_caching(client) && client.id != *origin);
                    invalidations.extend(self.invalidation(clients, key, &taken));
                }
            }
        }
        self.broadcast(clients, broadcasts, &mut invalidations);
        invalidations
    }

    /// Lists a changed key for the prefixes that it has.
    fn note_broadcast<'k>(&self, broadcasts: &mut Broadcasts<'k>, key: &'k [u8], origin: u64) {
        let prefixes = lock(&self.prefixes);
        for_each_prefix(&prefixes, key, &mut |prefix| {
            let keys = broadcasts.0.entry(Arc::clone(prefix)).or_default();
            keys.insert(key, origin);
        });
    }

    /// Adds the invalidations of clients that track prefixes: one with all keys of a prefix.
    fn broadcast(
        &self,
        clients: &ClientRegistry,
        broadcasts: Broadcasts<'_>,
        invalidations: &mut Vec<Publication>,
    ) {
        for (prefix, keys) in broadcasts.0 {
            let receivers = lock(&self.prefixes).get(&prefix).cloned();
            let (own, all): (Vec<_>, Vec<_>) = receivers
                .unwrap_or_default()
                .into_iter()
                .partition(|client| has_flags(client, tracking_flag::NOLOOP));
            let every: Vec<&[u8]> = keys.keys().copied().collect();
            invalidations.extend(self.publication(clients, keys_tail(&every), &all));
            for client in own {
                let others = keys.iter().filter(|(_, origin)| **origin != client.id);
                let others: Vec<&[u8]> = others.map(|(key, _)| *key).collect();
                if !others.is_empty() {
                    let tail = keys_tail(&others);
                    invalidations.extend(self.publication(clients, tail, &[client]));
                }
            }
        }
    }
}

/// Prefixes and their clients.
type Prefixes = BTreeMap<Arc<[u8]>, Vec<Arc<ClientInfo>>>;

/// Changed keys of prefixes, and the client that has changed each of them last.
#[derive(Default)]
struct Broadcasts<'k>(BTreeMap<Arc<[u8]>, BTreeMap<&'k [u8], u64>>);

/// Calls `each` with the prefixes that `key` has, the longest first.
fn for_each_prefix(prefixes: &Prefixes, key: &[u8], each: &mut dyn FnMut(&Arc<[u8]>)) {
    let mut end = Bound::Included(key);
    // The last prefix up to `end` is a prefix of the key, or all that the key has are prefixes of their common part.
    while let Some((prefix, _)) = prefixes
        .range::<[u8], _>((Bound::Unbounded, end))
        .next_back()
    {
        let same = prefix.iter().zip(key).take_while(|(a, b)| a == b).count();
        if same == prefix.len() {
            each(prefix);
            end = Bound::Excluded(&key[..same]);
        } else {
            end = Bound::Included(&key[..same]);
        }
    }
}

fn has_flags(client: &ClientInfo, flags: u8) -> bool {
    client.tracking.load(Ordering::Relaxed) & flags == flags
}

/// Whether a client tracks keys.
pub(crate) fn is_tracking(client: &ClientInfo) -> bool {
    has_flags(client, tracking_flag::ON)
}

/// Whether a client tracks the keys that it reads.
pub(crate) fn is_caching(client: &ClientInfo) -> bool {
    is_tracking(client) && !has_flags(client, tracking_flag::BCAST)
}

/// The last part of an invalidation: the keys.
pub(crate) fn keys_tail(keys: &[&[u8]]) -> Vec<u8> {
    let mut tail = Vec::new();
    reply::array(&mut tail, keys.len());
    for key in keys {
        reply::bulk(&mut tail, key);
    }
    tail
}

/// The last part of an invalidation of all keys. As in Redis, the protocol of the client that tracks determines it, even
/// if another client receives it.
pub(crate) fn flush_tail(client: &ClientInfo) -> &'static [u8] {
    match client.resp.load(Ordering::Relaxed) {
        3 => b"_\r\n",
        _ => b"$-1\r\n",
    }
}

fn add_receiver(
    publication: &mut Publication,
    message: Arc<Message>,
    kind: TargetKind,
    client: &ClientInfo,
) {
    let receiver = Receiver {
        id: client.id,
        slot: client.slot.load(Ordering::Relaxed),
    };
    publication.receivers += 1;
    let deliveries = &mut publication.deliveries;
    let same = deliveries.iter_mut().find(|(worker, delivery)| {
        *worker == client.worker && Arc::ptr_eq(&delivery.message, &message)
    });
    if let Some((_, delivery)) = same {
        if let Some(target) = delivery.targets.iter_mut().find(|t| t.kind == kind) {
            return Arc::make_mut(&mut target.receivers).push(receiver);
        }
        delivery.targets.push(target_of(kind, receiver));
        return;
    }
    let delivery = Delivery {
        message,
        targets: vec![target_of(kind, receiver)],
        except: None,
    };
    deliveries.push((client.worker, delivery));
}

fn target_of(kind: TargetKind, receiver: Receiver) -> Target {
    Target {
        kind,
        name: Arc::default(),
        receivers: Arc::new(vec![receiver]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_prefixes_of_a_key_are_found() {
        let words: [&[u8]; 9] = [
            b"", b"a", b"ab", b"abb", b"abc", b"abcd", b"abd", b"b", b"ba",
        ];
        for bits in 0..1 << words.len() {
            let chosen = words
                .iter()
                .enumerate()
                .filter(|(at, _)| bits >> at & 1 == 1);
            let prefixes: Prefixes = chosen
                .map(|(_, word)| (Arc::from(*word), Vec::new()))
                .collect();
            for key in [&b""[..], b"a", b"abc", b"abcz", b"abe", b"b", b"baa", b"z"] {
                let mut found = Vec::new();
                for_each_prefix(&prefixes, key, &mut |prefix| found.push(prefix.to_vec()));
                found.reverse();
                let expected: Vec<Vec<u8>> = prefixes
                    .keys()
                    .filter(|p| key.starts_with(p))
                    .map(|p| p.to_vec())
                    .collect();
                assert_eq!(found, expected, "{key:?}");
            }
        }
    }
}
